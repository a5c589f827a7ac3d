"""More published sets of small images, each of a few files that fit into memory."""

import bz2
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError, check_choice
from boxwright.vision.datasets.base import Change, VisionDataset, read_mat
from boxwright.vision.datasets.published import MNIST, check_md5, read_verified
from boxwright.vision.decode import read_file


class KMNIST(MNIST):
    """(image, class number) of Kuzushiji-MNIST, from `KMNIST/raw`; otherwise as `MNIST`."""

    base_folder = "KMNIST/raw"
    resources: ClassVar[list[tuple[str, str]]] = [
        ("train-images-idx3-ubyte.gz", "bdb82020997e1d708af4cf47b453dcf7"),
        ("train-labels-idx1-ubyte.gz", "e144d726b3acfaa3e44228e80efcd344"),
        ("t10k-images-idx3-ubyte.gz", "5c965bf0a639b31b8f53240b1b52f4d7"),
        ("t10k-labels-idx1-ubyte.gz", "7320c461ea6c1c855c0b718fb2a4b134"),
    ]
    classes: ClassVar[list[str]] = ["o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"]


_LOWER, _UPPER, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
_MERGED = sorted(set(_DIGITS + _UPPER + _LOWER) - set("cijklmopsuvwxyz"))


class EMNIST(MNIST):
    """(image, class number) of EMNIST, from `EMNIST/raw`; images are stored on their side, as in the published files.

    The archive holds a `.gz` file per split; both these and the unpacked files are read. They have no published
    checksums of their own, so their headers are checked.

    Args:
        root: the folder that holds `EMNIST/raw`.
        split: `byclass`, `bymerge`, `balanced`, `letters`, `digits` or `mnist`.
        kwargs: further arguments of `MNIST`.
    """

    base_folder = "EMNIST/raw"
    classes_split_dict: ClassVar[dict[str, list[str]]] = {
        "byclass": sorted(_DIGITS + _UPPER + _LOWER),
        "bymerge": _MERGED,
        "balanced": _MERGED,
        "letters": ["N/A", *_LOWER],
        "digits": [*_DIGITS],
        "mnist": [*_DIGITS],
    }

    def __init__(self, root: str | Path, split: str, **kwargs: Any) -> None:
        check_choice("split", split, self.classes_split_dict)
        self.split = split
        super().__init__(root, **kwargs)

    def _read(self, folder: Path) -> None:
        start = f"emnist-{self.split}-{'train' if self.train else 'test'}"
        files = [(f"{start}-{part}.gz", "") for part in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        self._take(folder, self.classes_split_dict[self.split], *files)


class _Arrays(VisionDataset):
    """Keeps all images in memory: `data`, and `labels` with the class numbers."""

    data: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __init__(self, root: str | Path, transform: Change, target_transform: Change) -> None:
        super().__init__(root, None, transform, target_transform)

    def load(self, index: int) -> tuple[Any, Any]:
        """Return a copy of the image, HWC or HW, and its class number."""
        image = self.data[index]
        return np.ascontiguousarray(image.transpose(1, 2, 0) if image.ndim == 3 else image).copy(), int(
            self.labels[index]
        )

    def __len__(self) -> int:
        return len(self.data)


class USPS(_Arrays):
    """(image, digit) of USPS, from `usps.bz2` and `usps.t.bz2` in `root`; an image is a 16x16 array.

    Attributes:
        data: all images, 8-bit (N, 16, 16).
        targets: the digits.
    """

    split_list: ClassVar[dict[str, tuple[str, str]]] = {
        "train": ("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
        "test": ("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    }

    def __init__(
        self,
        root: str | Path,
        train: bool = True,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
    ) -> None:
        super().__init__(root, transform, target_transform)
        name, md5 = self.split_list["train" if train else "test"]
        path = Path(root) / name
        self.check_download(download, path)
        # Each line: the digit plus 1, then 256 times number:value with values from -1 to 1.
        rows = [line.split() for line in bz2.decompress(read_verified(path, md5)).decode().splitlines()]
        values = _parsed(path, lambda: np.array([[v.split(":")[-1] for v in row[1:]] for row in rows], np.float32))
        if values.shape != (len(rows), 256):
            raise DataError(f"The file {str(path)!r} must have 256 values per line. Fetch it again.")
        self.data = ((values.reshape(-1, 16, 16) + 1) / 2 * 255).astype(np.uint8)
        self.targets = [int(row[0]) - 1 for row in rows]
        self.labels = np.array(self.targets, np.int64)


class SEMEION(_Arrays):
    """(image, digit) of SEMEION, from `semeion.data` in `root`; an image is a 16x16 array.

    Attributes:
        data: all images, 8-bit (N, 16, 16).
        labels: the digits.
    """

    filename: ClassVar[str] = "semeion.data"
    md5_checksum: ClassVar[str] = "cb545d371d2ce14ec121470795a77432"

    def __init__(
        self,
        root: str | Path,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = True,
    ) -> None:
        super().__init__(root, transform, target_transform)
        path = Path(root) / self.filename
        self.check_download(download, path)
        text = read_verified(path, self.md5_checksum).decode()
        values = _parsed(path, lambda: np.array([line.split() for line in text.splitlines()], np.float32))
        if values.ndim != 2 or values.shape[1] != 266:
            raise DataError(f"The file {str(path)!r} must have 266 values per line. Fetch it again.")
        self.data = (values[:, :256] * 255).astype(np.uint8).reshape(-1, 16, 16)
        self.labels = values[:, 256:].argmax(axis=1)


class STL10(_Arrays):
    """(image, class number) of STL10, from `stl10_binary` in `root`; an image is a 96x96 RGB array.

    Args:
        root: the folder that holds `stl10_binary`.
        split: `train`, `test`, `unlabeled` (class -1) or `train+unlabeled`.
        folds: which of the ten published parts of the training images, 0 to 9; None for all of them.

    Attributes:
        data: all images, 8-bit (N, 3, 96, 96).
        labels: the class numbers.
        classes: the names of the classes.
    """

    base_folder: ClassVar[str] = "stl10_binary"
    files: ClassVar[dict[str, str]] = {
        "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
        "train_y.bin": "5a34089d4802c674881badbb80307741",
        "unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4",
        "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
        "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    }

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        folds: int | None = None,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
    ) -> None:
        super().__init__(root, transform, target_transform)
        check_choice("split", split, ("train", "train+unlabeled", "unlabeled", "test"))
        if folds is not None and folds not in range(10):
            raise UsageError(f"folds={folds!r} must be a whole number from 0 to 9, or None for all images.")
        self.split = split
        folder = Path(root) / self.base_folder
        self.check_download(download, folder)
        images, labels = [], []
        for part in split.split("+"):
            images.append(self._images(folder, f"{part}_X.bin"))
            if part == "unlabeled":
                labels.append(np.full(len(images[-1]), -1, np.int64))
                continue
            labels.append(self._bytes(folder, f"{part}_y.bin").astype(np.int64) - 1)
            if part == "train" and folds is not None:
                lines = read_file(folder / "fold_indices.txt", "file").decode().splitlines()
                chosen = [int(number) for number in lines[folds].split()]
                images[-1], labels[-1] = images[-1][chosen], labels[-1][chosen]
        self.data, self.labels = np.concatenate(images), np.concatenate(labels)
        if len(self.data) != len(self.labels):
            raise DataError(f"{str(folder)!r} holds {len(self.data)} images but {len(self.labels)} labels.")
        names = folder / "class_names.txt"
        self.classes = read_file(names, "file").decode().splitlines() if names.is_file() else []

    def _bytes(self, folder: Path, name: str) -> NDArray[np.uint8]:
        # 2.7 GB for the largest: mapped, not read.
        path = folder / name
        check_md5(path, self.files[name])
        return np.memmap(path, np.uint8, mode="r")

    def _images(self, folder: Path, name: str) -> NDArray[np.uint8]:
        # Stored column by column.
        return self._bytes(folder, name).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)


class SVHN(_Arrays):
    """(image, digit) of the street view house numbers, from `train_32x32.mat` and others in `root`.

    The files are MATLAB's, which scipy reads. An image is a 32x32 RGB array.

    Args:
        root: the folder of the files.
        split: `train`, `test` or `extra`.

    Attributes:
        data: all images, 8-bit (N, 3, 32, 32).
        labels: the digits.
    """

    split_list: ClassVar[dict[str, tuple[str, str]]] = {
        "train": ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        "test": ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        "extra": ("extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7"),
    }

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
    ) -> None:
        super().__init__(root, transform, target_transform)
        check_choice("split", split, self.split_list)
        self.split = split
        name, md5 = self.split_list[split]
        path = Path(root) / name
        self.check_download(download, path)
        check_md5(path, md5)
        self.data = read_mat(path, "X").transpose(3, 2, 0, 1)
        digits = read_mat(path, "y").ravel().astype(np.int64)
        self.labels = np.where(digits == 10, 0, digits)


class FakeData(VisionDataset):
    """(image, class number) made of noise, the same for an index in every run.

    Args:
        size: how many samples.
        image_size: (channels, height, width).
        num_classes: how many classes.
        random_offset: added to the index to seed the noise.

    Example:
        >>> image, target = FakeData(size=2, image_size=(3, 4, 5), num_classes=10)[0]
        >>> image.shape, 0 <= target < 10
        ((4, 5, 3), True)
    """

    def __init__(
        self,
        size: int = 1000,
        image_size: tuple[int, int, int] = (3, 224, 224),
        num_classes: int = 10,
        transform: Change = None,
        target_transform: Change = None,
        random_offset: int = 0,
    ) -> None:
        super().__init__("", None, transform, target_transform)
        if size < 0 or num_classes < 1 or len(image_size) != 3 or min(image_size) < 1:
            raise UsageError(
                f"FakeData(size={size!r}, image_size={image_size!r}, num_classes={num_classes!r}): give a size of at "
                "least 0, (channels, height, width) and at least one class."
            )
        self.size = size
        self.image_size = image_size
        self.num_classes = num_classes
        self.random_offset = random_offset

    def load(self, index: int) -> tuple[Any, Any]:
        """Return the image and its class number."""
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is out of range for {self.size} samples")
        source = torch.Generator().manual_seed(index + self.random_offset)
        noise = torch.randn(*self.image_size, generator=source)
        target = int(torch.randint(0, self.num_classes, (1,), generator=source).item())
        pixels = noise.mul(255).to(torch.int64).remainder(256).to(torch.uint8).permute(1, 2, 0).numpy()
        return np.ascontiguousarray(pixels[..., 0] if self.image_size[0] == 1 else pixels), target

    def __len__(self) -> int:
        return self.size


def _parsed(path: Path, parse: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    try:
        return parse()
    except ValueError as error:
        raise DataError(f"The file {str(path)!r} is not as published: {error}. Fetch it again.") from error
