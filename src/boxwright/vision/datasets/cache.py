"""Decoded images kept in memory: decoding is most of the work of a sample, and an epoch decodes every image again."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from boxwright.core.errors import UsageError


class CachedLoader:
    """A loader that keeps what it has decoded, up to a number of bytes, and hands out copies.

    Each worker process of a `DataLoader` has a cache of its own.

    Example:
        >>> decoded = []
        >>> loader = CachedLoader(lambda path: decoded.append(path) or np.zeros((2, 2, 3), np.uint8), limit_bytes=100)
        >>> loader("a.jpg").shape, loader("a.jpg").shape, decoded
        ((2, 2, 3), (2, 2, 3), ['a.jpg'])
    """

    def __init__(self, loader: Callable[[str], Any], limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise UsageError(f"cache_bytes={limit_bytes!r} keeps nothing. Use a number of bytes, or leave it out.")
        self._loader = loader
        self._left = limit_bytes
        self._kept: dict[str, np.ndarray[Any, Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, path: str) -> Any:
        """Return the image of a path, decoded now or before."""
        kept = self._kept.get(path)
        if kept is not None:
            return kept.copy()  # a transform may write into what it is given
        image = self._loader(path)
        if isinstance(image, np.ndarray):
            with self._lock:
                if path not in self._kept and image.nbytes <= self._left:
                    self._kept[path] = image.copy()
                    self._left -= image.nbytes
        return image

    def __getstate__(self) -> dict[str, Any]:
        # A worker process starts with an empty cache: sending the images would cost more than decoding them.
        used = sum(image.nbytes for image in self._kept.values())
        return {"_loader": self._loader, "_left": self._left + used}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _kept={}, _lock=threading.Lock())
