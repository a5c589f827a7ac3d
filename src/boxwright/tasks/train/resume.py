"""How a process enters its run: alone in the folder, from the last checkpoint if its group was restarted."""

import errno
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from boxwright.accel.nano import TorchNano
from boxwright.core.errors import BoxwrightError, CheckpointError, UsageError
from boxwright.core.files import locked
from boxwright.launchers.base import current_attempt
from boxwright.launchers.folder import shared_folder
from boxwright.tasks.train.config import TrainConfig
from boxwright.tasks.train.progress import RESULT
from boxwright.tasks.train.run_store import LAST, PREVIOUS, RunStore

# No space, over the quota, over the limit for the size of a file.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NONE_YET = "No checkpoint had been saved yet. Make room and start again."


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into a CheckpointError that names the run's folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        kept = (folder / LAST).exists() or (folder / PREVIOUS).exists()
        raise CheckpointError(
            f"A file of the run in {str(folder)!r} could not be written: {error.strerror}. "
            + ("What was saved before is still there. Make room and resume with --resume." if kept else _NONE_YET)
        ) from error


_WAIT_S = 60.0


@contextmanager
def entering(nano: TorchNano, config: TrainConfig) -> Iterator[tuple[TrainConfig, RunStore | None]]:
    """Yield the config to train with, which resumes if the group was restarted, and the run's store.

    If the run has a store and its processes are on other machines, `output_dir` of that config is a folder of this
    machine with the store's files, which is removed afterwards.

    Raises:
        UsageError: another process keeps writing to the run's folder.
        CheckpointError: the store can't be read.
    """
    if config.store is not None and config.is_elsewhere:
        with _on_this_machine(nano, config, config.store) as own:
            yield own
        return
    folder = config.output_dir
    if nano.is_global_zero:
        folder.mkdir(parents=True, exist_ok=True)
    # Besides the lock of the starting program: if that was killed or a machine was given up, a worker of the last
    # group may live for some seconds, and must not mix its files with ours.
    busy = UsageError(
        f"Another process has been writing to {str(folder)!r} for {_WAIT_S:g} s. End it, or choose another folder."
    )
    with locked(folder / ".writing", wait_s=_WAIT_S, refusal=busy) if nano.is_global_zero else nullcontext():
        nano.barrier()  # now no worker of the last group is still saving
        if current_attempt() and (folder / LAST).exists():
            config = replace(config, resume=True, ckpt=None)
        yield config, None if config.store is None else RunStore(config.store, folder)


@contextmanager
def _on_this_machine(nano: TorchNano, config: TrainConfig, place: str) -> Iterator[tuple[TrainConfig, RunStore]]:
    """Yield a config for a folder that the processes of this machine share, with what they need to resume."""
    key = nano.broadcast(uuid.uuid4().hex)
    with shared_folder(f"{key}-{nano.node_rank}") as folder:
        own = replace(config, output_dir=folder / "run")
        store = RunStore(place, own.output_dir)
        resumes = config.resume
        if nano.is_global_zero:
            own.output_dir.mkdir()
            store.sweep(RESULT)
            if current_attempt() or config.resume:
                resumes = store.has_run()
                store.pull()
        if nano.broadcast(resumes):
            if nano.local_rank == 0 and not nano.is_global_zero:
                store.pull((LAST, PREVIOUS))  # it resumes and writes nothing
            nano.barrier()
            own = replace(own, resume=True, ckpt=None)
        try:
            yield own, store
        except BoxwrightError as error:  # name the folder that the user knows
            error.args = (str(error).replace(str(own.output_dir), str(config.output_dir)),)
            raise
        finally:
            if nano.is_global_zero:
                store.try_push()  # the log of a run that failed, too
