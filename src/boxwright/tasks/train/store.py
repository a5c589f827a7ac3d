"""A place that outlives the machine: the files of a run are copied there after every save, and taken up from there."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from boxwright.accel.places import PART, has_file, locate, open_place, put
from boxwright.core.errors import CheckpointError
from boxwright.core.log import get_logger
from boxwright.tasks.train.archive import inside

_log = get_logger(__name__)
LAST = "weights/last.pt"
_PREVIOUS = "weights/last.previous.pt"
_ONLY_HERE = ("cache",)  # folders of a run that can be made again
_MARKS = ("size", "mtime", "LastModified", "last_modified", "updated", "created", "ETag", "etag")


class Store:
    """The files of one run at a path or URL, and those in a folder of this machine.

    Args:
        place: the path or URL.
        folder: the folder of this machine.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as here:
        ...     Store("memory://runs/example", Path(here)).has_run()
        False
    """

    def __init__(self, place: str, folder: Path) -> None:
        self._place, self._folder = locate(place), folder
        self._sent: dict[str, tuple[int, int]] = {}  # what is there as it is here
        self._had: dict[str, list[str]] = {}  # what is here as it is there

    def has_run(self) -> bool:
        """Return whether there is a checkpoint to go on from.

        Raises:
            CheckpointError: the place can't be read.
        """
        with self._reading() as (system, _):
            system.invalidate_cache()
            return has_file(locate(self._place, LAST))

    def push(self, names: Collection[str] | None = None) -> None:
        """Copy there what has changed here, the checkpoint last.

        Args:
            names: these files only; None for all of the run.

        Raises:
            CheckpointError: the place can't be written.
        """
        found = {name: path for path in sorted(self._folder.rglob("*")) if (name := self._name(path)) is not None}
        for name in sorted(found, key=lambda name: name == LAST):
            if names is not None and name not in names:
                continue
            status = found[name].stat()
            state = (status.st_mtime_ns, status.st_size)
            if self._sent.get(name) != state:
                put(found[name], locate(self._place, name), keep=name == LAST)
                self._sent[name] = state

    def try_push(self) -> None:
        """Copy there what has changed; where that can't be done now, say so and leave it to the next time."""
        try:
            self.push()
        except CheckpointError as error:
            _log.warning("%s The run goes on, and the next save tries again.", error)

    def pull(self, names: Collection[str] | None = None) -> None:
        """Copy here what has changed there.

        Args:
            names: these files only; None for all of the run.

        Raises:
            CheckpointError: the place can't be read.
        """
        with self._reading():
            for name, info in self._list().items():
                state = [str(info.get(mark)) for mark in _MARKS]
                path = self._folder / name
                if (names is not None and name not in names) or (self._had.get(name) == state and path.exists()):
                    continue
                self._get(info["name"], path)
                self._had[name] = state
                status = path.stat()
                self._sent[name] = (status.st_mtime_ns, status.st_size)

    def pull_checkpoint(self) -> None:
        """Copy here what a process needs that only goes on.

        Raises:
            CheckpointError: the place can't be read.
        """
        self.pull((LAST, _PREVIOUS))

    def sweep(self, *names: str) -> None:
        """Remove there what a writer that was killed has left half-done, and these files.

        Raises:
            CheckpointError: the place can't be read or written.
        """
        with self._reading() as (system, path):
            system.invalidate_cache()
            for found in system.find(path) if system.exists(path) else []:
                name = str(PurePosixPath(found).relative_to(path))
                if name.endswith(PART) or name in names:
                    system.rm_file(found)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Any, str]]:
        try:
            yield open_place(self._place)
        except OSError as error:
            raise CheckpointError(
                f"The store {self._place!r} can't be read: {error}. Check the address, and the rights of this user."
            ) from error

    def _name(self, path: Path) -> str | None:
        """Return a file's name in the store; None for what is of this machine only."""
        name = path.relative_to(self._folder)
        kept = name.as_posix() != _PREVIOUS and name.parts[0] not in _ONLY_HERE
        hidden = any(part.startswith(".") for part in name.parts)
        return name.as_posix() if kept and not hidden and path.is_file() else None

    def _list(self) -> dict[str, dict[str, Any]]:
        system, path = open_place(self._place)
        system.invalidate_cache()
        found = system.find(path, detail=True) if system.exists(path) else {}
        names = {str(inside(str(PurePosixPath(one).relative_to(path)), self._place)): i for one, i in found.items()}
        return {name: info for name, info in names.items() if not name.endswith(PART)}

    def _get(self, remote: str, path: Path) -> None:
        system, _ = open_place(self._place)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            system.get_file(remote, str(draft))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def take_settings(place: str, folder: Path) -> None:
    """Copy the settings of the run in a store into a folder of this machine.

    Raises:
        CheckpointError: the store can't be read, or holds no run.
    """
    name = "args.yaml"
    Store(place, folder).pull((name,))
    if not (folder / name).is_file():
        raise CheckpointError(f"store={place!r} holds no run to go on with. Check it, or leave out --resume.")
