"""`Fault`: what a reader found wrong in label files."""

from dataclasses import dataclass
from typing import Literal

from boxwright.core.errors import DataError

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something wrong in a label file.

    Attributes:
        rule: the linter's name for it, such as "unknown-class".
        severity: "error" when the image's labels can't be trusted.
        path: the image, or the label file where there is no image to name.
        message: what is wrong, a sentence.
    """

    rule: str
    severity: Severity
    path: str
    message: str


def note(faults: list[Fault] | None, fault: Fault) -> None:
    """Put a fault into the list; without a list, refuse an error and pass over a warning.

    Raises:
        DataError: there is no list and the fault is an error.

    Example:
        >>> found = []
        >>> note(found, Fault(rule="bad-label", severity="error", path="a.txt", message="'a.txt': line 1 is empty."))
        >>> len(found)
        1
    """
    if faults is not None:
        faults.append(fault)
    elif fault.severity == "error":
        raise DataError(f"{fault.message} Correct it or take it out; `boxwright data check` lists all such faults.")
