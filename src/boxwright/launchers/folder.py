"""Temporary folders of this machine: of a launch, or of several processes."""

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "boxwright-launch-"
_LOCK = "lock"
_UNLOCKED_S = 3600.0  # a folder this old without a lock file is abandoned


@contextmanager
def launch_folder() -> Iterator[Path]:
    """Yield a new temporary folder that only this user can read, and remove it afterwards.

    Folders of launches that were killed are removed first.
    """
    with _locked_folder(secrets.token_hex(8)) as folder:
        yield folder


@contextmanager
def shared_folder(key: str) -> Iterator[Path]:
    """Yield a folder that all processes of this machine with the same key share; the last one removes it.

    Only this user can read it. Folders whose users were killed are removed by the next launch.

    Args:
        key: letters and digits that other programs can't guess.
    """
    with _locked_folder(f"shared-{key}") as folder:
        yield folder


@contextmanager
def _locked_folder(name: str) -> Iterator[Path]:
    """Yield a folder with a shared lock on it; the last process to leave it removes it.

    The kernel drops a lock when its process dies, however it dies. A process id would not do: another container with
    the same /tmp has its own ids.
    """
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # its owner was faster
            if old.stat().st_uid == os.getuid():
                _remove_if_stale(old)
    folder = parent / f"{_PREFIX}{name}"
    lock = _enter(folder)
    try:
        yield folder
    finally:
        # Released first: where a failed upgrade keeps the old lock, two processes that leave at once would both fail.
        fcntl.flock(lock, fcntl.LOCK_UN)
        _remove_if_unused(folder, lock)


def _enter(folder: Path) -> int:
    """Return a shared lock on a folder, and make the folder if it is missing."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # its last user has just removed the folder
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)  # removed before we had the lock, with the folder's other files


def _remove_if_stale(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime > _UNLOCKED_S:
            _remove(folder)
    else:
        _remove_if_unused(folder, lock)


def _remove_if_unused(folder: Path, lock: int) -> None:
    """Remove a folder unless another process has its lock, and close ours."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:  # else it was removed, and a folder with that name belongs to others
            _remove(folder)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder, its lock last: a process that is killed half-way leaves one that the next launch removes.

    Nothing in the folder is touched after the lock: from then on it belongs to the next process that enters.
    """
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _LOCK:
                entry.unlink()
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()  # fails if another process has just entered
