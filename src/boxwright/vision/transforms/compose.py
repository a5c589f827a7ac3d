"""Transforms made of transforms."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Transform

Step: TypeAlias = Callable[[Any], Any]


class Compose:
    """Applies the steps one after the other.

    Example:
        >>> Compose([abs, float])(-2)
        2.0
    """

    def __init__(self, transforms: Iterable[Step]) -> None:
        self.transforms = list(transforms)

    def __call__(self, img: Any) -> Any:
        """Return what the last step returns."""
        for step in self.transforms:
            img = step(img)
        return img

    def __repr__(self) -> str:
        return _show(self)


class Lambda:
    """Applies your own function.

    Example:
        >>> Lambda(lambda image: image + 1)(2)
        3
    """

    def __init__(self, lambd: Step) -> None:
        if not callable(lambd):
            raise UsageError(f"Lambda needs a function, got {lambd!r}.")
        self.lambd = lambd

    def __call__(self, img: Any) -> Any:
        """Return what the function returns."""
        return self.lambd(img)

    def __repr__(self) -> str:
        return "Lambda()"


@dataclass(eq=False, repr=False)
class RandomApply(Transform):
    """Applies all the steps with probability `p`, or none of them.

    Example:
        >>> RandomApply([abs], p=1.0)(-2)
        2
    """

    transforms: Sequence[Step] | nn.ModuleList
    p: float = 0.5

    def __post_init__(self) -> None:
        # A ModuleList stays one, so that its members are found as submodules.
        if not isinstance(self.transforms, nn.ModuleList):
            self.transforms = _steps("RandomApply", self.transforms)
        super().__post_init__()

    def change(self, img: Any) -> Any:
        """Return what the last step returns."""
        return Compose(self.transforms)(img)

    def __repr__(self) -> str:
        return _show(self, f"p={self.p}")


class RandomChoice:
    """Applies one of the steps, drawn with the weights `p` (default: all equal).

    The draw comes from torch's generator (torchvision uses Python's `random`), so one seed governs all transforms.

    Example:
        >>> RandomChoice([abs, float], p=[1, 0])(-2)
        2
    """

    def __init__(self, transforms: Sequence[Step], p: Sequence[float] | None = None) -> None:
        self.transforms = _steps("RandomChoice", transforms)
        if not self.transforms:
            raise UsageError("RandomChoice needs at least one transform to choose from.")
        if p is not None and (len(p) != len(self.transforms) or min(p) < 0 or sum(p) <= 0):
            raise UsageError(f"p={p!r} must hold one weight, 0 or more, for each of {len(self.transforms)} transforms.")
        self.p = p

    def __call__(self, img: Any) -> Any:
        """Return what the chosen step returns."""
        weights = torch.ones(len(self.transforms)) if self.p is None else torch.tensor(self.p, dtype=torch.float32)
        return self.transforms[int(torch.multinomial(weights, 1).item())](img)

    def __repr__(self) -> str:
        return _show(self, f"p={self.p}")


class RandomOrder:
    """Applies all the steps, in a new random order each time.

    The order comes from torch's generator (torchvision uses Python's `random`), so one seed governs all transforms.

    Example:
        >>> RandomOrder([abs, float])(-2)
        2.0
    """

    def __init__(self, transforms: Sequence[Step]) -> None:
        self.transforms = _steps("RandomOrder", transforms)

    def __call__(self, img: Any) -> Any:
        """Return what the last step returns."""
        return Compose(self.transforms[index] for index in torch.randperm(len(self.transforms)).tolist())(img)

    def __repr__(self) -> str:
        return _show(self)


def _steps(name: str, transforms: Sequence[Step]) -> list[Step]:
    if not isinstance(transforms, Sequence):
        raise UsageError(f"{name} needs a list of transforms, got {type(transforms).__name__}.")
    return list(transforms)


def _show(composed: Any, *more: str) -> str:
    return "\n".join([f"{type(composed).__name__}(", *(f"    {item}" for item in (*more, *composed.transforms)), ")"])
