"""MNIST and Fashion-MNIST: 70,000 grey images of 28x28 pixels in 10 classes."""

import gzip
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from boxwright.core.errors import DataError
from boxwright.vision.datasets.checksum import verified_bytes
from boxwright.vision.datasets.pair import PairTransform, refuse_download
from boxwright.vision.decode import read_file

_UNSIGNED_BYTES = 0x08


class MNIST(Dataset[tuple[Any, Any]]):
    """Gives (image, digit) of MNIST, read from the published IDX files.

    A `.gz` file is checked by its MD5 sum. Where only the unpacked file is there, its header must fit its length.

    Args:
        root: the folder that holds `MNIST/raw`.
        train: the 60,000 training images, or else the 10,000 test images.
        transform: changes the image, a 28x28 array (HW, 8-bit).
        target_transform: changes the digit.
        download: not offered.

    Attributes:
        data: all images, an 8-bit tensor (N, 28, 28).
        targets: the digits, an int64 tensor (N,).
        class_to_idx: the number of each class.

    Raises:
        DataError: a file is missing or not what was published.
        UsageError: `download` is asked for.
    """

    folder_name: ClassVar[str] = "MNIST"
    resources: ClassVar[list[tuple[str, str]]] = [
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ]
    classes: ClassVar[list[str]] = [
        "0 - zero",
        "1 - one",
        "2 - two",
        "3 - three",
        "4 - four",
        "5 - five",
        "6 - six",
        "7 - seven",
        "8 - eight",
        "9 - nine",
    ]

    def __init__(
        self,
        root: str | Path,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        self.root = str(root)
        refuse_download(download, type(self).__name__, self.raw_folder)
        self.train = train
        self.transform = transform
        self.target_transform = target_transform
        images, labels = self.resources[:2] if train else self.resources[2:]
        self.data = torch.from_numpy(_read(Path(self.raw_folder), *images, axes=3))
        self.targets = torch.from_numpy(_read(Path(self.raw_folder), *labels, axes=1).astype(np.int64))
        if len(self.data) != len(self.targets):
            raise DataError(f"{self.raw_folder!r} holds {len(self.data)} images but {len(self.targets)} labels.")

    @property
    def raw_folder(self) -> str:
        """The folder with the IDX files."""
        return str(Path(self.root) / self.folder_name / "raw")

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class."""
        return {name: index for index, name in enumerate(self.classes)}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return the image and its class number."""
        # A copy, so that nothing done to a sample can reach the data set.
        image = self.data[index].numpy().copy()
        return PairTransform(self.transform, self.target_transform)(image, int(self.targets[index]))

    def __len__(self) -> int:
        return len(self.data)


class FashionMNIST(MNIST):
    """Gives (image, class number) of Fashion-MNIST, from `FashionMNIST/raw`; otherwise as `MNIST`."""

    folder_name = "FashionMNIST"
    resources: ClassVar[list[tuple[str, str]]] = [
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ]
    classes: ClassVar[list[str]] = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ]


def _read(folder: Path, packed_name: str, md5: str, *, axes: int) -> NDArray[np.uint8]:
    packed = folder / packed_name
    plain = packed.with_suffix("")
    if packed.exists() or not plain.exists():
        path, data = packed, gzip.decompress(verified_bytes(packed, md5))
    else:
        path, data = plain, read_file(plain, "file")
    start = 4 + 4 * axes
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if data[:4] != bytes((0, 0, _UNSIGNED_BYTES, axes)) or len(data) != start + prod(shape):
        raise DataError(f"The file {str(path)!r} is no complete IDX file of {axes} axes. Fetch it again.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()
