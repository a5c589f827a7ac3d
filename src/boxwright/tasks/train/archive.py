"""A data set as one file: packed on one machine, unpacked on others."""

import lzma
import tarfile
import time
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from boxwright.core.errors import DataError
from boxwright.core.files import walk_once, whole_file
from boxwright.core.log import get_logger

_log = get_logger(__name__)
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
"""The endings of files that `unpack` can read."""

_CACHE = ".boxwright"  # decoded images, kept beside a set
_LOG_EVERY_S = 10.0
_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError, NotImplementedError,
)  # fmt: skip


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
        folders[:] = [name for name in folders if name != _CACHE and Path(place, name).resolve() not in leave_out]
        yield from (path for name in names if (path := Path(place, name)).is_file())


def unpack(archive: Path, folder: Path, *, name: str = "") -> None:
    """Write the files of a tar or zip file into a folder, which is created; `name` replaces its path in messages.

    Raises:
        DataError: it can't be read, or a member is a link, a device, or would be outside the folder.
    """
    name = name or str(archive)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for entry in zipped.namelist():
                    inside(entry, name)
                zipped.extractall(folder)
            return
        with tarfile.open(archive, "r:*") as tar:
            # Python has it since 3.11.4; it makes files readable and leaves their owner out.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            for member in tar:
                inside(member.name, name)
                if not (member.isreg() or member.isdir()):
                    raise DataError(
                        f"{name!r} holds {member.name!r}, which is a link or a device, not a file. Pack the set with "
                        "`tar --dereference --hard-dereference`."
                    )
                tar.extract(member, folder)
    except _BROKEN as error:
        raise DataError(f"{name!r} can't be unpacked: {error}. Make it again, or copy it once more.") from error


def inside(path: str, name: str) -> PurePosixPath:
    """Return a member's path if it stays below the folder that the archive or store `name` is copied to.

    Raises:
        DataError: it would be outside.
    """
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts or "\\" in path or "\0" in path:
        raise DataError(f"{name!r} holds {path!r}, which would be outside its folder. Nothing of it is used.")
    return found
