"""A run's data on this machine: at a path, fetched from a URL, or sent here by the engine as one file."""

import hashlib
import json
import lzma
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from boxwright.accel.places import is_url, open_place
from boxwright.core.environment import cache_folder
from boxwright.core.errors import DataError
from boxwright.core.files import locked, require_file, walk_once, whole_file
from boxwright.core.log import get_logger
from boxwright.data.formats import find_layout
from boxwright.data.shards import SHARD_SUFFIXES, address_file
from boxwright.launchers.files import carried_file
from boxwright.tasks.train.config import TrainConfig
from boxwright.tasks.train.run_store import file_marks, inside

_log = get_logger(__name__)
SHIPPED = ".data.tar"
"""The name of the packed data set, in the run's folder and in the launcher's files."""

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
"""The endings of files that `unpack` can read."""

_LOG_EVERY_S = 10.0
_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError, NotImplementedError,
)  # fmt: skip
_AT_ONCE = 256
# An archive that expands beyond this size, and by more than this factor, is refused: images hardly compress.
_MOST_GROWTH, _SMALL = 100, 1 << 30
_MOST_MEMBERS = 20_000_000
_MOST_NAME = 1 << 20  # bytes of a long name or of extra headers in a tar file, which are read into memory
_NAME_TYPES = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip


def open_data(config: TrainConfig) -> Path:
    """Return where the data of a run are on this machine, once they are there.

    Raises:
        DataError: the URL can't be read, or its content can't be unpacked.
        MissingDependencyError: the URL needs a package that is not installed.
    """
    if config.ship:
        return unpack_once(carried_file(SHIPPED))
    if is_url(str(config.data)):
        return fetch(str(config.data))
    return Path(config.data)


def unpack_once(archive: Path) -> Path:
    """Return the folder that an archive was unpacked to, beside it; one process unpacks and empties the archive."""
    folder = archive.with_name(f"{archive.name}.folder")
    with locked(archive.with_name(f"{archive.name}.lock")):
        if not folder.exists():
            part = archive.with_name(f"{archive.name}.part")
            unpack(archive, part)
            part.rename(folder)
            os.truncate(archive, 0)  # frees the space; other processes still look for the name
    return folder


def fetch(url: str) -> Path:
    """Return a local copy of what a URL holds: a folder, or a tar or zip file of one.

    It is kept in `data` of the cache (`~/.cache/boxwright`, moved by BOXWRIGHT_CACHE) and fetched again when it has
    changed. Several processes of a machine fetch it once. Of a set in shards only the labels are fetched; the shards
    follow when their images are needed (see `boxwright.data.shards`).

    Raises:
        DataError: there is nothing there, it can't be read or it can't be unpacked.
        MissingDependencyError: a package of fsspec's is not installed.
    """
    system, path = open_place(url, DataError)
    with _reading(url):
        found = _list(system, path, url)
    marks = {name: file_marks(info) for name, info in found.items()}
    token = hashlib.sha256(json.dumps([url, marks], sort_keys=True).encode()).hexdigest()[:24]
    root = cache_folder("data")
    root.mkdir(parents=True, exist_ok=True)
    folder = root / token
    with locked(root / f"{token}.lock"):
        if not folder.exists():
            for old in root.glob(f"{token}.*.part"):  # its writer was killed: the lock is ours
                shutil.rmtree(old)
            with tempfile.TemporaryDirectory(dir=root, prefix=f"{token}.", suffix=".part") as part:
                _download(system, path, found, Path(part, "set"), url)
                if _shards(found):
                    address_file(folder).write_text(f"{url.rstrip('/')}\n", encoding="utf-8")
                Path(part, "set").rename(folder)
    return _find_root(folder)


def _list(system: Any, path: str, url: str) -> dict[str, dict[str, Any]]:
    """Return the files below a URL by their relative names; an archive under its own name."""
    system.invalidate_cache()
    info = system.info(path)
    if info["type"] != "directory":
        if not path.endswith(SUFFIXES):
            raise DataError(
                f"{url!r} is a file, but neither a folder nor one of {', '.join(SUFFIXES)}. Name the folder of the set."
            )
        return {PurePosixPath(path).name: info}
    found = system.find(path, detail=True)
    if "file" in system.protocol:  # a path of this machine, where opening a FIFO would block forever
        found = {name: one for name, one in found.items() if _is_readable(name)}
    listed = {str(inside(str(PurePosixPath(name).relative_to(path)), url)): one for name, one in found.items()}
    if not listed:
        raise DataError(f"The folder {url!r} is empty. Check the address.")
    return listed


def _is_readable(path: str) -> bool:
    try:
        require_file(path)
    except FileNotFoundError:
        return True  # reported when it is fetched
    except OSError as error:
        _log.warning("Left out: %r, because %s.", path, error.strerror)
        return False
    return True


def _download(system: Any, path: str, found: dict[str, dict[str, Any]], folder: Path, url: str) -> None:
    shards = _shards(found)
    size = sum(int(info.get("size") or 0) for name, info in found.items() if name not in shards)
    _log.info(
        "Fetching %s: %d files, %.1f MB, into %s.", url, len(found) - len(shards), size / 1e6, folder.parent.parent
    )
    if path.endswith(SUFFIXES) and list(found) == [PurePosixPath(path).name]:
        archive = folder.with_name("archive")
        with _reading(url):
            system.get_file(path, str(archive))
        unpack(archive, folder, name=url)
        archive.unlink()
        return
    for place in {(folder / name).parent for name in found}:
        place.mkdir(parents=True, exist_ok=True)
    for name in shards:
        (folder / name).touch()
    names = sorted(set(found) - shards)
    for start in range(0, len(names), _AT_ONCE):
        group = names[start : start + _AT_ONCE]
        with _reading(url):
            system.get([found[name]["name"] for name in group], [str(folder / name) for name in group])
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"{missing[0]!r} of {url!r} could not be fetched. Start again when nothing is writing there.")


def _shards(found: Collection[str]) -> set[str]:
    """Return the files that are shards of a set, whose labels are beside them."""
    has_labels = any(PurePosixPath(name).match("annotations/*.json") for name in found)
    return {name for name in found if has_labels and name.endswith(SHARD_SUFFIXES)}


def _find_root(folder: Path) -> Path:
    """Return the folder of the set: archives often hold one folder with everything in it."""
    place = folder
    for _ in range(3):
        with suppress(DataError):
            find_layout(place)
            return place
        entries = list(place.iterdir())
        if len(entries) != 1 or not entries[0].is_dir():
            break
        place = entries[0]
    return folder


@contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            f"There is nothing at {url!r}. Check the address, and that every machine of the run sees it."
        ) from error
    except OSError as error:
        raise DataError(
            f"{url!r} can't be fetched: {error}. Check the rights of this user, and the room in "
            f"{str(cache_folder('data'))!r} (BOXWRIGHT_CACHE moves it)."
        ) from error


def pack(folder: Path, archive: Path, *, leave_out: Collection[Path] = ()) -> int:
    """Write a folder without some of its subfolders as a tar file, atomically, and return its size in bytes.

    Links become the files that they point to. Nothing is compressed: images already are.

    Raises:
        DataError: there is nothing to pack.
    """
    files = sorted(_walk(folder, {path.resolve() for path in leave_out}))
    if not files:
        raise DataError(f"{str(folder)!r} holds no files to ship. Check the path.")
    total = sum(path.stat().st_size for path in files)
    _log.info("Packing %d files of %s, %.1f MB.", len(files), folder, total / 1e6)
    done, logged_s = 0, time.monotonic()
    with whole_file(archive) as draft, tarfile.open(draft, "w", dereference=True) as tar:
        for path in files:
            tar.add(path, str(path.relative_to(folder)), recursive=False)
            done += path.stat().st_size
            if time.monotonic() - logged_s > _LOG_EVERY_S:
                logged_s = time.monotonic()
                _log.info("Packed %.0f of %.0f MB.", done / 1e6, total / 1e6)
    return archive.stat().st_size


def _walk(folder: Path, leave_out: Collection[Path]) -> Iterator[Path]:
    for place, folders, names in walk_once(folder):
        folders[:] = [name for name in folders if Path(place, name).resolve() not in leave_out]
        yield from (path for name in names if _is_readable(str(path := Path(place, name))) and path.is_file())


def unpack(archive: Path, folder: Path, *, name: str = "") -> None:
    """Write the files of a tar or zip file into a folder, which is created; `name` replaces its path in messages.

    Raises:
        DataError: it can't be read, expands too much, or a member is a link, a device, or would be outside the folder.
    """
    name = name or str(archive)
    folder.mkdir(parents=True, exist_ok=True)
    most_bytes = max(_SMALL, _MOST_GROWTH * archive.stat().st_size)
    count = total = 0

    def check(size: int) -> None:
        nonlocal count, total
        count, total = count + 1, total + size
        if total > most_bytes or count > _MOST_MEMBERS:
            raise DataError(
                f"{name!r} is not unpacked: it holds more than {most_bytes / 1e9:.1f} GB, {_MOST_GROWTH} times its own "
                f"size, or more than {_MOST_MEMBERS:,} files. If you trust it, unpack it and name the folder."
            )

    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for entry in zipped.infolist():
                    inside(entry.filename, name)
                    check(entry.file_size)
                zipped.extractall(folder)
            return
        with tarfile.open(archive, "r:*", tarinfo=_BoundedInfo) as tar:
            # Python has it since 3.11.4; it makes files readable and leaves their owner out.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            for member in tar:
                inside(member.name, name)
                check(member.size)
                if not (member.isreg() or member.isdir()):
                    raise DataError(
                        f"{name!r} holds {member.name!r}, which is a link or a device, not a file. Pack the set with "
                        "`tar --dereference --hard-dereference`."
                    )
                tar.extract(member, folder)
    except _BROKEN as error:
        raise DataError(f"{name!r} can't be unpacked: {error}. Make it again, or copy it once more.") from error


class _BoundedInfo(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_BoundedInfo":
        """Return a member's header; raise a DataError if its name or extra headers are too large for memory."""
        info = super().frombuf(buf, encoding, errors)
        if info.type in _NAME_TYPES and info.size > _MOST_NAME:
            raise DataError(f"The archive has a name or header of {info.size:,} bytes. Make it again.")
        return info
