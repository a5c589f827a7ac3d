"""Files that a launcher carries to the machines of its workers, and where a worker finds them."""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from boxwright.core.errors import UsageError
from boxwright.launchers.folder import shared_folder

FILES = "BOXWRIGHT_FILES"
"""The variable that tells a worker the folder in which its launcher's files are."""

Bring = Callable[[Path], None]
"""Puts the files of a launch into a folder of the machine where it is called."""

_WHOLE = "whole"


def carried_file(name: str) -> Path:
    """Return where a file is that the launcher has carried here; it is gone when the last worker here has ended.

    Args:
        name: the file's name in the folder it came from.

    Raises:
        UsageError: the launcher has carried no such file.
    """
    folder = os.environ.get(FILES)
    path = Path(folder or "", name)
    if folder is None or not path.exists():
        raise UsageError(f"No file {name!r} was carried to this worker. Name it in the launcher's files.")
    return path


def check_files(files: Sequence[Path]) -> int:
    """Return how many bytes there are to carry.

    Raises:
        UsageError: a file is not there, or two have the same name.
    """
    names = [file.name for file in files]
    for file in files:
        if not file.is_file():
            raise UsageError(f"{str(file)!r} is to be carried to the workers, but is no file. Check the path.")
        if names.count(file.name) > 1:
            raise UsageError(f"Two files to carry are named {file.name!r}. Give one of them another name.")
    return sum(file.stat().st_size for file in files)


@contextmanager
def receiving(key: str, bring: Bring) -> Iterator[Path]:
    """Give the folder with the launch's files. The first who asks on a machine brings them, the others wait.

    Args:
        key: the launch, as `shared_folder` takes it.
        bring: puts the files into a folder.

    Raises:
        OSError: they can't be had, or there is no room for them.
    """
    with shared_folder(key) as folder:
        place = folder / "files"
        with (folder / "receiving").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not (folder / _WHOLE).exists():
                place.mkdir(exist_ok=True)
                bring(place)
                (folder / _WHOLE).touch()
        yield place
