"""What a run left behind, and what of it changes from step to step."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULT = "result.json"
"""The file of a run's folder that `TrainResult.to_dict` is written to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a run left behind.

    Attributes:
        checkpoint: the best weights, or the last ones where nothing was scored.
        best: metrics of the best evaluation; empty where there was none.
        last: metrics of the last one.
        steps: how many steps the run has done.
        images_per_s: of whole training, data included, evaluation not.
        stopped: why it ended early: "", "patience", or "signal" and its number.
        final_loss: the last step's; None where no step was left to do.
        peak_mb: the most memory that the first process had.
    """

    checkpoint: Path
    best: dict[str, float]
    last: dict[str, float]
    steps: int
    images_per_s: float
    stopped: str
    final_loss: float | None
    peak_mb: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "checkpoint": str(self.checkpoint),
            "best": self.best,
            "last": self.last,
            "steps": self.steps,
            "images_per_s": round(self.images_per_s, 2),
            "stopped": self.stopped,
            "final_loss": None if self.final_loss is None else round(self.final_loss, 4),
            "peak_mb": round(self.peak_mb),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainResult":
        """Return the result that `to_dict` described."""
        return cls(**{**values, "checkpoint": Path(values["checkpoint"])})


@dataclass(slots=True)
class RunState:
    """What changes while a run goes on, and what a checkpoint holds beside weights and optimizer."""

    step: int = 0
    position: tuple[int, int] = (0, 0)
    best: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    without_better: int = 0
