"""What transforms share: their base class, the random draws and the checks of arguments.

Draws come from torch's global generator, so `torch.manual_seed` and worker seeding govern all transforms. Every check
here and in the other files raises a `UsageError`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeAlias, cast

import numpy as np
import torch
from torch import nn

from boxwright.core.errors import UsageError

_MOST = 1 << 20  # pixels of a side; OpenCV fails with its own error above 31 bits

Range: TypeAlias = Any
"""An argument that is one number or (smallest, largest); the transform keeps the pair."""


@dataclass(eq=False, repr=False)
class Transform(nn.Module):
    """Base of the transforms: keeps the arguments, shows them and calls `function(image, *arguments)`.

    A subclass is a dataclass whose fields are the arguments; `field(repr=False)` keeps one out of the repr. A subclass
    with a field `p` changes the image with this probability and returns the image itself otherwise.
    """

    function: ClassVar[Callable[..., Any]]
    # Not annotated, so not a field: each subclass puts it at its own place among the arguments.
    p = cast("float | None", None)

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Return a module whose fields are still to be set, so that torch registers the modules among them."""
        self = super().__new__(cls)
        nn.Module.__init__(self)
        return self

    def __post_init__(self) -> None:
        if self.p is not None:
            check_range("p", 0, self.p, 1)

    def forward(self, img: Any) -> Any:
        """Return the changed image, or the image itself where `p` decides against the change."""
        return self.change(img) if self.p is None or happens(self.p) else img

    def change(self, img: Any) -> Any:
        """Return the changed image."""
        names: tuple[str, ...] = self.__match_args__
        return self.function(img, *(getattr(self, name) for name in names if name != "p"))

    def extra_repr(self) -> str:
        """Return the arguments as text."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.repr}
        return ", ".join(f"{name}={v.value if isinstance(v, Enum) else v}" for name, v in values.items())


def happens(probability: float) -> bool:
    """Return True with this probability."""
    return torch.rand(1).item() < probability


def uniform(low: float, high: float) -> float:
    """Return a number between `low` and `high`, all equally likely."""
    return float(torch.empty(1).uniform_(low, high).item())


def integer(low: int, high: int) -> int:
    """Return a whole number from `low` up to, not including, `high`."""
    return int(torch.randint(low, high, (1,)).item())


def draw_place(image_hw: tuple[int, int], height: int, width: int) -> tuple[int, int]:
    """Return top and left of a random place for a rectangle inside an image."""
    return integer(0, image_hw[0] - height + 1), integer(0, image_hw[1] - width + 1)


def draw_sides(area: int, scale: Sequence[float], ratio: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield the sides of ten random rectangles: their part of `area` within `scale`, first by second within `ratio`."""
    for _ in range(10):
        part = area * uniform(scale[0], scale[1])
        aspect = float(torch.empty(1).uniform_(*_logarithms(ratio[0], ratio[1])).exp_().item())
        yield round(math.sqrt(part * aspect)), round(math.sqrt(part / aspect))


@lru_cache(maxsize=64)
def _logarithms(low: float, high: float) -> tuple[float, float]:
    # In single precision, so that a seed gives the numbers that torchvision draws.
    first, last = torch.log(torch.tensor((low, high), dtype=torch.float32)).tolist()
    return first, last


def check_range(name: str, low: float, value: float, high: float = math.inf) -> None:
    """Check that an argument lies between two bounds."""
    if not low <= value <= high:
        bounds = "must not be negative" if high == math.inf else f"must be between {low} and {high}"
        raise UsageError(f"{name}={value!r} {bounds}.")


def check_limits(name: str, values: Sequence[float]) -> tuple[float, float]:
    """Return (smallest, largest) as floats, if both are above 0 and in rising order."""
    if isinstance(values, int | float) or len(values) != 2 or not 0 < values[0] <= values[1]:
        raise UsageError(f"{name}={values!r} must be (smallest, largest), both above 0.")
    return float(values[0]), float(values[1])


def spread(name: str, value: Range, middle: float = 0.0, lengths: tuple[int, ...] = (2,)) -> tuple[float, ...]:
    """Return pairs of (smallest, largest) as floats; one number means that far to both sides of `middle`."""
    if isinstance(value, int | float):
        if value < 0:
            raise UsageError(f"{name}={value!r} must not be negative when it is one number.")
        return middle - value, middle + value
    if len(value) not in lengths or any(value[i] > value[i + 1] for i in range(0, len(value), 2)):
        wanted = " or ".join(str(length) for length in lengths)
        raise UsageError(f"{name}={value!r} must be one number, or {wanted} in pairs (smallest, largest).")
    return tuple(float(number) for number in value)


def pair(size: int | Sequence[int], name: str = "size") -> tuple[int, int]:
    """Return (height, width) from a positive whole number, or from one or two of them."""
    values: tuple[Any, ...] = tuple(size) if isinstance(size, Iterable) else (size,)
    if len(values) not in (1, 2) or any(not isinstance(v, int | np.integer) or not 1 <= v <= _MOST for v in values):
        raise UsageError(
            f"{name}={size!r} must be one or two whole numbers from 1 to {_MOST:,}: side, or (height, width)."
        )
    return int(values[0]), int(values[-1])
