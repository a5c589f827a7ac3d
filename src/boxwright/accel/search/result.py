"""The trials of a search, and what they show."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from boxwright.core.intervals import Interval
from boxwright.core.text import text_table

State = Literal["complete", "pruned", "failed", "interrupted"]
Arm = Literal["best", "defaults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial.

    Attributes:
        number: 0 is the defaults.
        settings: the values tried; empty if these are the defaults, and not values of the space.
        value: what it reached; at the point where it was stopped if it is pruned, None if there is none.
        state: `pruned` was stopped by Hyperband, `interrupted` ended with its search and was run again.
        seconds: how long it took.
        note: why it failed, or where it was stopped.
    """

    number: int
    settings: Mapping[str, Any]
    value: float | None
    state: State
    seconds: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatRow:
    """A run of the best trial's settings, or of the defaults, with a new seed."""

    arm: Arm
    seed: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        metric: what the values are.
        direction: "max" or "min".
        trials: in their order.
        best: the number of the best complete trial.
        repeats: the runs with new seeds; none if the defaults are the best trial.
        gain: how much better the best settings are than the defaults over these seeds; positive is better.
        failure: why the best settings failed when they were repeated.
    """

    metric: str
    direction: str
    trials: Sequence[TrialRow]
    best: int
    repeats: Sequence[RepeatRow]
    gain: Interval | None
    failure: str = ""

    @property
    def is_better(self) -> bool:
        """Whether the interval of the gain lies above 0."""
        return self.gain is not None and self.gain.low > 0

    @property
    def settings(self) -> dict[str, Any]:
        """The settings to use: the best trial's if they are surely better than the defaults, else none."""
        return dict(self.trials[self.best].settings) if self.is_better else {}

    def verdict(self) -> str:
        """Return what the search shows, and what to use."""
        if self.failure:
            return f"Trial {self.best} failed {self.failure}. Use the defaults."
        if self.gain is None:
            return "No trial is better than the defaults. Use the defaults."
        seeds = len({row.seed for row in self.repeats})
        measured = (
            f"{self.metric} {self.gain} over {seeds} new seeds, each bound with {self.gain.confidence:.0%} confidence"
        )
        if self.is_better:
            return f"Trial {self.best} is better than the defaults: {measured}. Use its settings."
        return (
            f"Trial {self.best} is not surely better than the defaults: {measured}. Use the defaults, or search with "
            "more trials or more repeats."
        )

    def table(self) -> str:
        """Return the trials and the verdict as text."""
        names = list(dict.fromkeys(name for row in self.trials for name in row.settings))
        head = ["trial", "state", self.metric, "seconds", *names, "note"]
        lines = [head]
        for row in self.trials:
            settings = [_short(row.settings[name]) if name in row.settings else "default" for name in names]
            numbers = ["" if row.value is None else f"{row.value:.4f}", f"{row.seconds:.1f}" if row.seconds else ""]
            lines.append([str(row.number), row.state, *numbers, *settings, row.note])
        runs = [["repeat", "seed", self.metric], *([r.arm, str(r.seed), f"{r.value:.4f}"] for r in self.repeats)]
        parts = [text_table(lines, left=2), *([text_table(runs)] if self.repeats else []), self.verdict()]
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "metric": self.metric,
            "direction": self.direction,
            "trials": [asdict(row) for row in self.trials],
            "repeats": [asdict(row) for row in self.repeats],
            "best": self.best,
            "gain": None if self.gain is None else asdict(self.gain),
            "is_better": self.is_better,
            "settings": self.settings,
            "verdict": self.verdict(),
        }


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
