"""The linter's result: `Finding`, `CheckReport`, and `usable`, which leaves bad images out."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from boxwright.core.errors import DataError, UsageError, shorten
from boxwright.data.formats.files import read_text, write_text
from boxwright.data.records import PathText, Records

Severity = Literal["error", "warning"]

RULES: dict[str, tuple[Severity, str]] = {
    "bad-label": ("error", "a label file or an entry in it can't be read"),
    "outside-folder": ("error", "the set names a file outside of its folder"),
    "unknown-class": ("error", "a box of a class that the set does not have"),
    "missing-image": ("error", "the labels name an image that does not exist"),
    "unreadable": ("error", "an image that can't be decoded"),
    "empty-file": ("error", "an image of 0 bytes"),
    "truncated": ("error", "an image that is cut off"),
    "exif-frame": ("error", "the labels are in the stored frame of an image that EXIF turns"),
    "wrong-size": ("error", "the labels give another size than the image has"),
    "listed-twice": ("error", "an image that the labels list twice"),
    "leaked-image": ("error", "the other part of the set has an image with the same content"),
    "non-finite": ("error", "corners that are not a number or infinite"),
    "degenerate-box": ("error", "a box without width or height"),
    "box-outside": ("error", "a box completely outside of the image"),
    "negative-area": ("error", "an object whose area is below 0; the area of its box is used"),
    "duplicate-class": ("error", "several classes have the same name"),
    "unlabelled-image": ("warning", "an image without labels"),
    "exif-rotated": ("warning", "an image that EXIF turns; boxes must be in the displayed frame"),
    "duplicate-image": ("warning", "two images with the same content"),
    "tiny-box": ("warning", "a box less than a pixel wide or high"),
    "box-over-edge": ("warning", "a box that extends over the edge of the image"),
    "duplicate-box": ("warning", "a box that appears twice"),
    "many-boxes": ("warning", "more boxes in an image than training uses where shapes are fixed"),
    "unused-class": ("warning", "a class without a box"),
}
"""Every rule with its severity and what it finds, in the order of reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong or odd.

    Attributes:
        rule: its name in `RULES`, such as "box-outside".
        image: the image below the set's root, another file if there is no image, "" for the whole set.
        message: a sentence.
        index: the image's position in the set, None if it is not in it.
        box: the box's position in the image, None if it is not about one box.
    """

    rule: str
    image: str
    message: str
    index: int | None = None
    box: int | None = None

    @property
    def severity(self) -> Severity:
        """Either "error", which must not be trained on, or "warning"."""
        return RULES[self.rule][0]

    def __str__(self) -> str:
        box = "" if self.box is None else f" box {self.box}"
        return f"{self.image}{box}: {self.message}" if self.image else self.message


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Everything that the linter found in a set.

    Attributes:
        root: the folder that image names are relative to.
        images: how many images the labels name, including missing ones.
        checked: how many of them are in the set.
        boxes: how many boxes those have.
        findings: in the order of `RULES`, which has errors first.
    """

    root: str
    images: int
    checked: int
    boxes: int
    findings: tuple[Finding, ...] = ()

    @classmethod
    def load(cls, path: PathText) -> "CheckReport":
        """Return the report that `save` wrote.

        Raises:
            DataError: the file is missing or is not a report.
        """
        try:
            values = json.loads(read_text(Path(path)))
            found = ({key: value for key, value in f.items() if key != "severity"} for f in values["findings"])
            numbers = {key: values[key] for key in ("root", "images", "checked", "boxes")}
            return cls(**numbers, findings=tuple(Finding(**finding) for finding in found))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{str(path)!r} is not a data report: {error!r}. Check the data again.") from error

    @cached_property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that must not be trained on."""
        return tuple(f for f in self.findings if f.severity == "error")

    @cached_property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that may be intended."""
        return tuple(f for f in self.findings if f.severity == "warning")

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    @cached_property
    def bad_names(self) -> tuple[str, ...]:
        """The names of the images with errors, including missing ones."""
        return tuple(dict.fromkeys(f.image for f in self.errors if f.image))

    @property
    def error_fraction(self) -> float:
        """The fraction of all images that have an error or are missing."""
        return len(self.bad_names) / max(self.images, 1)

    def bad_images(self) -> list[int]:
        """Return the positions in the set of the images with errors."""
        return sorted({f.index for f in self.errors if f.index is not None})

    def counts(self) -> dict[str, int]:
        """Return how many findings each rule has, errors first."""
        return dict(Counter(f.rule for f in self.findings))

    def summary(self) -> str:
        """Return one sentence."""
        parts = []
        if self.errors:
            where = f" in {_count(len(self.bad_names), 'image')}" if self.bad_names else ""
            parts.append(_count(len(self.errors), "error") + where)
        if self.warnings:
            parts.append(_count(len(self.warnings), "warning"))
        size = f"{_count(self.images, 'image')} with {_count(self.boxes, 'box', 'boxes')}"
        return f"{size}: {', '.join(parts) or 'nothing wrong'}."

    def lines(self, limit: int = 5) -> list[str]:
        """Return the report as text lines, with at most `limit` findings of each rule."""
        out = [self.summary()]
        for rule, count in self.counts().items():
            out.append(f"{RULES[rule][0]} {rule}: {count}")
            out += [f"  {finding}" for finding in self.findings if finding.rule == rule][:limit]
            if count > limit:
                out.append(f"  and {count - limit} more")
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {
            "root": self.root,
            "images": self.images,
            "checked": self.checked,
            "boxes": self.boxes,
            "error_fraction": self.error_fraction,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "counts": self.counts(),
            "findings": [asdict(f) | {"severity": f.severity} for f in self.findings],
        }

    def save(self, path: PathText) -> None:
        """Write the report as JSON and make its folder.

        Raises:
            DataError: the file can't be written.
        """
        write_text(Path(path), json.dumps(self.to_dict(), indent=1) + "\n")


def usable(
    records: Records, report: CheckReport, *, threshold: float = 0.05, report_path: PathText | None = None
) -> Records:
    """Return the set without the images that have errors.

    Args:
        records: the set.
        report: the result of `check_records` for this set.
        threshold: the fraction of the images that may have errors.
        report_path: where the report was saved, for the error message.

    Raises:
        DataError: more images than that have errors, or no good one is left.
        UsageError: the report is about another set, or the threshold is not a fraction.
    """
    if not 0 <= threshold <= 1:
        raise UsageError(f"threshold={threshold!r} is not a fraction of the images. Use a number from 0 to 1.")
    if report.checked != len(records) or report.root != str(records.root):
        raise UsageError(
            f"The report is about {report.checked} images in {report.root!r}, the set has {len(records)} in "
            f"{str(records.root)!r}. Check this set first."
        )
    bad = report.bad_images()
    see = f" The whole report is in {str(report_path)!r}." if report_path is not None else ""
    if report.error_fraction > threshold:
        raise DataError(
            f"{len(report.bad_names)} of {report.images} images have errors ({report.error_fraction:.1%}), more than "
            f"the {threshold:.1%} that are allowed: {shorten(report.bad_names)}. First: {report.errors[0]}{see} "
            "Correct them, or raise the threshold."
        )
    if len(records) and len(bad) == len(records):
        raise DataError(f"All {len(records)} images have errors. First: {report.errors[0]}{see}")
    return records.select(np.delete(np.arange(len(records)), bad)) if bad else records


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
