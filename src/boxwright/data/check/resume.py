"""`check_resumed`: the facts about all images of a set, from where an interrupted check ended."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from boxwright.core.log import get_logger
from boxwright.data.check.report import Finding
from boxwright.data.check.rules import FileFacts, check_files
from boxwright.data.records import Records

_log = get_logger(__name__)


def check_resumed(records: Records, workers: int, notes: Path | None) -> Iterator[FileFacts]:
    """Yield the facts about every image as `check_files` does, and note them, so that the next check can continue.

    Args:
        records: the set.
        workers: how many threads decode.
        notes: a file for this state of the set, which is removed at the end; None to note nothing.
    """
    everything = range(len(records))
    if notes is None:
        yield from check_files(records, everything, workers)
        return
    known, end = _read_notes(notes, len(records))
    if known:
        _log.info("Resuming the check that ended after %d of %d images.", len(known), len(records))
    yield from known
    rest = everything[len(known) :]
    try:
        notes.parent.mkdir(parents=True, exist_ok=True)
        out = notes.open("r+b" if notes.exists() else "w+b")
    except OSError as error:
        _log.debug("The check can't be resumed if it is interrupted: %s.", error)
        yield from check_files(records, rest, workers)
        return
    with out:
        out.truncate(end)  # what a crash left behind the last whole line
        out.seek(end)
        for i, fact in zip(rest, check_files(records, rest, workers), strict=True):
            with suppress(OSError):  # a full disk must not end the check
                out.write(_format(i, fact))
            yield fact
    notes.unlink(missing_ok=True)


def _format(i: int, fact: FileFacts) -> bytes:
    findings = [asdict(finding) for finding in fact.findings]
    return json.dumps([i, fact.file_bytes, fact.digest.hex(), fact.size_hw, findings]).encode() + b"\n"


def _read_notes(notes: Path, count: int) -> tuple[list[FileFacts], int]:
    """Return the facts that were noted without a gap, and where they end in the file."""
    facts: list[FileFacts] = []
    end = 0
    with suppress(OSError, ValueError, TypeError, KeyError), notes.open("rb") as lines:
        for line in lines:
            i, file_bytes, digest, (height, width), findings = json.loads(line)
            if i != len(facts) or i >= count or not line.endswith(b"\n"):
                break
            found = tuple(Finding(**finding) for finding in findings)
            size_hw = (int(height), int(width))
            facts.append(
                FileFacts(file_bytes=file_bytes, digest=bytes.fromhex(digest), size_hw=size_hw, findings=found)
            )
            end += len(line)
        os.utime(notes)
    return facts, end
