"""Arrays in memory that two processes share: one writes, the other reads without a copy."""

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from boxwright.core.signature import Array

Header = list[tuple[str, tuple[int, ...], int]]
"""The type, shape and offset of each array."""

_ALIGN = 64  # a cache line, which suits vector instructions too


class Slab:
    """Anonymous shared memory that grows as needed and is freed when the last process closes it.

    Example:
        >>> slab = Slab.create()
        >>> header = slab.write([np.arange(3), np.ones((2, 2), np.float32)])
        >>> other = Slab(os.dup(slab.fd))  # as another process would open it
        >>> [a.tolist() for a in other.read(header)]
        [[0, 1, 2], [[1.0, 1.0], [1.0, 1.0]]]
        >>> other.close(), slab.close()
        (None, None)
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls) -> "Slab":
        """Return a new, empty slab."""
        return cls(os.memfd_create("boxwright"))

    def write(self, arrays: Sequence[Array]) -> Header:
        """Copy the arrays into the slab, and return the header that `read` needs."""
        header: Header = []
        end = 0
        for array in arrays:
            header.append((array.dtype.str, array.shape, end))
            end += -(-array.nbytes // _ALIGN) * _ALIGN
        if end > os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, end)
        for view, array in zip(self.read(header), arrays, strict=True):
            view[...] = array
        return header

    def read(self, header: Header) -> list[Array]:
        """Return views of the arrays in the slab; the next `write` changes them."""
        size = os.fstat(self.fd).st_size
        if size and (self._map is None or len(self._map) < size):
            self._map = mmap.mmap(self.fd, size)  # an older map lives as long as an array views it
        buffer: Any = self._map if self._map is not None else b""
        return [
            np.ndarray(shape, np.dtype(dtype), buffer, place) if np.prod(shape) else np.empty(shape, np.dtype(dtype))
            for dtype, shape, place in header
        ]

    def close(self) -> None:
        """Release the memory; closing twice is allowed."""
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
