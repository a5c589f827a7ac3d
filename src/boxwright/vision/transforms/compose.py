"""Transforms made of transforms."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.transforms import chance

Step: TypeAlias = Callable[[Any], Any]


class Compose:
    """Gives what the steps make of an image, one after the other.

    Example:
        >>> Compose([abs, float])(-2)
        2.0
    """

    def __init__(self, transforms: Iterable[Step]) -> None:
        self.transforms = list(transforms)

    def __call__(self, img: Any) -> Any:
        """Return what the last step gives."""
        for step in self.transforms:
            img = step(img)
        return img

    def __repr__(self) -> str:
        return _show("Compose", self.transforms)


class Lambda:
    """Gives what your own function makes of the image.

    Example:
        >>> Lambda(lambda image: image + 1)(2)
        3
    """

    def __init__(self, lambd: Step) -> None:
        if not callable(lambd):
            raise UsageError(f"Lambda needs a function, got {lambd!r}.")
        self.lambd = lambd

    def __call__(self, img: Any) -> Any:
        """Return what the function gives."""
        return self.lambd(img)

    def __repr__(self) -> str:
        return "Lambda()"


class RandomApply(nn.Module):
    """Gives what all the steps make of the image with probability `p`, else the image itself.

    Example:
        >>> RandomApply([abs], p=1.0)(-2)
        2
    """

    def __init__(self, transforms: Sequence[Step] | nn.ModuleList, p: float = 0.5) -> None:
        super().__init__()
        # A ModuleList stays one, so that its members are found as submodules.
        self.transforms = transforms if isinstance(transforms, nn.ModuleList) else _steps("RandomApply", transforms)
        self.p = chance.probability(p)

    def forward(self, img: Any) -> Any:
        """Return the changed image or the image itself."""
        if chance.happens(self.p):
            for step in self.transforms:
                img = step(img)
        return img

    def __repr__(self) -> str:
        return _show("RandomApply", self.transforms, f"p={self.p}")


class RandomChoice:
    """Gives what one of the steps makes of the image, drawn with the weights `p` (default: all alike).

    The draw comes from torch's generator (torchvision asks Python's `random`), so one seed rules all transforms.

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
        """Return the changed image."""
        weights = torch.ones(len(self.transforms)) if self.p is None else torch.tensor(self.p, dtype=torch.float32)
        return self.transforms[int(torch.multinomial(weights, 1).item())](img)

    def __repr__(self) -> str:
        return _show("RandomChoice", self.transforms, f"p={self.p}")


class RandomOrder:
    """Gives what all the steps make of the image, in a new random order each time.

    The order comes from torch's generator (torchvision asks Python's `random`), so one seed rules all transforms.

    Example:
        >>> RandomOrder([abs, float])(-2)
        2.0
    """

    def __init__(self, transforms: Sequence[Step]) -> None:
        self.transforms = _steps("RandomOrder", transforms)

    def __call__(self, img: Any) -> Any:
        """Return the changed image."""
        for index in torch.randperm(len(self.transforms)).tolist():
            img = self.transforms[index](img)
        return img

    def __repr__(self) -> str:
        return _show("RandomOrder", self.transforms)


def _steps(name: str, transforms: Sequence[Step]) -> list[Step]:
    if not isinstance(transforms, Sequence):
        raise UsageError(f"{name} needs a list of transforms, got {type(transforms).__name__}.")
    return list(transforms)


def _show(name: str, transforms: Iterable[Any], *more: str) -> str:
    return "\n".join([f"{name}(", *(f"    {item}" for item in (*more, *transforms)), ")"])
