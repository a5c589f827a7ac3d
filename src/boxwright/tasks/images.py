"""Image files as inputs of a detector: found in a folder or a labelled set, decoded when used. Needs no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError
from boxwright.core.log import get_logger
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.data.formats import read_records
from boxwright.data.records import Records
from boxwright.data.synthetic import draw_scene
from boxwright.vision.decode import list_images, read_image
from boxwright.vision.letterbox import letterbox, to_input

_log = get_logger(__name__)
CALIBRATION_IMAGES = 128
"""How many images calibrate a quantiser."""


def find_images(where: Path, *, allow_outside: bool = False) -> list[Path]:
    """Return the images of a folder, of a labelled set, or the one image that `where` is.

    Args:
        where: the folder, set or image.
        allow_outside: also use images that the set names outside of its folder.

    Raises:
        DataError: there are none.
    """
    if where.is_file() and where.suffix.lower() in (".json", ".yaml", ".yml", ".txt"):
        paths = image_paths(read_records(where, allow_outside=allow_outside))
    else:
        paths = [where] if where.is_file() else list_images(where, recursive=True)
    if not paths:
        raise DataError(f"There are no images in {str(where)!r} to calibrate with.")
    return paths


def image_paths(records: Records) -> list[Path]:
    """Return the paths of the images of a labelled set."""
    return [records.path(i) for i in range(len(records))]


class ImageInputs(Sequence[tuple[Array, ...]]):
    """Images as requests of one batch size; the last one begins again with the first image to fill up.

    An image that can't be read is replaced by the next one. Without files there are no requests, and `stack` gives
    drawn scenes.
    """

    def __init__(self, paths: Sequence[Path], spec: Spec, *, batch: int = 1, most: int = CALIBRATION_IMAGES) -> None:
        """Choose images.

        Args:
            paths: the files to choose from.
            spec: the input size and preprocessing of the network.
            batch: images in one request.
            most: maximum number of images, spread evenly over the files.
        """
        self.paths = tuple(paths[:: max(1, len(paths) // most)][:most])
        self._spec, self._batch = spec, batch
        self._unreadable: set[Path] = set()

    def __len__(self) -> int:
        return -(-len(self.paths) // self._batch)

    def __getitem__(self, index: Any) -> Any:
        """Return one request, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)  # ends a `for` loop
        return (self.stack(index * self._batch, self._batch),)

    def stack(self, first: int, count: int, spec: Spec | None = None) -> NDArray[np.float32]:
        """Return `count` images from the first on as one input (count, 3, H, W), for another spec if that is given.

        Raises:
            DataError: none of the files can be read.
        """
        spec = spec or self._spec
        images = [self._read(i) for i in range(first, first + count)]
        boxed = np.stack([letterbox(image, spec.size_hw)[0] for image in images])
        return np.ascontiguousarray(to_input(boxed, spec.preprocessing))

    def _read(self, index: int) -> NDArray[np.uint8]:
        if not self.paths:
            return draw_scene(seed=0, index=index, size_hw=(240, 320))[0]
        for at in range(index, index + len(self.paths)):
            path = self.paths[at % len(self.paths)]
            if path in self._unreadable:
                continue
            try:
                return read_image(path)
            except DataError as error:
                _log.warning("Left out: %s", error)
                self._unreadable.add(path)
        raise DataError(f"None of the {len(self.paths)} images can be read. First: {str(self.paths[0])!r}.")
