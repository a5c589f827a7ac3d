"""The callback that keeps a checkpoint of every epoch, and how the latest one is found."""

import re
import string
from pathlib import PurePosixPath
from typing import Any

from boxwright.accel.estimator.callbacks import Callback
from boxwright.accel.estimator.run import Run
from boxwright.accel.places import has_file, locate, open_place
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.launchers.base import current_attempt

LAST = "last.pt"
"""The checkpoint in a `model_dir`."""
_SUFFIX = ".ckpt"
_LAST = f"last{_SUFFIX}"


class ModelCheckpoint(Callback):
    """Writes a checkpoint after each epoch, and `last.ckpt` at the end, for `load_checkpoint`.

    Args:
        filepath: a path or URL without suffix; `{epoch}` in its name becomes `epoch=3`, `{epoch:02d}` `epoch=03`.
        save_weights_only: write the weights alone, for `load` and `load_checkpoint`.
        interval: write after every so many epochs; -1 for each.

    Raises:
        UsageError: the name has no `{epoch}`: each epoch would replace the one before.

    Example:
        >>> ModelCheckpoint("runs/linear/{epoch:02d}").name(3)
        'epoch=03.ckpt'
    """

    def __init__(self, filepath: str, save_weights_only: bool = False, *, interval: int = -1) -> None:
        path = PurePosixPath(str(filepath))
        fields = [name for _, name, _, _ in string.Formatter().parse(path.name) if name is not None]
        if fields != ["epoch"]:
            raise UsageError(
                f"filepath={str(filepath)!r} must hold {{epoch}} once in its last part, and no other field. "
                "Use such as 'runs/a/{epoch:02d}'."
            )
        self._folder = str(filepath)[: -len(path.name)] or "."
        # As Orca names them: "{epoch:02d}" means "epoch=03".
        self._form = re.sub(r"\{epoch", "epoch={epoch", path.name)
        self.save_weights_only = save_weights_only
        if interval != -1 and interval < 1:
            raise UsageError(f"interval={interval!r} is not possible. Use a number of epochs, or -1 for each.")
        self._interval = max(1, interval)

    def name(self, epoch: int) -> str:
        """Return the name of an epoch's file."""
        return self._form.format(epoch=epoch) + _SUFFIX

    def before_run(self, run: Run) -> None:
        """Refuse a folder with checkpoints of another training.

        Raises:
            UsageError: there are some.
        """
        if run.rank == 0 and run.epochs == 0 and not current_attempt() and (found := _find(self._folder)):
            raise UsageError(
                f"{self._folder!r} holds checkpoints already, such as {PurePosixPath(found[0]).name!r}. Resume with "
                "load_checkpoint(), or choose another folder."
            )

    def after_train_epoch(self, run: Run) -> None:
        """Write the epoch's checkpoint."""
        if run.epochs % self._interval:
            return
        run.save_checkpoint(locate(self._folder, self.name(run.epochs)), self.save_weights_only)

    def after_run(self, run: Run) -> None:
        """Write `last.ckpt`."""
        if run.epochs:
            run.save_checkpoint(locate(self._folder, _LAST), self.save_weights_only)

    @classmethod
    def get_latest_checkpoint(cls, dirname: str) -> str:
        """Return the latest checkpoint of a folder; the same as `Estimator.latest_checkpoint`."""
        return latest_checkpoint(dirname)


def latest_checkpoint(folder: Any) -> str:
    """Return the latest checkpoint of a `model_dir`, or of a folder that `ModelCheckpoint` wrote.

    Raises:
        CheckpointError: there is none.
    """
    for name in (LAST, _LAST):
        if has_file(locate(folder, name)):
            return locate(folder, name)
    found = _find(folder)
    if not found:
        raise CheckpointError(f"There is no checkpoint in {str(folder)!r}. fit() writes one after each epoch.")
    return locate(folder, PurePosixPath(found[-1]).name)


def _find(folder: Any) -> list[str]:
    """Return the checkpoints of a folder by the number of their epoch."""
    system, path = open_place(locate(folder))
    if not system.isdir(path):
        return []
    names = [str(name) for name in system.ls(path, detail=False) if str(name).endswith(_SUFFIX)]
    return sorted(names, key=lambda name: [int(number) for number in re.findall(r"epoch=(\d+)", name)])
