"""Random surfaces for synthetic scenes."""

from typing import TypeAlias

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Surface: TypeAlias = NDArray[np.float32]


def colour(rng: Generator, low: float = 20, high: float = 235) -> Surface:
    """Return a random colour, (3,)."""
    return rng.uniform(low, high, 3).astype(np.float32)


def ramp(rng: Generator, size_hw: tuple[int, int]) -> Surface:
    """Return a slope from 0 to 1 in a random direction, shape (H, W, 1)."""
    height, width = size_hw
    angle = rng.uniform(0, 2 * np.pi)
    x = np.linspace(-0.5, 0.5, width, dtype=np.float32)[None, :] * np.float32(np.cos(angle))
    y = np.linspace(-0.5, 0.5, height, dtype=np.float32)[:, None] * np.float32(np.sin(angle))
    slope: Surface = x + y
    return np.asarray((slope - slope.min()) / (slope.max() - slope.min()), np.float32)[..., None]


def clouds(rng: Generator, size_hw: tuple[int, int], cells: int) -> Surface:
    """Return soft patches from -1 to 1, shape (H, W, 1)."""
    grid = rng.uniform(-1, 1, (cells, cells)).astype(np.float32)
    return np.asarray(cv2.resize(grid, size_hw[::-1], interpolation=cv2.INTER_LINEAR), np.float32)[..., None]


def stripes(rng: Generator, size_hw: tuple[int, int], period: float) -> Surface:
    """Return 0 and 1 in stripes, shape (H, W, 1)."""
    length = float(np.hypot(*size_hw))
    return np.asarray(np.floor(ramp(rng, size_hw) * (length / period)) % 2, np.float32)


def texture(rng: Generator, size_hw: tuple[int, int], first: Surface, second: Surface, scale: float) -> Surface:
    """Return a surface (H, W, 3) of two colours: plain, sloping, striped, checkered or cloudy."""
    kind = rng.choice(["plain", "slope", "stripes", "checks", "clouds"], p=[0.25, 0.25, 0.2, 0.15, 0.15])
    if kind == "plain":
        mix = np.zeros((*size_hw, 1), np.float32)
    elif kind == "slope":
        mix = ramp(rng, size_hw)
    elif kind == "stripes":
        mix = stripes(rng, size_hw, scale)
    elif kind == "checks":
        mix = np.abs(stripes(rng, size_hw, scale) - stripes(rng, size_hw, scale))
    else:
        mix = clouds(rng, size_hw, int(np.clip(max(size_hw) / scale, 2, 48))) * 0.5 + 0.5
    return first + mix * (second - first)
