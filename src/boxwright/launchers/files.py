"""Files that a launcher sends to its workers' machines, and where a worker finds them."""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from boxwright.core.errors import UsageError
from boxwright.launchers.folder import shared_folder

FILES = "BOXWRIGHT_FILES"
"""The variable with the folder of the launcher's files."""


def carried_file(name: str) -> Path:
    """Return where a file of the launcher is on this machine; it is removed after the last worker here.

    Args:
        name: the file's name, without its original folder.

    Raises:
        UsageError: the launcher has sent no such file.
    """
    folder = os.environ.get(FILES)
    path = Path(folder or "", name)
    if folder is None or not path.exists():
        raise UsageError(f"No file {name!r} was sent to this worker. Name it in the launcher's files.")
    return path


def check_files(files: Sequence[Path]) -> int:
    """Return the size of all files in bytes.

    Raises:
        UsageError: a file is missing, or two have the same name.
    """
    names = [file.name for file in files]
    for file in files:
        if not file.is_file():
            raise UsageError(f"{str(file)!r} can't be sent to the workers: it is not a file. Check the path.")
        if names.count(file.name) > 1:
            raise UsageError(f"Two files to send are named {file.name!r}. Rename one of them.")
    return sum(file.stat().st_size for file in files)


@contextmanager
def receiving(key: str, bring: Callable[[Path], None]) -> Iterator[Path]:
    """Yield the folder with a launch's files. The first process of a machine brings them, the others wait.

    Raises:
        OSError: they can't be fetched, or there is no room for them.
    """
    with shared_folder(key) as folder:
        draft, files = folder / "draft", folder / "files"
        with (folder / "receiving").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not files.exists():
                draft.mkdir(exist_ok=True)
                bring(draft)
                draft.rename(files)
        yield files
