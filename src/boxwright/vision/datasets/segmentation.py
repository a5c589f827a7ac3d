"""Images with masks: a folder of each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from boxwright.core.errors import DataError
from boxwright.vision.datasets.decode import load_image, load_mask
from boxwright.vision.datasets.pair import PairTransform


class SegmentationImageFolder(Dataset[tuple[Any, Any]]):
    """Gives (image, target) of images whose masks give each object its own number, 0 being the background.

    Images and masks are matched in the order of their names: root/images/1.jpg with root/masks/1.png.

    The target is a dict of tensors for N objects: `boxes` (N, 4; x1, y1, x2, y2 in pixels, float32), `labels` (N; all
    1), `masks` (N, H, W; 0 or 1, uint8), `image_id` (1), `area` (N; of the boxes) and `iscrowd` (N; all 0).

    Args:
        root: the folder of both folders.
        image_folder: name of the folder of images.
        mask_folder: name of the folder of masks.
        transforms: changes both: `image, target = transforms(image, target)`.

    Attributes:
        imgs: names of the images, sorted.
        masks: names of the masks, sorted.

    Raises:
        DataError: a folder is missing, or the names don't match.
    """

    def __init__(
        self,
        root: str | Path,
        image_folder: str,
        mask_folder: str,
        transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        self.image_folder = str(Path(root) / image_folder)
        self.mask_folder = str(Path(root) / mask_folder)
        self.imgs = _names(self.image_folder)
        self.masks = _names(self.mask_folder)
        self.transforms = PairTransform(transforms=transforms)
        if len(self.imgs) != len(self.masks):
            raise DataError(
                f"{self.image_folder!r} holds {len(self.imgs)} images but {self.mask_folder!r} {len(self.masks)} masks."
            )
        for image, mask in zip(self.imgs, self.masks, strict=True):
            # PennFudan and others name the mask of a.png a_mask.png.
            if not Path(mask).stem.startswith(Path(image).stem):
                raise DataError(
                    f"The mask of {image!r} must have a name that begins like it; the next one is {mask!r}."
                )

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return the image and its objects."""
        image = load_image(Path(self.image_folder) / self.imgs[index])
        numbers = load_mask(Path(self.mask_folder) / self.masks[index])
        return self.transforms(image, _objects(numbers, index))

    def __len__(self) -> int:
        return len(self.imgs)


def _names(folder: str) -> list[str]:
    try:
        return sorted(path.name for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"Can't read the folder {folder!r}: {error.strerror}.") from error


def _objects(numbers: NDArray[Any], index: int) -> dict[str, torch.Tensor]:
    found = np.unique(numbers)
    masks = numbers == found[found > 0][:, None, None]
    boxes = np.zeros((len(masks), 4), np.float32)
    for box, mask in zip(boxes, masks, strict=True):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        # The far corner is the outer edge of the last pixel, so an object of one pixel has an area.
        box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    sides = boxes[:, 2:] - boxes[:, :2]
    return {
        "boxes": torch.from_numpy(boxes),
        "labels": torch.ones(len(masks), dtype=torch.int64),
        "masks": torch.from_numpy(masks.astype(np.uint8)),
        "image_id": torch.tensor([index]),
        "area": torch.from_numpy(sides[:, 0] * sides[:, 1]),
        "iscrowd": torch.zeros(len(masks), dtype=torch.int64),
    }
