"""Checks of the arguments that all networks share."""

from typing import Any

from boxwright.core.errors import UsageError


def refuse_weights(name: str, pretrained: Any, weights: Any) -> None:
    """Check that no published weights are asked for: nothing is downloaded."""
    if pretrained or weights is not None:
        asked = f"weights={weights!r}" if weights is not None else f"pretrained={pretrained!r}"
        raise UsageError(
            f"{name}({asked}): nothing is downloaded. Load a state dict of your own with model.load_state_dict()."
        )


def check_classes(num_classes: int) -> None:
    """Check that there is at least one class."""
    if num_classes < 1:
        raise UsageError(f"num_classes={num_classes!r} must be at least 1.")
