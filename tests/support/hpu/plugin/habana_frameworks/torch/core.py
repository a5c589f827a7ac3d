"""`import habana_frameworks.torch.core as htcore`: registers the device; `mark_step` ends a piece of a lazy graph."""

from habana_frameworks.torch import record


def mark_step(_device: str = "") -> None:
    record.seen["mark_steps"] += 1
