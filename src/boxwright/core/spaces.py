"""Search spaces: the values that a setting may take in a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

from boxwright.core.errors import UsageError


class Suggester(Protocol):
    """What proposes values; Optuna's `Trial` is one."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float: ...  # noqa: D102
    def suggest_int(self, name: str, low: int, high: int, *, step: int, log: bool) -> int: ...  # noqa: D102
    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Real:
    """Numbers from `low` to `high`, both included.

    Attributes:
        low, high: the ends.
        default: the value without a search, if the model's signature has none.
        log: each power of ten is equally likely; for learning rates and the like.

    Example:
        >>> Real(1e-4, 1e-1, log=True).contains(0.01)
        True
    """

    low: float
    high: float
    default: float | None = None
    log: bool = False

    def __post_init__(self) -> None:
        _check_ends(self, self.low, self.high, log=self.log, kinds=(int, float))
        _check_default(self)

    def suggest(self, trial: Suggester, name: str) -> float:
        """Return the trial's value of the setting."""
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def contains(self, value: Any) -> bool:
        """Return whether the space has this value."""
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def corners(self) -> tuple[float, ...]:
        """Return the values that a setting must accept if it accepts the space."""
        return (float(self.low), float(self.high))


@dataclass(frozen=True, slots=True)
class Int:
    """Whole numbers from `low` to `high`, both included.

    Attributes:
        low, high: the ends.
        default: the value without a search, if the model's signature has none.
        step: the distance between two values; not with `log`.
        log: each power of ten is equally likely.

    Example:
        >>> Int(8, 32, step=8).contains(12)
        False
    """

    low: int
    high: int
    default: int | None = None
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        _check_ends(self, self.low, self.high, log=self.log, kinds=(int,))
        if self.step < 1 or (self.log and self.step != 1) or (self.high - self.low) % self.step:
            raise UsageError(
                f"{self}: the step must be at least 1, divide high - low, and be 1 with log. Change it or the ends."
            )
        _check_default(self)

    def suggest(self, trial: Suggester, name: str) -> int:
        """Return the trial's value of the setting."""
        return trial.suggest_int(name, self.low, self.high, step=self.step, log=self.log)

    def contains(self, value: Any) -> bool:
        """Return whether the space has this value."""
        inside = isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high
        return inside and (value - self.low) % self.step == 0

    def corners(self) -> tuple[int, ...]:
        """Return the values that a setting must accept if it accepts the space."""
        return (self.low, self.high)


class Categorical:
    """One of some values: text, numbers, booleans or None.

    Example:
        >>> Categorical("sgd", "adam")
        Categorical('sgd', 'adam')
    """

    __slots__ = ("choices", "default")

    def __init__(self, *choices: str | float | bool | None, default: str | float | bool | None = None) -> None:
        """Take the values; `default` is the value without a search, if the model's signature has none."""
        self.choices = choices
        self.default = default
        if len(set(map(repr, choices))) < 2 or len(set(map(repr, choices))) < len(choices):
            raise UsageError(f"{self} needs two or more different values.")
        if not all(value is None or isinstance(value, str | int | float) for value in choices):
            raise UsageError(f"{self}: values are text, numbers, booleans or None. Use a name for anything else.")
        _check_default(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.choices))})"

    def suggest(self, trial: Suggester, name: str) -> Any:
        """Return the trial's value of the setting."""
        return trial.suggest_categorical(name, self.choices)

    def contains(self, value: Any) -> bool:
        """Return whether the space has this value."""
        return any(type(value) is type(choice) and value == choice for choice in self.choices)

    def corners(self) -> tuple[Any, ...]:
        """Return the values that a setting must accept if it accepts the space."""
        return self.choices


class Bool(Categorical):
    """True or False.

    Example:
        >>> Bool(default=True).contains(False)
        True
    """

    __slots__ = ()

    def __init__(self, *, default: bool | None = None) -> None:
        """Take the value without a search, if the model's signature has none."""
        super().__init__(False, True, default=default)

    def __repr__(self) -> str:
        return "Bool()"


Space = Real | Int | Categorical


def parse_space(text: str) -> Space:
    """Return the space that a text describes; `space_text` writes it.

    Raises:
        UsageError: it describes none.

    Example:
        >>> parse_space("real:1e-4..1e-2:log"), parse_space("int:8..32:8"), parse_space("choice:off,balanced")
        (Real(low=0.0001, high=0.01, default=None, log=True), Int(low=8, high=32, default=None, step=8, log=False), \
Categorical('off', 'balanced'))
    """
    kind, _, rest = text.strip().partition(":")
    ends, _, option = rest.partition(":")
    low, dots, high = ends.partition("..")
    try:
        if kind == "bool" and not rest:
            return Bool()
        if kind == "choice" and rest:
            return Categorical(*(_plain(word.strip()) for word in rest.split(",")))
        if kind == "real" and dots and option in ("", "log"):
            return Real(float(low), float(high), log=option == "log")
        if kind == "int" and dots:
            step = 1 if option in ("", "log") else int(option)
            return Int(int(low), int(high), step=step, log=option == "log")
    except UsageError:
        raise
    except ValueError:
        pass
    raise UsageError(
        f"{text!r} is not a space. Write real:1e-4..1e-2, real:1e-4..1e-2:log, int:8..32, int:8..32:8 (the step), "
        "bool or choice:a,b,c."
    )


def space_text(space: Space) -> str | list[Any]:
    """Return the text of a space, for `parse_space`; a list of the values if it is a choice.

    Example:
        >>> space_text(Real(1e-4, 0.01, log=True)), space_text(Categorical("off", "balanced"))
        ('real:0.0001..0.01:log', ['off', 'balanced'])
    """
    if isinstance(space, Categorical):
        return "bool" if isinstance(space, Bool) else list(space.choices)
    kind = type(space).__name__.lower()
    option = ":log" if space.log else f":{space.step}" if isinstance(space, Int) and space.step > 1 else ""
    return f"{kind}:{space.low!r}..{space.high!r}{option}"


def _plain(word: str) -> str | float | bool | None:
    """Return the value that a word of a list means: a number, true, false, null, or text."""
    named = {"true": True, "false": False, "null": None}
    if word in named:
        return named[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _check_ends(space: object, low: float, high: float, *, log: bool, kinds: tuple[type, ...]) -> None:
    if any(isinstance(end, bool) or not isinstance(end, kinds) or not isfinite(end) for end in (low, high)):
        raise UsageError(
            f"{space}: the ends must be finite numbers{' without a fraction' if float not in kinds else ''}."
        )
    if low >= high:
        raise UsageError(f"{space}: low must be below high.")
    if log and low <= 0:
        raise UsageError(f"{space}: log needs a low above 0.")


def _check_default(space: Any) -> None:
    if space.default is not None and not space.contains(space.default):
        raise UsageError(f"{space}: default={space.default!r} is not in the space. Widen the space or leave it out.")
