"""What a user gives, looked at before any worker starts."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from boxwright.accel.estimator.callbacks import Callback
from boxwright.core.errors import UsageError

_MOMENTS = tuple(name for name in vars(Callback) if name.startswith(("before_", "after_")))


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a number of things as an int.

    Raises:
        UsageError: it is no whole number, or too small.

    Example:
        >>> check_count("epochs", 3)
        3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UsageError(f"{name}={value!r} is not possible. Use a whole number of at least {least}.")
    return int(value)


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return the callbacks of one `fit`.

    Raises:
        UsageError: it is no list, or something in it has not all moments of a `Callback`.
    """
    if not isinstance(callbacks, Sequence):
        raise UsageError(f"callbacks is a {type(callbacks).__name__}. Give a list of them.")
    for number, one in enumerate(callbacks):
        if isinstance(one, type):
            raise UsageError(f"callbacks[{number}] is a class. Give an object: {one.__name__}(…).")
        if not all(callable(getattr(one, moment, None)) for moment in _MOMENTS):
            raise UsageError(
                f"callbacks[{number}] is a {type(one).__name__}. Give an object of a class that inherits from "
                f"boxwright.accel.estimator.Callback and overrides some of: {', '.join(_MOMENTS)}."
            )
    return tuple(callbacks)
