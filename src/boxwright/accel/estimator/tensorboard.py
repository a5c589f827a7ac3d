"""The callback that writes an estimator's numbers for TensorBoard."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from boxwright.accel.estimator.callbacks import Callback
from boxwright.accel.estimator.run import Run
from boxwright.accel.places import is_url, locate, put
from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.packages import missing_packages

_NOT_SHOWN = ("epoch", "batch_count", "num_samples", "val_num_samples")


class TensorBoardCallback(Callback):
    """Writes losses, metrics and the learning rate for TensorBoard, in the first worker.

    Args:
        log_dir: a folder or a URL; files for a URL are copied there after each epoch.
        freq: "epoch" for the numbers of each epoch; "batch", or every how many iterations, for those of a batch.
        **settings: of torch's `SummaryWriter`.

    Raises:
        UsageError: `freq` is something else.
        MissingDependencyError: tensorboard is not installed.
    """

    def __init__(self, log_dir: str | Path, freq: str | int = "epoch", **settings: Any) -> None:
        is_count = isinstance(freq, int) and not isinstance(freq, bool) and freq > 0
        if freq not in ("epoch", "batch") and not is_count:
            raise UsageError(f"freq={freq!r} is not possible. Use 'epoch', 'batch' or a number of iterations.")
        if missing_packages(["tensorboard"]):
            raise MissingDependencyError(
                "TensorBoardCallback needs tensorboard, which is not installed. Run: pip install tensorboard"
            )
        self._place = locate(log_dir)
        self._every = 1 if freq == "batch" else freq
        self._settings = settings
        self._folder: str | None = None
        self._writer: Any = None

    def before_run(self, run: Run) -> None:
        """Open a file."""
        if run.rank == 0:
            from torch.utils.tensorboard import SummaryWriter

            self._folder = tempfile.mkdtemp(prefix="boxwright-tensorboard-") if is_url(self._place) else None
            self._writer = SummaryWriter(self._folder or self._place, **self._settings)

    def after_train_iter(self, run: Run) -> None:
        """Write the losses of a batch, if that is wanted."""
        if self._writer is None or self._every == "epoch" or run.iteration % int(self._every):
            return
        assert run.result is not None
        losses = {f"train_{name}": float(value.detach()) for name, value in run.result.losses.items()}
        self._write({**losses, "lr": run.lr}, run.iteration)

    def after_train_epoch(self, run: Run) -> None:
        """Write the numbers of an epoch, if those are wanted."""
        if self._writer is not None:
            if self._every == "epoch":
                self._write(run.metrics, run.epochs)
            self._writer.flush()
            self._upload()

    def after_run(self, run: Run) -> None:  # noqa: ARG002  the signature of the hook
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._upload()
        if self._folder is not None:
            shutil.rmtree(self._folder)
        self._writer = self._folder = None

    def _write(self, numbers: dict[str, Any], step: int) -> None:
        for name, value in numbers.items():
            if name not in _NOT_SHOWN and isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def _upload(self) -> None:
        if self._folder is not None:
            for file in Path(self._folder).iterdir():
                put(file, locate(self._place, file.name))
