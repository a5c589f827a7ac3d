"""All errors. A message says what was asked, why it fails and what to do next."""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches


class BoxwrightError(Exception):
    """Base of all errors; `exit_code` is the exit code of the command line."""

    exit_code = 1


class UsageError(BoxwrightError, ValueError):
    """A wrong option, name or combination."""

    exit_code = 2


class DataError(BoxwrightError):
    """Images, annotations or other input that can't be used."""

    exit_code = 3


class CheckpointError(BoxwrightError):
    """A model file that is missing, broken or made for another model."""

    exit_code = 4


class ConversionError(BoxwrightError):
    """A model could not be converted or exported."""

    exit_code = 5


class BudgetError(BoxwrightError):
    """No candidate stays inside the accuracy budget."""

    exit_code = 6


class WorkerError(BoxwrightError):
    """A worker process failed; the message carries its rank and traceback."""


class MissingDependencyError(BoxwrightError, ImportError):
    """An optional package is not installed; the message carries the pip command."""


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or "" when none is near.

    Example:
        >>> suggest("rey", ["spawn", "ray"])
        " Did you mean 'ray'?"
    """
    near = get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_choice(kind: str, name: str, known: Collection[str]) -> None:
    """Check that a name is one of the known ones; the error suggests the nearest and lists all of them.

    Raises:
        UsageError: it is not.
    """
    if name not in known:
        raise UsageError(f"Unknown {kind} {name!r}.{suggest(str(name), known)} Choose from: {', '.join(known)}.")


def shorten(names: Sequence[str], limit: int = 5) -> str:
    """Return the first few names for a message, and how many more there are.

    Example:
        >>> shorten(["a", "b", "c"], limit=2)
        "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
