"""The rules: images and boxes in, findings out."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import area_xyxy, clip_xyxy
from boxwright.core.errors import DataError
from boxwright.core.files import read_bytes, require_file
from boxwright.data.check.report import Finding
from boxwright.data.records import Records
from boxwright.data.shards import read_member, shard_of
from boxwright.data.threads import map_threads
from boxwright.vision.decode import MOST_BYTES, decode_image
from boxwright.vision.image_header import ImageHeader, looks_whole, parse_header

MOST_BOXES = 120
"""Images with more boxes get a warning: where every batch must have the same shape, training uses this many."""

_SLACK_PX = 1.0
"""A box may extend over the edge by this much: labels are rounded, and some tools count pixels from 1."""

_SMALLEST_PX = 1.0


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


def check_headers(records: Records, indices: Sequence[int], workers: int) -> Iterator[FileFacts]:
    """Yield what headers and lengths say about some of the images, in order.

    A file whose beginning or end is not that of a whole JPEG or PNG is decoded, which says what is wrong with it.
    """
    yield from map_threads(lambda n: _check_header(records, indices[n]), len(indices), workers)


def check_repeats(records: Records, facts: Sequence[FileFacts]) -> Iterator[Finding]:
    """Yield the images that are listed twice, and those with the content of an earlier one."""
    first_by_path: dict[str, int] = {}
    first_by_digest: dict[bytes, int] = {}
    for i, fact in enumerate(facts):
        before = first_by_path.setdefault(os.path.normpath(records.relative_path(i)), i)
        if before != i:
            yield _finding(records, i, "listed-twice", f"it is image {before} of the set already.")
            continue
        before = first_by_digest.setdefault(fact.digest, i) if fact.digest else i
        if before != i:
            same = np.array_equal(records.boxes(i), records.boxes(before))
            words = "" if same else ", but other boxes"
            message = f"it has the same content as {records.relative_path(before)!r}{words}."
            yield _finding(records, i, "duplicate-image", message)


def check_leaks(records: Records, facts: Sequence[FileFacts], other: Records, workers: int) -> Iterator[Finding]:
    """Yield the images whose content is in the other part of the set too."""
    lengths = {fact.file_bytes for fact in facts if fact.digest}
    if not lengths:
        return

    def digest(i: int) -> bytes:
        # Most files differ in length already and need not be read.
        try:
            if shard_of(other.path(i)) is not None or os.path.getsize(other.path(i)) in lengths:
                return _digest(_read(other, i))
        except (OSError, ValueError):
            pass
        return b""

    owner = {found: i for i, found in enumerate(map_threads(digest, len(other), workers)) if found}
    for i, fact in enumerate(facts):
        if fact.digest and fact.digest in owner:
            message = f"the other part of the set has it too, as {other.relative_path(owner[fact.digest])!r}."
            yield _finding(records, i, "leaked-image", message)


def _digest(data: bytes) -> bytes:
    """Return a hash of the content of a file."""
    return hashlib.blake2b(data, digest_size=16).digest()


def _check_file(records: Records, i: int) -> FileFacts:
    name = records.relative_path(i)

    found = partial(_finding, records, i)

    try:
        data = _read(records, i)
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

    frame, findings = _check_frame(records, i, parse_header(data), (height, width))
    return FileFacts(file_bytes=len(data), digest=digest, size_hw=frame, findings=findings)


def _read(records: Records, i: int) -> bytes:
    path = records.path(i)
    shard = shard_of(path)
    return read_bytes(path, max_bytes=MOST_BYTES) if shard is None else read_member(shard, path.name)


def _check_header(records: Records, i: int) -> FileFacts:
    path = records.path(i)
    if shard_of(path) is not None:  # it was looked at when it was converted, and the shard may be far away
        return FileFacts(size_hw=records.size_hw(i))
    try:
        length = require_file(path)
        with path.open("rb") as stream:
            header = parse_header(stream)
            whole = header is not None and looks_whole(stream)
    except (OSError, ValueError):
        header, whole = None, False
    if header is None or not whole:
        return replace(_check_file(records, i), digest=b"")
    frame, findings = _check_frame(records, i, header, header.size_hw)
    return FileFacts(file_bytes=length, size_hw=frame, findings=findings)


def _check_frame(
    records: Records, i: int, header: ImageHeader | None, size: tuple[int, int]
) -> tuple[tuple[int, int], tuple[Finding, ...]]:
    """Return the size of the frame that the labels are in, and what is wrong with it."""
    frame, labelled, boxes = size, records.size_hw(i), records.boxes(i)
    found, findings = partial(_finding, records, i), []
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
    return frame, tuple(findings)


def _show(size_hw: tuple[int, int]) -> str:
    return f"{size_hw[1]} by {size_hw[0]}"


def check_boxes(records: Records, sizes_hw: NDArray[np.int32]) -> Iterator[Finding]:
    """Yield what is wrong with boxes; `sizes_hw` (N, 2) are the images' true sizes, (0, 0) if unknown."""
    boxes = records.boxes_xyxy
    owner = np.repeat(np.arange(len(records)), np.diff(records.offsets))
    finite = _all_of(np.isfinite(boxes))
    # A non-finite box is reported once, and must not disturb the other rules.
    safe = np.where(finite[:, None], boxes, np.array([0, 0, 9, 9], np.float32))
    side = safe[:, 2:] - safe[:, :2]

    def report(rule: str, rows: NDArray[np.bool_], words: Callable[[int], str]) -> Iterator[Finding]:
        for row in np.flatnonzero(rows).tolist():
            i = int(owner[row])
            corners = ", ".join(f"{value:.6g}" for value in boxes[row].tolist())
            message = f"the {records.names[records.class_ids[row]]!r} at ({corners}) {words(row)}."
            yield _finding(records, i, rule, message, box=row - int(records.offsets[i]))

    def extent(row: int) -> str:
        return f"is {side[row, 0]:.3g} by {side[row, 1]:.3g} pixels"

    yield from report("non-finite", ~finite, lambda _: "has corners that are not finite numbers")
    solid = _all_of(side > 0)
    yield from report("degenerate-box", ~solid, extent)
    yield from report("tiny-box", solid & ~_all_of(side >= _SMALLEST_PX), extent)

    size = sizes_hw[owner]
    known = finite & solid & _all_of(size > 0)
    limit = np.concatenate((size[:, ::-1], size[:, ::-1]), axis=1).astype(np.float32)
    inside = safe.clip(0, limit)
    outside = known & (area_xyxy(inside) <= 0)
    over = np.abs(safe - inside).max(axis=1, initial=0)

    def frame(row: int) -> str:
        return f"of the image, {size[row, 1]} by {size[row, 0]} pixels"

    yield from report("box-outside", outside, lambda row: f"is outside {frame(row)}")
    sticking = known & ~outside & (over > _SLACK_PX)
    yield from report("box-over-edge", sticking, lambda row: f"sticks {over[row]:.3g} pixels out {frame(row)}")
    times = _count_repeats(owner, records)

    def repeats(row: int) -> str:
        return "repeats an earlier box of the same class" + (f" {times[row]} times" if times[row] > 1 else "")

    yield from report("duplicate-box", times > 0, repeats)


def check_counts(records: Records) -> Iterator[Finding]:
    """Yield what is odd about numbers: too many boxes in an image, none of a class, several classes of one name."""
    counts = np.diff(records.offsets)
    for i in np.flatnonzero(counts > MOST_BOXES).tolist():
        message = f"{counts[i]} boxes; training with fixed shapes (compile=true) uses at most {MOST_BOXES} per image."
        yield _finding(records, i, "many-boxes", message)
    for name, count in Counter(records.names).items():
        if count > 1:
            yield Finding(rule="duplicate-class", image="", message=f"{count} classes have the name {name!r}.")
    used = np.bincount(records.class_ids, minlength=len(records.names))
    for class_id in np.flatnonzero(used == 0).tolist():
        yield Finding(rule="unused-class", image="", message=f"The class {records.names[class_id]!r} has no box.")


def fits(boxes_xyxy: NDArray[np.float32], size_hw: tuple[int, int]) -> bool:
    """Return whether boxes lie inside an image of this size, apart from the usual slack.

    Example:
        >>> fits(np.array([[0, 0, 60.5, 40]], np.float32), (40, 60)), fits(np.array([[0, 0, 60, 50]]), (40, 60))
        (True, False)
    """
    return bool((np.abs(boxes_xyxy - clip_xyxy(boxes_xyxy, size_hw)) <= _SLACK_PX).all())


def _count_repeats(owner: NDArray[np.int64], records: Records) -> NDArray[np.int64]:
    """Return how often a box of the same image, corners and class comes again, at the first repetition of each."""
    rows = np.column_stack((owner, records.class_ids, records.boxes_xyxy)).astype(np.float64)
    times = np.zeros(len(rows), np.int64)
    # A stable sort: of equal rows the first in the file stays first.
    order = np.lexsort(rows.T[::-1])
    differs = ~_all_of(rows[order][1:] == rows[order][:-1])
    starts = np.flatnonzero(np.concatenate((np.ones(min(len(rows), 1), np.bool_), differs)))
    sizes = np.diff(np.append(starts, len(rows)))
    times[order[starts[sizes > 1] + 1]] = sizes[sizes > 1] - 1
    return times


def _all_of(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each row whether all of it is true."""
    return np.asarray(rows.all(axis=1), np.bool_)


def _finding(records: Records, i: int, rule: str, message: str, box: int | None = None) -> Finding:
    return Finding(rule=rule, image=records.relative_path(i), index=i, box=box, message=message)
