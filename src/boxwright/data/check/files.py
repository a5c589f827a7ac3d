"""Rules about image files: can they be read, do they match the labels, are there duplicates."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from boxwright.core.errors import DataError
from boxwright.data.check.boxes import fits
from boxwright.data.check.report import Finding
from boxwright.data.records import Records
from boxwright.data.threads import map_threads
from boxwright.vision.decode import decode_image, parse_header


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What reading one image showed.

    Attributes:
        file_bytes: the length of the file, -1 if it can't be read.
        digest: a hash of its content, empty if it can't be read.
        size_hw: height and width for the rules about boxes, (0, 0) if unknown.
        findings: what is wrong with it.
    """

    file_bytes: int = -1
    digest: bytes = b""
    size_hw: tuple[int, int] = (0, 0)
    findings: tuple[Finding, ...] = ()


def check_files(records: Records, indices: Sequence[int], workers: int) -> Iterator[FileFacts]:
    """Yield the facts about some of the images, in order; each file is read and decoded once."""
    yield from map_threads(lambda n: _check_file(records, indices[n]), len(indices), workers)


def check_repeats(records: Records, facts: Sequence[FileFacts]) -> Iterator[Finding]:
    """Yield the images that are listed twice, and those with the content of an earlier one."""
    first_by_path: dict[str, int] = {}
    first_by_digest: dict[bytes, int] = {}
    for i, fact in enumerate(facts):
        name = records.relative_path(i)
        before = first_by_path.setdefault(os.path.normpath(name), i)
        if before != i:
            yield Finding(rule="listed-twice", image=name, index=i, message=f"it is image {before} of the set already.")
            continue
        before = first_by_digest.setdefault(fact.digest, i) if fact.digest else i
        if before != i:
            same = np.array_equal(records.boxes(i), records.boxes(before))
            words = "" if same else ", but other boxes"
            message = f"it has the same content as {records.relative_path(before)!r}{words}."
            yield Finding(rule="duplicate-image", image=name, index=i, message=message)


def check_leaks(records: Records, facts: Sequence[FileFacts], other: Records, workers: int) -> Iterator[Finding]:
    """Yield the images whose content is in the other part of the set too."""
    lengths = {fact.file_bytes for fact in facts if fact.digest}

    def digest(i: int) -> bytes:
        # Most files differ in length already and need not be read.
        try:
            if os.path.getsize(other.path(i)) in lengths:
                return _digest(other.path(i).read_bytes())
        except (OSError, ValueError):
            pass
        return b""

    owner = {found: i for i, found in enumerate(map_threads(digest, len(other), workers)) if found}
    for i, fact in enumerate(facts):
        if fact.digest and fact.digest in owner:
            message = f"the other part of the set has it too, as {other.relative_path(owner[fact.digest])!r}."
            yield Finding(rule="leaked-image", image=records.relative_path(i), index=i, message=message)


def _digest(data: bytes) -> bytes:
    """Return a hash of the content of a file."""
    return hashlib.blake2b(data, digest_size=16).digest()


def _check_file(records: Records, i: int) -> FileFacts:
    name = records.relative_path(i)

    def found(rule: str, message: str) -> Finding:
        return Finding(rule=rule, image=name, index=i, message=message)

    try:
        data = records.path(i).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return FileFacts(findings=(found("unreadable", f"it can't be read: {reason}."),))
    if not data:
        return FileFacts(file_bytes=0, findings=(found("empty-file", "the file has 0 bytes."),))
    digest = _digest(data)
    try:
        height, width = decode_image(data, name).shape[:2]
    except DataError as error:
        message = str(error).removeprefix(f"Cannot read image {name!r}: ")
        rule = "truncated" if "cut off" in message else "unreadable"
        return FileFacts(file_bytes=len(data), digest=digest, findings=(found(rule, message),))

    size = frame = (height, width)
    header, labelled, boxes = parse_header(data), records.size_hw(i), records.boxes(i)
    findings = []
    if header is not None and header.orientation != 1 and header.size_hw == size:
        stored = header.stored_hw
        if stored != size and (labelled == stored or (not fits(boxes, size) and fits(boxes, stored))):
            message = (
                f"EXIF turns it to {_show(size)}, but the labels are in the stored frame, {_show(stored)}. "
                "Turn the boxes, or save the image upright."
            )
            findings.append(found("exif-frame", message))
            frame = stored  # the boxes are judged in the frame they are in: one finding for one fault
        else:
            message = (
                f"EXIF turns it (orientation {header.orientation}). That is applied; boxes must be in the displayed "
                f"frame, {_show(size)}."
            )
            findings.append(found("exif-rotated", message))
    if frame == size and min(labelled) and labelled != size:
        findings.append(found("wrong-size", f"the labels say {_show(labelled)}, the image is {_show(size)}."))
    return FileFacts(file_bytes=len(data), digest=digest, size_hw=frame, findings=tuple(findings))


def _show(size_hw: tuple[int, int]) -> str:
    return f"{size_hw[1]} by {size_hw[0]}"
