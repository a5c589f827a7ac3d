"""The linter: finds what is wrong with a set before training."""

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from boxwright.core.cpu import read_cpu
from boxwright.data.check.before import CheckedBefore
from boxwright.data.check.report import RULES, CheckReport, Finding, usable
from boxwright.data.check.resume import check_resumed
from boxwright.data.check.rules import (
    FileFacts,
    check_boxes,
    check_counts,
    check_files,
    check_headers,
    check_leaks,
    check_repeats,
)
from boxwright.data.formats import Fault, Format, find_layout
from boxwright.data.records import PathText, Records

__all__ = [
    "RULES", "CheckReport", "FileFacts", "Finding", "check_data", "check_files", "check_headers", "check_records",
    "make_report", "usable",
]  # fmt: skip

_RESUMED = 1000  # images; fewer are checked again in seconds

Progress = Callable[[int, int], None]


def check_records(
    records: Records,
    *,
    other: Records | None = None,
    faults: Sequence[Fault] = (),
    progress: Progress | None = None,
) -> CheckReport:
    """Return everything that is wrong or odd in a set. Every image is read and decoded, on all usable cores.

    The check of a set of at least 1,000 images continues where an earlier one was interrupted, if nothing has changed.

    Args:
        records: the set.
        other: the other part of a divided set: an image that is in both is an error here.
        faults: what the reader found wrong in the labels.
        progress: called with the number of images done and of all images.
    """
    workers = read_cpu().usable_cores
    facts = []
    place = None
    if len(records) >= _RESUMED:
        place = CheckedBefore(records, records.select([]), full=True).place
    for fact in check_resumed(records, workers, place and place.with_suffix(".part")):
        facts.append(fact)
        if progress is not None:
            progress(len(facts), len(records))
    return make_report(records, facts, other=other, faults=faults, workers=workers)


def make_report(
    records: Records,
    facts: Sequence[FileFacts],
    *,
    other: Records | None = None,
    faults: Sequence[Fault] = (),
    workers: int = 1,
) -> CheckReport:
    """Return the report on a set whose files `check_files` has read; the arguments are those of `check_records`."""
    true_hw = np.array([fact.size_hw for fact in facts], np.int32).reshape(-1, 2)
    findings = [
        *_from_faults(records, faults),
        *(
            Finding(rule="missing-image", image=name, message="the labels name it, but it does not exist.")
            for name in records.missing
        ),
        *(finding for fact in facts for finding in fact.findings),
        *check_repeats(records, facts),
        *(check_leaks(records, facts, other, workers) if other is not None else ()),
        *check_boxes(records, np.where(true_hw > 0, true_hw, records.sizes_hw)),
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
    format: Format | None = None,
    progress: Progress | None = None,
    allow_outside: bool = False,
) -> dict[str, CheckReport]:
    """Return a report for each part of the set at a path, or for one split; a set in one piece is called "all".

    Faults in labels don't stop the reading, they become part of the reports. Parts are compared with each other for
    images that are in both. `progress` starts anew for each part; the other arguments are those of `read_records`.

    Raises:
        DataError: there is no set that can be read.
    """
    layout = find_layout(path, format, allow_outside=allow_outside)
    given = layout.splits if split is None else (split,)
    # Lists that join others (trainval) are checked only without those others.
    parts: list[str | None] = [part for part in ("train", "val", "test") if part in given]
    sets: dict[str, Records] = {}
    faults: dict[str, list[Fault]] = {}
    for part in parts or [split]:
        name = part or "all"
        faults[name] = []
        sets[name] = layout.read(part, faults=faults[name])
    # Each pair once: what train and val share is reported for train, what test and train share for test.
    partner = {"train": "val", "val": "test", "test": "train"}
    return {
        name: check_records(records, other=sets.get(partner.get(name, "")), faults=faults[name], progress=progress)
        for name, records in sets.items()
    }


def _from_faults(records: Records, faults: Sequence[Fault]) -> Iterator[Finding]:
    index = {str(records.path(i)): i for i in range(len(records))} if faults else {}
    for fault in faults:
        i = index.get(fault.path)
        inside = fault.path.startswith(f"{records.root}{os.sep}")
        image = os.path.relpath(fault.path, records.root) if inside else fault.path
        yield Finding(rule=fault.rule, image=image, index=i, message=fault.message)
