"""Listing and writing files at a path or URL, with pyarrow's file systems."""

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from itertools import islice
from typing import Any

import pyarrow.fs as pafs

from boxwright.accel.places import open_arrow
from boxwright.core.files import walk_once
from boxwright.core.log import get_logger

_log = get_logger(__name__)
_LOOKED_UP_AT_ONCE = 10_000

TEMPORARY = ".part"
"""Suffix of files that are being written. Their names begin with a dot, so readers of parquet folders ignore them."""


def list_files(system: Any, folder: str) -> list[Any]:
    """Return pyarrow's infos of all files below a folder, sorted by path; none if the folder does not exist.

    On local disks broken links are included, and a folder that is linked from within itself is listed once. Names that
    are not UTF-8 are left out, with a warning: a table can't hold them.
    """
    if isinstance(system, pafs.LocalFileSystem):
        paths = _walk(folder)
        found = []
        while group := list(islice(paths, _LOOKED_UP_AT_ONCE)):
            found += system.get_file_info(group)
        kinds = {pafs.FileType.File, pafs.FileType.NotFound}
    else:
        found = system.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True))
        kinds = {pafs.FileType.File}
    return sorted((info for info in found if info.type in kinds), key=lambda info: info.path)


def _walk(folder: str) -> Iterator[str]:
    for place, _, names in walk_once(folder):
        for name in names:
            path = os.path.join(place, name)
            try:
                path.encode()
            except UnicodeEncodeError:  # bytes that Python could not read as UTF-8
                _log.warning("Left out, because its name is not UTF-8: %r. Rename it.", os.fsencode(path))
                continue
            yield path


def write_whole(place: str, name: str, data: BytesIO) -> None:
    """Write a file atomically, also if this process is killed."""
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
