"""What a training run returns."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULT = "result.json"
"""The file of a run's folder with `TrainResult.to_dict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a training run returns.

    Attributes:
        checkpoint: the best weights, or the last ones if nothing was scored.
        best: metrics of the best evaluation; empty if there was none.
        last: metrics of the last one.
        steps: how many steps the run has done.
        images_per_s: of whole training, data included, evaluation not.
        stopped: why it ended early: "", "patience", or "signal" and its number.
        final_loss: the last step's; None if no step was left to do.
        peak_mb: peak memory of the first process.
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
            **asdict(self),
            "checkpoint": str(self.checkpoint),
            "images_per_s": round(self.images_per_s, 2),
            "final_loss": None if self.final_loss is None else round(self.final_loss, 4),
            "peak_mb": round(self.peak_mb),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainResult":
        """Return the result that `to_dict` described."""
        return cls(**{**values, "checkpoint": Path(values["checkpoint"])})
