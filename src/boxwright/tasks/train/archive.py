"""A data set as one file: packed where it is, unpacked where it is needed."""

import lzma
import os
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from boxwright.core.errors import DataError
from boxwright.core.log import get_logger

_log = get_logger(__name__)
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
"""How the names of files end that `unpack` can read."""

_OURS = ".boxwright"  # decoded images, kept beside a set
_TOLD_S = 10.0
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,
    NotImplementedError,
)


def pack(folder: Path, archive: Path, *, leave_out: Collection[Path] = ()) -> int:
    """Write a folder as a tar file, whole or not at all, and return its size in bytes.

    Links become what they lead to. Nothing is compressed: images are already.

    Args:
        folder: what to pack.
        archive: the file to write.
        leave_out: folders that are not wanted.

    Raises:
        DataError: there is nothing to pack.
    """
    files = sorted(_walk(folder, {path.resolve() for path in leave_out}))
    if not files:
        raise DataError(f"{str(folder)!r} holds no files to ship. Check the path.")
    total = sum(path.stat().st_size for path in files)
    _log.info("Packing %d files of %s, %.1f MB.", len(files), folder, total / 1e6)
    part = archive.with_name(f"{archive.name}.part")
    done, told_s = 0, time.monotonic()
    try:
        with tarfile.open(part, "w", dereference=True) as tar:
            for path in files:
                tar.add(path, str(path.relative_to(folder)), recursive=False)
                done += path.stat().st_size
                if time.monotonic() - told_s > _TOLD_S:
                    told_s = time.monotonic()
                    _log.info("Packed %.0f of %.0f MB.", done / 1e6, total / 1e6)
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)
    return archive.stat().st_size


def _walk(folder: Path, leave_out: Collection[Path]) -> Iterator[Path]:
    """Yield the files below a folder, through links too, each folder once."""
    seen = set(leave_out)
    for place, folders, files in os.walk(folder, followlinks=True):
        real = Path(place).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if name != _OURS]
        yield from (path for name in files if (path := Path(place, name)).is_file())


def unpack(archive: Path, folder: Path, *, told: str = "") -> None:
    """Write the files of a tar or zip file into a folder.

    Args:
        archive: the file.
        folder: where they go; it is made where it is missing.
        told: what the user knows the file as; its path by default.

    Raises:
        DataError: it can't be read, or a member is a link, a device, or would lie outside the folder.
    """
    told = told or str(archive)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, folder, told)
        else:
            _unpack_tar(archive, folder, told)
    except _BROKEN as error:
        raise DataError(f"{told!r} can't be unpacked: {error}. Make it again, or copy it once more.") from error


def _unpack_tar(archive: Path, folder: Path, told: str) -> None:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            path = _inside(folder, member.name, told)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            source = tar.extractfile(member) if member.isreg() else None
            if source is None:
                raise DataError(
                    f"{told!r} holds {member.name!r}, which is a link or a device, not a file. Pack the set with "
                    "`tar --dereference --hard-dereference`."
                )
            _write(source, path)
            os.utime(path, (member.mtime, member.mtime))


def _unpack_zip(archive: Path, folder: Path, told: str) -> None:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            path = _inside(folder, member.filename, told)
            if member.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            with zipped.open(member) as source:
                _write(source, path)


def _write(source: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _inside(folder: Path, name: str, told: str) -> Path:
    return folder / inside(name, told)


def inside(name: str, told: str) -> PurePosixPath:
    """Return the path of a member below the folder that it goes to.

    Raises:
        DataError: it would lie outside.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise DataError(f"{told!r} holds {name!r}, which would lie outside its folder. Nothing of it is used.")
    return path
