"""Folders and files of this machine or behind a URL, by pyarrow's file systems."""

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from itertools import islice
from typing import Any

import pyarrow.fs as pafs

from boxwright.accel.places import open_arrow
from boxwright.core.log import get_logger

_log = get_logger(__name__)
_LOOKED_UP_AT_ONCE = 10_000

TEMPORARY = ".part"
"""Ending of files that are being written. Their names begin with a dot: readers of parquet folders pass over them."""


def list_files(system: Any, folder: str) -> list[Any]:
    """Return what pyarrow knows of every file below a folder, sorted by path; none for a folder that does not exist.

    On this machine's disks a link to nowhere is in the list too, and a folder that is linked from within itself is
    there once. Names that are not UTF-8 are left out, with a warning: no table can hold them.
    """
    if isinstance(system, pafs.LocalFileSystem):
        found = [info for some in _batches(_walk(folder)) for info in system.get_file_info(some)]
        kinds = {pafs.FileType.File, pafs.FileType.NotFound}
    else:
        found = system.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True))
        kinds = {pafs.FileType.File}
    return sorted((info for info in found if info.type in kinds), key=lambda info: info.path)


def _walk(folder: str) -> Iterator[str]:
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        here = os.stat(place)
        if (here.st_dev, here.st_ino) in seen:
            folders.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        for name in names:
            path = os.path.join(place, name)
            try:
                path.encode()
            except UnicodeEncodeError:  # bytes that Python could not read as UTF-8
                _log.warning("Left out, because its name is not UTF-8: %r. Rename it.", os.fsencode(path))
                continue
            yield path


def _batches(paths: Iterator[str]) -> Iterator[list[str]]:
    while some := list(islice(paths, _LOOKED_UP_AT_ONCE)):
        yield some


def write_whole(place: str, name: str, data: BytesIO) -> None:
    """Write a file so that it is there whole or not at all, whoever is killed meanwhile."""
    system, folder = open_arrow(place)
    temporary, final = f"{folder}/.{name}.{uuid.uuid4().hex}{TEMPORARY}", f"{folder}/{name}"
    if isinstance(system, pafs.LocalFileSystem):
        try:
            with open(temporary, "wb") as file:
                file.write(data.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, final)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return
    with system.open_output_stream(temporary) as stream:
        stream.write(data.getbuffer())
    try:
        system.move(temporary, final)
    except OSError:  # some file systems don't move onto a file; another worker has written the same one then
        if system.get_file_info(final).type != pafs.FileType.File:
            raise
        system.delete_file(temporary)
