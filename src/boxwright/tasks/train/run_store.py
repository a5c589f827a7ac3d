"""The store of a run: its files are copied after every save to a place that outlives the machine."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from boxwright.accel.places import PART, has_file, locate, open_place, put
from boxwright.core.errors import CheckpointError, DataError
from boxwright.core.files import whole_file
from boxwright.core.log import get_logger

_log = get_logger(__name__)
LAST = "weights/last.pt"
PREVIOUS = "weights/last.previous.pt"
_CACHE = "cache"  # a folder of the run that can be made again
_MARKS = ("size", "mtime", "LastModified", "last_modified", "updated", "created", "ETag", "etag", "md5Hash")


def file_marks(info: Mapping[str, Any]) -> dict[str, str]:
    """Return those of a remote file's facts that change when it is written; file systems name them differently."""
    return {mark: str(info[mark]) for mark in _MARKS if mark in info}


def inside(path: str, name: str) -> PurePosixPath:
    """Return a member's path if it stays below the folder that the archive or store `name` is copied to.

    Raises:
        DataError: it would be outside.
    """
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts or "\\" in path or "\0" in path:
        raise DataError(f"{name!r} holds {path!r}, which would be outside its folder. Nothing of it is used.")
    return found


class RunStore:
    """The files of one run at a path or URL, and their copies in a folder of this machine.

    All methods raise CheckpointError where the place can't be read or written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as here:
        ...     RunStore("memory://runs/example", Path(here)).has_run()
        False
    """

    def __init__(self, place: str, folder: Path) -> None:
        self._place, self._folder = locate(place), folder
        self._pushed: dict[str, tuple[int, ...] | None] = {}  # local state of what is the same at the place
        self._pulled: dict[str, dict[str, str]] = {}  # remote state of what is the same here

    def has_run(self) -> bool:
        """Return whether there is a checkpoint to resume from."""
        with self._open():
            return has_file(locate(self._place, LAST))

    def push(self, names: Collection[str] | None = None) -> None:
        """Copy to the place what has changed here, the checkpoint last; only these files, if named."""
        found = {name: path for path in sorted(self._folder.rglob("*")) if (name := self._name(path)) is not None}
        for name in sorted(found, key=lambda name: name == LAST):
            if names is None or name in names:
                state = file_state(found[name])
                if self._pushed.get(name) != state:
                    put(found[name], locate(self._place, name), keep=name == LAST)
                    self._pushed[name] = state

    def try_push(self) -> None:
        """Copy to the place what has changed; if that fails, warn and leave it to the next save."""
        try:
            self.push()
        except CheckpointError as error:
            _log.warning("%s The run continues, and the next save tries again.", error)

    def pull(self, names: Collection[str] | None = None) -> None:
        """Copy here what has changed at the place; only these files, if named."""
        with self._open() as (system, root):
            found = system.find(root, detail=True) if system.exists(root) else {}
            for remote, info in found.items():
                name = str(inside(str(PurePosixPath(remote).relative_to(root)), self._place))
                path, marks = self._folder / name, file_marks(info)
                wanted = not name.endswith(PART) if names is None else name in names
                if wanted and not (self._pulled.get(name) == marks and path.exists()):
                    with whole_file(path) as draft:
                        system.get_file(info["name"], str(draft))
                    self._pulled[name], self._pushed[name] = marks, file_state(path)

    def pull_settings(self) -> None:
        """Copy the run's `args.yaml` here."""
        self.pull(("args.yaml",))
        if not (self._folder / "args.yaml").is_file():
            raise self.nothing_to_resume()

    def nothing_to_resume(self) -> CheckpointError:
        """Return the error for a store without a run."""
        return CheckpointError(f"store={self._place!r} holds no run to resume. Check it, or leave out --resume.")

    def sweep(self, *names: str) -> None:
        """Remove these files at the place, and what a killed writer has left half-done."""
        with self._open() as (system, root):
            for found in system.find(root) if system.exists(root) else []:
                name = str(PurePosixPath(found).relative_to(root))
                if name.endswith(PART) or name in names:
                    system.rm_file(found)

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, str]]:
        try:
            system, root = open_place(self._place)
            system.invalidate_cache()
            yield system, root
        except OSError as error:
            raise CheckpointError(
                f"The store {self._place!r} can't be read: {error}. Check the address, and the rights of this user."
            ) from error

    def _name(self, path: Path) -> str | None:
        """Return a file's name in the store; None for what stays on this machine."""
        name = path.relative_to(self._folder)
        stays = name.as_posix() == PREVIOUS or name.parts[0] == _CACHE or any(p.startswith(".") for p in name.parts)
        return name.as_posix() if not stays and path.is_file() else None


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return what changes whenever a file is written or replaced; None if there is none."""
    if not path.exists():
        return None
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino
