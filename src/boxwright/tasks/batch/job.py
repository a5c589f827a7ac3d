"""Batch inference: every image of a large set gets one row in a folder of parquet files, also across restarts."""

from collections.abc import Callable
from dataclasses import asdict

from boxwright.accel.places import locate
from boxwright.core import catalogue
from boxwright.core.errors import DataError, UsageError, WorkerError
from boxwright.core.log import get_logger
from boxwright.tasks.batch.config import BatchConfig, BatchResult
from boxwright.tasks.batch.inputs import Part, list_inputs
from boxwright.tasks.batch.places import begin_results, list_parts
from boxwright.tasks.batch.worker import ModelFiles, PartResult, WorkerSettings

_log = get_logger(__name__)
_SHOWN = 5  # failures in full
RunParts = Callable[[WorkerSettings, ModelFiles, list[Part], Callable[[int], None]], list[PartResult]]
"""What an engine offers: the function `run_parts` in `local`, `ray_` and `spark_`.

It runs the parts in any order, calls the last argument with the number of those that are done, returns their results,
and ends early if several fail in a row.
"""


def predict_in_batches(config: BatchConfig, progress: Callable[[int, int], None] | None = None) -> BatchResult:
    """Predict every image of a set into `part-*.parquet` files, and return the counts.

    Parts that an earlier run of the same model, images and settings has finished are skipped; files are written
    atomically. An image that can't be read becomes a row with an error. Each worker loads the model once.

    Args:
        config: the settings.
        progress: called with the number of parts that are done, and of all.

    Raises:
        DataError: there are no images, or not those of the earlier run.
        CheckpointError: there is no such model, or it holds code of another user or machine.
        UsageError: the settings contradict each other, the earlier run, or the engine.
        WorkerError: a worker failed; what is finished stays, and the same call resumes with the rest.
    """
    run_parts: RunParts = catalogue.load("batch", config.engine)
    data, out = locate(config.data), locate(config.out)
    if f"{out}/".startswith(f"{data}/"):
        raise UsageError(f"The results can't be inside the images: {out!r} is below {data!r}. Choose another folder.")
    model = ModelFiles.read(config.model)
    if not config.trust:
        model.check_trust()
    if config.threads is not None and not model.takes_threads:
        raise UsageError(
            f"threads={config.threads!r} does not apply to {model.name}, which runs in PyTorch. Convert it first, or "
            "leave it out."
        )
    inputs = list_inputs(data, part_rows=config.part_rows, column=config.column)
    run = {
        "data": data,
        "images": inputs.count,
        "fingerprint": inputs.fingerprint,
        "part_rows": config.part_rows,
        "column": inputs.place.column,
        "model": model.digest,
        "thresholds": asdict(config.thresholds),
        "options": asdict(config.options),
    }
    finished = begin_results(out, run)
    todo = [part for part in inputs.parts if part.number not in finished]
    total = len(inputs.parts)
    _log.info("%d images in %d parts, %d of them done: %s", inputs.count, total, total - len(todo), out)
    settings = WorkerSettings(config=config, images=inputs.place, out=out, model=model.digest)

    def report(done: int) -> None:
        _log.info("%d of %d parts", total - len(todo) + done, total)
        if progress is not None:
            progress(total - len(todo) + done, total)

    results = run_parts(settings, model, todo, report) if todo else []
    _check(results, out, {part.number for part in inputs.parts})
    return BatchResult(
        out=out,
        images=inputs.count,
        errors=sum(one.errors for one in results),
        parts=total,
        skipped=total - len(todo),
        processes=len({one.process for one in results}),
        loads=sum(one.loaded for one in results),
        busy_s=sum(one.busy_s for one in results),
    )


def _check(results: list[PartResult], out: str, wanted: set[int]) -> None:
    failed = [one for one in results if one.failure]
    if failed:
        shown = "".join(f"\nPart {one.part} on {one.process}: {one.failure}" for one in failed[:_SHOWN])
        shown += f"\nand {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        raise WorkerError(
            f"{len(failed)} of {len(results)} parts failed.{shown}\nWhat is finished stays in {out!r}: the same "
            "command tries the missing ones again."
        )
    away = wanted - list_parts(out)
    if away:
        places = sorted({one.process for one in results if one.part in away}) or ["an earlier run"]
        raise DataError(
            f"{len(away)} parts were written by {', '.join(places[:3])}, but {out!r} is not the same folder there as "
            "here. Use a folder that all machines share, or a URL."
        )
