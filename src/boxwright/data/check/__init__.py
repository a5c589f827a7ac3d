"""The linter: what is wrong with a set, before anybody trains on it."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.data.check.boxes import check_boxes, check_counts
from boxwright.data.check.files import FileFacts, check_files, check_leaks, check_repeats
from boxwright.data.check.report import RULES, CheckReport, Finding, usable
from boxwright.data.formats import Fault, Format, given_splits, read_records
from boxwright.data.records import PathText, Records

__all__ = ["RULES", "CheckReport", "Finding", "check_data", "check_records", "usable"]

Progress = Callable[[int, int], None]


def check_records(
    records: Records,
    *,
    other: Records | None = None,
    faults: Iterable[Fault] = (),
    progress: Progress | None = None,
    workers: int | None = None,
) -> CheckReport:
    """Return all that is wrong or odd about a set. Every image is read and decoded.

    Args:
        records: the set.
        other: the other part of a divided set: an image that is in both is an error here.
        faults: what the reader found wrong in the labels. Those of images of `other` don't count.
        progress: called with images done and images in all.
        workers: how many images are decoded at once, by default one on each core that may be used.

    Raises:
        UsageError: `workers` is less than 1.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers={workers!r} must be at least 1.")
    workers = workers or read_cpu().usable_cores
    facts = []
    for fact in check_files(records, workers):
        facts.append(fact)
        if progress is not None:
            progress(len(facts), len(records))
    findings = [
        *_from_faults(records, other, faults),
        *(
            Finding(rule="missing-image", image=name, message="the labels name it, but it is not there.")
            for name in records.missing
        ),
        *(finding for fact in facts for finding in fact.findings),
        *check_repeats(records, facts),
        *(check_leaks(records, facts, other, workers) if other is not None else ()),
        *check_boxes(records, _sizes(records, facts)),
        *check_counts(records),
    ]
    order = {rule: n for n, rule in enumerate(RULES)}
    return CheckReport(
        root=str(records.root),
        images=len(records) + len(records.missing),
        checked=len(records),
        boxes=len(records.boxes_xyxy),
        findings=tuple(sorted(dict.fromkeys(findings), key=lambda finding: order[finding.rule])),
    )


def check_data(
    path: PathText,
    *,
    split: str | None = None,
    names: Sequence[str] | None = None,
    format: Format | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> dict[str, CheckReport]:
    """Return a report for each part of the set at a path; a set in one piece is called "all".

    Faults in labels don't stop the reading, they are part of the reports. Parts are compared for images that are in
    both.

    Args:
        path: where the set is, as for `read_records`.
        split: check this part only.
        names: as for `read_records`.
        format: as for `read_records`.
        progress: called with images done and images in all, for each part from the start.
        workers: how many images are decoded at once.

    Raises:
        DataError: there is no set that can be read.
    """
    given = given_splits(path, format=format) if split is None else (split,)
    # Lists that join others (trainval) are checked where the others are not there.
    parts: list[str | None] = [part for part in ("train", "val", "test") if part in given]
    sets: dict[str, Records] = {}
    faults: dict[str, list[Fault]] = {}
    for part in parts or [split]:
        name = part or "all"
        faults[name] = []
        sets[name] = read_records(path, split=part, names=names, format=format, faults=faults[name])
    # Each pair once: what train and val share is told of train, what test and train share of test.
    partner = {"train": "val", "val": "test", "test": "train"}
    return {
        name: check_records(
            records, other=sets.get(partner.get(name, "")), faults=faults[name], progress=progress, workers=workers
        )
        for name, records in sets.items()
    }


def _from_faults(records: Records, other: Records | None, faults: Iterable[Fault]) -> Iterator[Finding]:
    faults = list(faults)
    if not faults:
        return
    index = {str(records.path(i)): i for i in range(len(records))}
    elsewhere = {str(other.path(i)) for i in range(len(other))} if other is not None else set()
    for fault in faults:
        i = index.get(fault.path)
        if i is not None:
            yield Finding(rule=fault.rule, image=records.relative_path(i), index=i, message=fault.message)
        elif fault.path not in elsewhere:
            inside = fault.path.startswith(f"{records.root}{os.sep}")
            image = os.path.relpath(fault.path, records.root) if inside else fault.path
            yield Finding(rule=fault.rule, image=image, message=fault.message)


def _sizes(records: Records, facts: Sequence[FileFacts]) -> NDArray[np.int32]:
    """Return the true sizes of the images, those of the labels where the file does not tell."""
    true = np.array([fact.size_hw for fact in facts], np.int32).reshape(-1, 2)
    return np.where(true > 0, true, records.sizes_hw)
