"""How a worker takes up its run: alone in the folder, and from the last checkpoint if its group was started again."""

import fcntl
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from boxwright.accel.nano import TorchNano
from boxwright.core.errors import BoxwrightError, UsageError
from boxwright.launchers.base import current_attempt
from boxwright.launchers.folder import shared_folder
from boxwright.tasks.train.config import TrainConfig
from boxwright.tasks.train.result import RESULT
from boxwright.tasks.train.store import Store

_TURN_S = 0.2


@contextmanager
def taking_up(nano: TorchNano, config: TrainConfig) -> Iterator[tuple[TrainConfig, Store | None]]:
    """Give the config to train with, and the run's store: one that resumes, where the group was started again.

    Where the run has a store and its processes are on other machines, `output_dir` of that config is a folder of this
    machine, with what the store holds in it. It is gone afterwards.

    Raises:
        UsageError: another process writes to the run's folder and does not end.
        CheckpointError: the store can't be read.
    """
    if config.store is not None and config.is_elsewhere:
        with _on_this_machine(nano, config) as own, _telling(config, own):
            yield own
        return
    with writing_alone(config.output_dir) if nano.is_global_zero else nullcontext():
        nano.barrier()  # only now is it certain that nobody of the last group still saves
        if current_attempt() and (config.output_dir / "weights" / "last.pt").exists():
            config = replace(config, resume=True, ckpt=None)
        yield config, None if config.store is None else Store(config.store, config.output_dir)


@contextmanager
def _on_this_machine(nano: TorchNano, config: TrainConfig) -> Iterator[tuple[TrainConfig, Store]]:
    """Give a folder that the processes of this machine share, with what they need to go on."""
    place = config.store
    assert place is not None
    key = nano.broadcast(uuid.uuid4().hex)
    with shared_folder(f"{key}-{nano.node_rank}") as folder:
        config = replace(config, output_dir=folder / "run")
        store = Store(place, config.output_dir)
        goes_on = config.resume
        if nano.is_global_zero:
            config.output_dir.mkdir()
            store.sweep(RESULT)
            if current_attempt() or config.resume:
                goes_on = store.has_run()
                store.pull()
        goes_on = nano.broadcast(goes_on)
        if goes_on:
            if nano.local_rank == 0 and not nano.is_global_zero:
                store.pull_checkpoint()
            nano.barrier()
            config = replace(config, resume=True, ckpt=None)
        try:
            yield config, store
        finally:
            if nano.is_global_zero:
                store.try_push()  # the log of a run that failed, too


@contextmanager
def _telling(config: TrainConfig, own: tuple[TrainConfig, Store]) -> Iterator[None]:
    """Name the folder that the user knows in the words of an error, not the one that is gone with this process."""
    try:
        yield
    except BoxwrightError as error:
        error.args = (str(error).replace(str(own[0].output_dir), str(config.output_dir)),)
        raise


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
