"""`_manifest.json` of the results: the run that began them, so that only the same run resumes it."""

import json
import re
from collections.abc import Iterable
from io import BytesIO
from typing import Any

from boxwright.accel.places import open_arrow
from boxwright.core.errors import DataError, UsageError
from boxwright.tasks.batch.places import TEMPORARY, list_files, write_whole

FORMAT = 1
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


def begin(out: str, run: dict[str, Any]) -> set[int]:
    """Prepare a folder or URL for a run, and return the numbers of the parts that an earlier run has finished.

    `run` holds what the results depend on: data, fingerprint, images, part_rows, model, thresholds, options, column.

    Raises:
        DataError: the images are not those of the earlier run.
        UsageError: the earlier run had other settings, or there are parts without a manifest.
    """
    system, folder = open_arrow(out)
    text = json.dumps({"format": FORMAT, **run}, indent=1, ensure_ascii=False) + "\n"
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
        if name.startswith(".part-") and name.endswith(TEMPORARY):
            system.delete_file(path)
    return parts


def _compare(out: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    if before.get("format") != FORMAT:
        raise UsageError(
            f"The results in {out!r} were begun by another version (format {before.get('format')!r}, not {FORMAT}). "
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
