"""Folders of this machine: those through which a launch and its workers exchange files, and the one that lasts."""

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CACHE = "BOXWRIGHT_CACHE"
"""The variable that names the folder for what is kept between runs, instead of `~/.cache/boxwright`."""

_PREFIX = "boxwright-launch-"
_LOCK = "lock"
_UNLOCKED_S = 3600.0  # a folder this old without a lock file belongs to nobody


@contextmanager
def launch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Give a folder that only this user can read and that is gone afterwards.

    Folders of launches that were killed are removed first.

    Args:
        parent: the folder to make it in; None for the system's temporary one.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # The kernel drops the lock when this process dies, however it dies. A process number would say less: another
    # container with the same /tmp has numbers of its own.
    new = folder / f"{_LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(folder / _LOCK)  # nobody ever sees it unlocked
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


@contextmanager
def shared_folder(key: str) -> Iterator[Path]:
    """Give all processes of this machine that name the same key one folder; the last to leave removes it.

    Only this user can read it. Folders whose users were killed are removed by the next launch.

    Args:
        key: what nobody else can guess, in letters and digits.
    """
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.gettempdir()) / f"{_PREFIX}shared-{key}"
    lock = _enter(folder)
    try:
        yield folder
    finally:
        with suppress(BlockingIOError):  # somebody else is still there
            # Given back first: where a failed change of lock keeps the old one, two that leave at once would both fail.
            fcntl.flock(lock, fcntl.LOCK_UN)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:  # else it is removed, and a folder of that name is another's
                _remove(folder)
        os.close(lock)


def _enter(folder: Path) -> int:
    """Return the shared lock of a folder, which is made where it is missing."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        new = folder / f"{_LOCK}.{os.getpid()}.{threading.get_ident()}.new"
        try:
            lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # its last user has just removed it
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            os.link(new, folder / _LOCK)  # nobody ever sees it unlocked
            return lock
        except FileExistsError:
            os.close(lock)
        except FileNotFoundError:
            os.close(lock)
            continue
        finally:
            new.unlink(missing_ok=True)
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)


def cache_folder(name: str) -> Path:
    """Return the folder of a name in which things are kept between runs: BOXWRIGHT_CACHE moves all of them."""
    root = os.environ.get(CACHE)
    return (Path(root) if root else Path.home() / ".cache" / "boxwright") / name


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is either there as a whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid == os.getuid():
                _remove_if_stale(folder)
        except OSError:
            continue  # its owner was quicker


def _remove(folder: Path) -> None:
    """Remove a folder, its lock last: whoever is killed half-way leaves one that the next launch knows as stale.

    Nothing of the folder is touched after the lock: from then on it is the next one's who comes.
    """
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _LOCK:
                with suppress(OSError):  # one who comes takes its own file away again: the others must still go
                    entry.unlink()
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()  # fails where somebody has just come


def _remove_if_stale(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime > _UNLOCKED_S:
            _remove(folder)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Under the lock: whoever comes now waits for it, and then sees that this folder is no more.
        if os.fstat(lock).st_nlink:
            _remove(folder)
    except BlockingIOError:
        return
    finally:
        os.close(lock)
