"""Batch inference: every image of a large set gets one row in a folder of parquet files, whatever happens meanwhile."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from boxwright.core import catalogue
from boxwright.core.errors import DataError, UsageError, WorkerError
from boxwright.core.log import get_logger
from boxwright.tasks.batch import manifest
from boxwright.tasks.batch.config import BatchConfig, BatchResult
from boxwright.tasks.batch.inputs import Part, list_inputs
from boxwright.tasks.batch.parcel import Parcel
from boxwright.tasks.batch.places import settle
from boxwright.tasks.batch.worker import Outcome, Work

_log = get_logger(__name__)
_TOLD = 5  # failures, by their words


class RunParts(Protocol):
    """What an engine offers: `local`, `ray_` and `spark_` are such functions."""

    def __call__(
        self, config: BatchConfig, work: Work, parcel: Parcel, parts: list[Part], report: Callable[[int], None]
    ) -> list[Outcome]:
        """Return what came of each part; where one after the other fails, the run may end early.

        Args:
            config: workers, threads and where the engine is.
            work: what each worker must know.
            parcel: the model.
            parts: what is to be done, in any order.
            report: is told how many are done, now and then.
        """
        ...


def predict_in_batches(config: BatchConfig, progress: Callable[[int, int], None] | None = None) -> BatchResult:
    """Predict every image of a set into `part-*.parquet` files, and return how many there are.

    Parts that an earlier run of the same model, images and settings has finished are not done again; a file is there
    whole or not at all. An image that can't be read becomes a row with an error. The model is loaded once a worker.

    Args:
        config: what to do.
        progress: is told how many parts are done, and how many there are.

    Raises:
        DataError: there are no images, or not those that the results were begun with.
        UsageError: the settings contradict each other, the earlier run, or the engine.
        WorkerError: a worker failed; what is finished stays, and the same call goes on with the rest.
    """
    run_parts: RunParts = catalogue.load("batch", config.engine)
    data, out = settle(config.data), settle(config.out)
    if f"{out}/".startswith(f"{data}/"):
        raise UsageError(f"The results can't lie inside the images: {out!r} is below {data!r}. Choose another folder.")
    parcel = Parcel.pack(config.model)
    if config.threads is not None and not parcel.takes_threads:
        raise UsageError(
            f"threads={config.threads!r} does not apply to {parcel.name}, which runs in PyTorch. Convert it first, or "
            "leave it out."
        )
    inputs = list_inputs(data, part_rows=config.part_rows, column=config.column)
    run = {
        "data": data,
        "images": inputs.count,
        "fingerprint": inputs.fingerprint,
        "part_rows": config.part_rows,
        "column": inputs.source.column,
        "model": parcel.digest,
        "thresholds": _plain(asdict(config.thresholds)),
        "options": _plain(asdict(config.options)),
    }
    finished = manifest.begin(out, run)
    todo = [part for part in inputs.parts if part.number not in finished]
    total = len(inputs.parts)
    _log.info("%d images in %d parts, %d of them done: %s", inputs.count, total, total - len(todo), out)
    work = Work(
        source=inputs.source, out=out, batch=config.batch, thresholds=config.thresholds, options=config.options,
        model=parcel.digest,
    )  # fmt: skip

    def report(done: int) -> None:
        _log.info("%d of %d parts", total - len(todo) + done, total)
        if progress is not None:
            progress(total - len(todo) + done, total)

    outcomes = run_parts(config, work, parcel, todo, report) if todo else []
    _check(outcomes, out, {part.number for part in inputs.parts})
    return BatchResult(
        out=out,
        images=inputs.count,
        errors=sum(one.errors for one in outcomes),
        parts=total,
        skipped=total - len(todo),
        processes=len({one.process for one in outcomes}),
        loads=sum(one.loaded for one in outcomes),
        busy_s=sum(one.busy_s for one in outcomes),
    )


def _plain(values: dict[str, object]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _check(outcomes: list[Outcome], out: str, wanted: set[int]) -> None:
    failed = [one for one in outcomes if one.failure]
    if failed:
        told = "".join(f"\nPart {one.part} on {one.process}: {one.failure}" for one in failed[:_TOLD])
        told += f"\nand {len(failed) - _TOLD} more" if len(failed) > _TOLD else ""
        raise WorkerError(
            f"{len(failed)} of {len(outcomes)} parts failed.{told}\nWhat is finished stays in {out!r}: the same "
            "command tries those again that are missing."
        )
    away = wanted - manifest.list_parts(out)
    if away:
        places = sorted({one.process for one in outcomes if one.part in away}) or ["an earlier run"]
        raise DataError(
            f"{len(away)} parts were written by {', '.join(places[:3])}, but {out!r} is not the same folder there as "
            "here. Use a folder that all machines share, or a URL."
        )
