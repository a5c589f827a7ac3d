"""The files of a batch run at a path or URL: listed and written with pyarrow, and the results' `_manifest.json`."""

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from boxwright.accel.places import open_arrow
from boxwright.core.errors import DataError, UsageError
from boxwright.core.files import naming, walk_once
from boxwright.core.log import get_logger

_log = get_logger(__name__)
_LOOKED_UP_AT_ONCE = 10_000
# Suffix of files that are being written. Their names begin with a dot, so readers of parquet folders ignore them.
_TEMPORARY = ".part"
_FORMAT = 1
_FILE = "_manifest.json"
_PART = re.compile(r"part-(\d{5,})\.parquet")
# What messages call each entry; the images have their own message.
_WORDS = {
    "data": "the input",
    "part_rows": "the number of images per part",
    "model": "the model",
    "thresholds": "the thresholds",
    "options": "the options of the model",
    "column": "the column of the images",
}


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
        for info in found:
            if info.type == pafs.FileType.Unknown:
                _log.warning("Left out, because it is a FIFO, a device or a socket: %r.", info.path)
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
    temporary, final = f"{folder}/.{name}.{uuid.uuid4().hex}{_TEMPORARY}", f"{folder}/{name}"
    if isinstance(system, pafs.LocalFileSystem):
        try:
            with naming(Path(final), Path(temporary)):
                with open(temporary, "wb") as file:
                    file.write(data.getbuffer())
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, final)
        except BaseException:
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


def begin_results(out: str, run: dict[str, Any]) -> set[int]:
    """Prepare a folder or URL for a run, and return the numbers of the parts that an earlier run has finished.

    `run` holds what the results depend on: data, fingerprint, images, part_rows, model, thresholds, options, column.

    Raises:
        DataError: the images are not those of the earlier run.
        UsageError: the earlier run had other settings, or there are parts without a manifest.
    """
    system, folder = open_arrow(out)
    text = json.dumps({"format": _FORMAT, **run}, indent=1, ensure_ascii=False) + "\n"
    try:
        system.create_dir(folder, recursive=True)
        found = {info.path.rpartition("/")[2]: info.path for info in list_files(system, folder)}
        before = None
        if _FILE in found:
            with system.open_input_stream(found[_FILE]) as stream:
                before = json.loads(stream.read())
    except (OSError, ValueError) as error:
        raise UsageError(f"The folder of the results, {out!r}, can't be used: {error}") from error
    parts = _part_numbers(found)
    if before is None:
        if parts:
            raise UsageError(f"{out!r} holds results of a run without {_FILE}. Choose another folder.")
        write_whole(out, _FILE, BytesIO(text.encode()))
    else:
        _compare(out, before, json.loads(text))
    for name, path in found.items():  # left by killed workers
        if name.startswith(".part-") and name.endswith(_TEMPORARY):
            system.delete_file(path)
    return parts


def _compare(out: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    if before.get("format") != _FORMAT:
        raise UsageError(
            f"The results in {out!r} were begun by another version (format {before.get('format')!r}, not {_FORMAT}). "
            "Choose another folder."
        )
    for name, what in _WORDS.items():
        if before.get(name) != now[name]:
            raise UsageError(
                f"The run in {out!r} was begun with another {name}: {what} was {before.get(name)!r} and is "
                f"{now[name]!r}. Use the same, or choose another folder."
            )
    if before.get("fingerprint") != now["fingerprint"]:
        raise DataError(
            f"The images in {now['data']!r} are not those that the run in {out!r} was begun with "
            f"({before.get('images')} then, {now['images']} now; names, sizes and times count). "
            "Choose another folder for the results."
        )


def list_parts(out: str) -> set[int]:
    """Return the numbers of the parts that are there."""
    system, folder = open_arrow(out)
    return _part_numbers(info.path.rpartition("/")[2] for info in list_files(system, folder))


def _part_numbers(names: Iterable[str]) -> set[int]:
    return {int(match[1]) for name in names if (match := _PART.fullmatch(name))}
