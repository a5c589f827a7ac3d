"""`Tile`: an image at the scale at which it fits the network's input, which is what augmentation works on."""

import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.data.records import Records
from boxwright.vision.decode import decode_scaled, read_file
from boxwright.vision.letterbox import fit_hw, fit_ratio, resize


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """An image at the scale at which it fits the network's input.

    Attributes:
        pixels: uint8 (h, w, 3), BGR, not padded; may be read-only.
        size_hw: height and width of the image that it was made from.
    """

    pixels: NDArray[np.uint8]
    size_hw: tuple[int, int]

    def ratio(self, size_hw: tuple[int, int]) -> float:
        """Return the factor from pixels of the original image to pixels of an input of `size_hw`."""
        return fit_ratio(self.size_hw, size_hw)


class TileSource(Protocol):
    """Anything that gives the tiles of a set; safe to call from several threads."""

    @property
    def records(self) -> Records:
        """The set."""
        ...

    @property
    def size_hw(self) -> tuple[int, int]:
        """The input size that tiles are made for."""
        ...

    def tile(self, index: int) -> Tile:
        """Return the tile of one image.

        Raises:
            DataError: the image can't be read.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FileTiles:
    """Tiles made from the image files, each time anew.

    Attributes:
        records: the set.
        size_hw: the input size that tiles are made for.
    """

    records: Records
    size_hw: tuple[int, int]

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `TileSource`."""
        path = self.records.path(index)
        image, size_hw = decode_scaled(read_file(path), os.fspath(path), self.size_hw)
        return Tile(resize(image, fit_hw(size_hw, self.size_hw)), size_hw)
