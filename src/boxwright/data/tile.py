"""`Tile`: an image scaled to fit the network's input, which is what augmentation works on."""

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.data.records import Records
from boxwright.vision.decode import decode_scaled, read_file
from boxwright.vision.letterbox import fit_hw, fit_ratio, resize


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """An image scaled to fit the network's input.

    Attributes:
        pixels: uint8 (h, w, 3), BGR, not padded; may be read-only.
        size_hw: height and width of the image that it was made from.
    """

    pixels: NDArray[np.uint8]
    size_hw: tuple[int, int]

    def ratio(self, size_hw: tuple[int, int]) -> float:
        """Return the factor from pixels of the original image to pixels of an input of `size_hw`."""
        return fit_ratio(self.size_hw, size_hw)


@dataclass(eq=False)
class FileTiles:
    """Tiles decoded from the image files on every call; safe for threads.

    Attributes:
        records: the set.
        size_hw: the input size that tiles are made for.
    """

    records: Records
    size_hw: tuple[int, int]

    def tile(self, index: int) -> Tile:
        """Return the tile of one image.

        Raises:
            DataError: the image can't be read.
        """
        path = self.records.path(index)
        image, size_hw = decode_scaled(read_file(path), os.fspath(path), self.size_hw)
        return Tile(resize(image, fit_hw(size_hw, self.size_hw)), size_hw)


def tile_bytes(records: Records, size_hw: tuple[int, int]) -> NDArray[np.int64]:
    """Return the bytes of pixels of each tile of a set; an image of unknown size counts as large as it can be.

    Example:
        >>> sizes_hw, none = [(480, 640), (0, 0)], [[], []]
        >>> records = Records.from_lists(
        ...     root="x", paths=["a", "b"], boxes_xyxy=none, class_ids=none, names=[], sizes_hw=sizes_hw
        ... )
        >>> tile_bytes(records, (416, 416)).tolist() == [312 * 416 * 3, 416 * 416 * 3]
        True
    """
    known = np.all(records.sizes_hw > 0, axis=1, keepdims=True)
    sizes = np.where(known, records.sizes_hw, size_hw).astype(np.float64)
    ratios = (np.array(size_hw) / sizes).min(axis=1, keepdims=True)
    found: NDArray[np.int64] = np.maximum((sizes * ratios).astype(np.int64), 1).prod(axis=1) * 3
    return found
