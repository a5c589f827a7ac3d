"""What the data sets share: their base class, and image files as RGB arrays."""

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from boxwright.core.errors import DataError, MissingDependencyError, UsageError
from boxwright.core.files import is_inside
from boxwright.vision.decode import check_pixels, decode_image, decode_scaled, decode_with, read_file
from boxwright.vision.size import find_size_hw
from boxwright.vision.transforms.image import pillow

Change: TypeAlias = Callable[[Any], Any] | None
"""`transform` and `target_transform`: change the image or the target."""

ChangeBoth: TypeAlias = Callable[[Any, Any], tuple[Any, Any]] | None
"""`transforms`: `image, target = transforms(image, target)`."""

_PALETTE = 3


class VisionDataset(Dataset[tuple[Any, Any]]):
    """Base of the data sets: applies the transforms to the image and target that `load` returns."""

    def __init__(
        self,
        root: str | Path,
        transforms: ChangeBoth = None,
        transform: Change = None,
        target_transform: Change = None,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise UsageError("Give either transforms (for both), or transform and target_transform, not all of them.")
        self.root = str(root)
        self.transforms = transforms
        self.transform = transform
        self.target_transform = target_transform

    def load(self, index: int) -> tuple[Any, Any]:
        """Return an image and its target before the transforms."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return an image and its target, transformed."""
        image, target = self.load(index)
        if self.transforms is not None:
            return self.transforms(image, target)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def check_download(self, wanted: bool, *needed: Path) -> None:
        """Check that a download that is asked for is not necessary: nothing is downloaded.

        Args:
            wanted: the argument `download`.
            needed: the files and folders that make the set; the error names the first that is missing.
        """
        missing = [path for path in needed if not path.exists()]
        if wanted and missing:
            raise UsageError(
                f"{type(self).__name__}(download=True): {str(missing[0])!r} is missing, and nothing is downloaded. "
                "Fetch the set's files and unpack them there."
            )


def load_image(path: str | Path, *, min_side: int | None = None) -> NDArray[np.uint8]:
    """Return an image file as an RGB array (HWC, 8-bit), turned as its EXIF orientation says.

    torchvision's loader ignores EXIF; in this project boxes and images are always in the frame that is displayed.

    Args:
        path: a file that OpenCV can read.
        min_side: decode a JPEG at 1/2, 1/4 or 1/8 of its size, as small as possible with both sides at least this
            long. Faster, with slightly different pixels; by default everything is decoded in full.

    Raises:
        DataError: the file is missing, empty, cut off or not an image.
        UsageError: `min_side` is less than 1.
    """
    check_min_side(min_side)
    data = read_file(path)
    if min_side is None:
        pixels = decode_image(data, str(path))
    else:
        pixels, _ = decode_scaled(data, str(path), (min_side, min_side), cover=True)
    rgb: NDArray[Any] = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)
    return rgb


def load_mask(path: str | Path) -> NDArray[Any]:
    """Return a mask file as an array of its stored numbers, HW: palette indexes or grey levels.

    Raises:
        DataError: the file is missing, empty or not a mask of one number per pixel.
        MissingDependencyError: it is a PNG with a palette, and Pillow is not installed (OpenCV gives only the colours).
    """
    data = read_file(path)
    if data.startswith(b"\x89PNG") and len(data) > 25 and data[25] == _PALETTE:
        check_pixels(find_size_hw(data) or (0, 0), str(path))
        try:
            with pillow().open(BytesIO(data)) as opened:
                indexes: NDArray[Any] = np.array(opened)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(
                f"The mask {str(path)!r} can't be read: {error}. Copy it again, or leave it out."
            ) from error
        return indexes
    mask = decode_with(data, str(path), cv2.IMREAD_UNCHANGED)
    if mask.ndim == 3:
        raise DataError(f"The mask {str(path)!r} has {mask.shape[2]} channels; a mask has one number per pixel.")
    return mask


def join_inside(folder: str | Path, name: str, *, allow_outside: bool = False) -> Path:
    """Return the path of a file that a list or an annotation names; it must lie in the folder.

    Raises:
        DataError: it leads out of the folder, and that is not allowed.
    """
    path = Path(os.path.normpath(Path(folder, name)))
    if not allow_outside and not is_inside(path, folder):
        raise DataError(
            f"The set names {name!r}, which is outside of its folder {str(folder)!r}. Correct the name, or use "
            "allow_outside=True where the data set has it."
        )
    return path


def check_min_side(min_side: int | None) -> None:
    """Check that `min_side` is at least 1, or None."""
    if min_side is not None and min_side < 1:
        raise UsageError(f"min_side={min_side!r} must be at least 1.")


def read_list(path: Path) -> list[list[str]]:
    """Return the columns of each line of a text file; empty lines are skipped."""
    return [line.split() for line in read_file(path, "file").decode().splitlines() if line.strip()]


def read_mat(path: Path, key: str) -> NDArray[Any]:
    """Return an array of a MATLAB file.

    Raises:
        DataError: the file is missing, or it has no such array.
        MissingDependencyError: scipy is not installed.
    """
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise MissingDependencyError("This needs scipy, which is not installed. Run: pip install scipy") from error
    try:
        found: NDArray[Any] = loadmat(BytesIO(read_file(path, "file")), variable_names=[key])[key]
    except (ValueError, KeyError, TypeError, NotImplementedError, MatReadError) as error:
        raise DataError(f"The file {str(path)!r} is not a MATLAB file with {key!r}: {error}.") from error
    return found
