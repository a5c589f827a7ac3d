"""Training a detector: `train(config)` plans the run, starts its processes and returns what they left behind."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from boxwright.accel.nano import TorchNano
from boxwright.core import catalogue
from boxwright.core.config import to_yaml
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.recipes.training.config import TrainConfig
from boxwright.recipes.training.curves import draw_curves, write_report
from boxwright.recipes.training.logbook import Callback
from boxwright.recipes.training.loop import Progress, TrainResult, run_worker

__all__ = ["TrainConfig", "TrainResult", "train"]

_log = get_logger(__name__)


def train(config: TrainConfig, *, callbacks: Sequence[Callback] = (), progress: Progress | None = None) -> TrainResult:
    """Train and return the result; the run's files are in `config.output_dir`.

    Written there: `args.yaml` (the resolved config), `plan.txt`, `metrics.jsonl`, `results.csv`, `data_report.json`,
    `data.lock`, `weights/last.pt` (for `resume`), `weights/{last,best}.safetensors`, curves and `report.html`.

    Args:
        config: the run.
        callbacks: things of your own that hear of its progress.
        progress: called with steps done and steps in all; only where training is in this process.

    Raises:
        UsageError: a setting is wrong, or another program is writing to the folder.
        DataError: the set can't be used.
        CheckpointError: weights don't fit, or nothing can be resumed.
        WorkerError: a process failed.
    """
    catalogue.find("model", config.model)
    config = replace(config, output_dir=config.output_dir.resolve(), data=config.data.resolve())
    folder = config.output_dir
    last = folder / "weights" / "last.pt"
    if not config.resume and last.exists():
        raise UsageError(f"{str(folder)!r} holds a run already. Go on with --resume, or choose another folder.")
    nano = TorchNano(
        num_processes=config.num_processes or None,
        use_ipex=config.use_ipex,
        strategy=config.strategy,
        precision=config.precision,
        device=config.device,
        channels_last=True,
        seed=config.seed,
        broadcast_buffers=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder):
        (folder / "args.yaml").write_text(to_yaml(config), encoding="utf-8")
        plan = nano.plan.lines()
        (folder / "plan.txt").write_text("\n".join(plan) + "\n", encoding="utf-8")
        for line in plan:
            _log.info("%s", line)
        in_process = nano.plan.strategy == "none"
        result = nano.launch(run_worker, config, tuple(callbacks), progress if in_process else None)
        draw_curves(folder)
        write_report(folder, result.to_dict(), plan)
    return result


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: two runs in one folder would tear each other's files."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"Another run is writing to {str(folder)!r}. Choose another folder.") from error
        yield
