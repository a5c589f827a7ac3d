"""How a worker takes up its run: alone in the folder, and from the last checkpoint if its group was started again."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError
from boxwright.launchers.base import current_attempt
from boxwright.recipes.training.config import TrainConfig

_TURN_S = 0.2


@contextmanager
def taking_up(nano: TorchNano, config: TrainConfig) -> Iterator[TrainConfig]:
    """Give the config to train with: one that resumes, where this group of processes was started again.

    Raises:
        UsageError: another process writes to the run's folder and does not end.
    """
    with writing_alone(config.output_dir) if nano.is_global_zero else nullcontext():
        nano.barrier()  # only now is it certain that nobody of the last group still saves
        if current_attempt() and (config.output_dir / "weights" / "last.pt").exists():
            config = replace(config, resume=True, ckpt=None)
        yield config


@contextmanager
def writing_alone(folder: Path, *, wait_s: float = 60.0) -> Iterator[None]:
    """Be the only process that writes to a folder, once whoever does so now has ended.

    The program that starts a run holds a lock of its own. This one is for the first worker: where that program was
    killed or a machine was given up, a worker may live on for seconds, and the next one must not mix its files in.

    Args:
        folder: the run's folder; it is made where it is missing.
        wait_s: how long to wait.

    Raises:
        UsageError: the other one does not end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + wait_s
    with (folder / ".writing").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end_s:
                    raise UsageError(
                        f"Another process has been writing to {str(folder)!r} for {wait_s:g} s. End it, or choose "
                        "another folder."
                    ) from error
                time.sleep(_TURN_S)
        yield
