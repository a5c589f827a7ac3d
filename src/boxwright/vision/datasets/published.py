"""Published sets of small images: MNIST, Fashion-MNIST, QMNIST, CIFAR-10 and CIFAR-100."""

import gzip
import hashlib
import lzma
import pickle
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.core.errors import DataError, check_choice
from boxwright.vision.datasets.base import Change, VisionDataset
from boxwright.vision.decode import read_file

_NUMBERS: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}
"""The types of IDX files, by their code."""


class _Published(VisionDataset):
    """Keeps all images in memory, with their class numbers; `_read` takes them from the files in `base_folder`."""

    base_folder: ClassVar[str]
    data: Any
    targets: Any

    def __init__(
        self,
        root: str | Path,
        train: bool = True,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
    ) -> None:
        super().__init__(root, None, transform, target_transform)
        folder = Path(root) / self.base_folder
        self.check_download(download, folder)
        self.train = train
        self._read(folder)

    def _read(self, folder: Path) -> None:
        raise NotImplementedError

    def load(self, index: int) -> tuple[Any, Any]:
        """Return a copy of the image, so that changing it leaves the set alone, and its class number."""
        return np.asarray(self.data[index]).copy(), int(self.targets[index])

    def __len__(self) -> int:
        return len(self.data)


class MNIST(_Published):
    """(image, digit) of MNIST, read from the published IDX files; an image is a 28x28 array (HW, 8-bit).

    A `.gz` file is checked by its MD5 sum. Where only the unpacked file is there, its header must fit its length.

    Args:
        root: the folder that holds `MNIST/raw`.
        train: the 60,000 training images, or else the 10,000 test images.

    Attributes:
        data: all images, an 8-bit tensor (N, 28, 28).
        targets: the digits, an int64 tensor (N,).
        class_to_idx: the number of each class.
    """

    base_folder = "MNIST/raw"
    resources: ClassVar[list[tuple[str, str]]] = [
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ]
    classes: ClassVar[list[str]] = [
        "0 - zero", "1 - one", "2 - two", "3 - three", "4 - four",
        "5 - five", "6 - six", "7 - seven", "8 - eight", "9 - nine",
    ]  # fmt: skip

    def _read(self, folder: Path) -> None:
        self._take(folder, self.classes, *(self.resources[:2] if self.train else self.resources[2:]))

    def _take(self, folder: Path, classes: list[str], images: tuple[str, str], labels: tuple[str, str]) -> None:
        self._keep(folder, classes, _read_idx(folder, *images, axes=3), _read_idx(folder, *labels, axes=1))

    def _keep(self, folder: Path, classes: list[str], images: NDArray[Any], labels: NDArray[Any]) -> None:
        self.raw_folder = str(folder)
        self.classes = classes  # type: ignore[misc]
        self.class_to_idx = {name: index for index, name in enumerate(classes)}
        self.data = torch.from_numpy(images)
        self.targets = torch.from_numpy(labels.astype(np.int64))
        if len(self.data) != len(self.targets):
            raise DataError(f"{self.raw_folder!r} holds {len(self.data)} images but {len(self.targets)} labels.")


class FashionMNIST(MNIST):
    """(image, class number) of Fashion-MNIST, from `FashionMNIST/raw`; otherwise as `MNIST`."""

    base_folder = "FashionMNIST/raw"
    resources: ClassVar[list[tuple[str, str]]] = [
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ]
    classes: ClassVar[list[str]] = [
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ]  # fmt: skip


class QMNIST(MNIST):
    """(image, digit) of QMNIST, from `QMNIST/raw`; otherwise as `MNIST`.

    Args:
        root: the folder that holds `QMNIST/raw`.
        what: `train`, `test`, `test10k` (the test images of MNIST), `test50k` (the others) or `nist`; by default what
            `train` says.
        compat: give the digit; if not, all eight numbers that the set has for an image, the digit first.
        train: the training images, or else the test images.
        kwargs: further arguments of `MNIST`.

    Attributes:
        targets: all numbers, an int64 tensor (N, 8).
    """

    base_folder = "QMNIST/raw"
    subsets: ClassVar[dict[str, str]] = {
        "train": "train", "test": "test", "test10k": "test", "test50k": "test", "nist": "nist",
    }  # fmt: skip
    resources: ClassVar[list[tuple[str, str]]] = [
        ("qmnist-train-images-idx3-ubyte.gz", "ed72d4157d28c017586c42bc6afe6370"),
        ("qmnist-train-labels-idx2-int.gz", "0058f8dd561b90ffdd0f734c6a30e5e4"),
        ("qmnist-test-images-idx3-ubyte.gz", "1394631089c404de565df7b7aeaf9412"),
        ("qmnist-test-labels-idx2-int.gz", "5b5b05890a5e13444e108efe57b788aa"),
        ("xnist-images-idx3-ubyte.xz", "7f124b3b8ab81486c9d8c2749c17f834"),
        ("xnist-labels-idx2-int.xz", "5ed0e788978e45d4a8bd4b7caec3d79d"),
    ]

    def __init__(
        self, root: str | Path, what: str | None = None, compat: bool = True, train: bool = True, **kwargs: Any
    ) -> None:
        self.what = ("train" if train else "test") if what is None else what
        check_choice("what", self.what, self.subsets)
        self.compat = compat
        super().__init__(root, train, **kwargs)

    def _read(self, folder: Path) -> None:
        at = 2 * ("train", "test", "nist").index(self.subsets[self.what])
        images = _read_idx(folder, *self.resources[at], axes=3)
        labels = _read_idx(folder, *self.resources[at + 1], axes=2, code=0x0C)
        part = {"test10k": slice(10_000), "test50k": slice(10_000, None)}.get(self.what, slice(None))
        self._keep(folder, self.classes, images[part], labels[part])

    def load(self, index: int) -> tuple[Any, Any]:
        """Return a copy of the image, and its digit or all its numbers."""
        numbers = self.targets[index]
        return np.asarray(self.data[index]).copy(), int(numbers[0]) if self.compat else numbers.clone()


class CIFAR10(_Published):
    """(image, class number) of CIFAR-10, read from the published Python version; an image is a 32x32 RGB array.

    Args:
        root: the folder that holds `cifar-10-batches-py`.
        train: the 50,000 training images, or else the 10,000 test images.

    Attributes:
        data: all images, 8-bit (N, 32, 32, 3).
        targets: the class numbers.
        classes: the names of the classes.
        class_to_idx: the number of each class.
    """

    base_folder = "cifar-10-batches-py"
    train_list: ClassVar[list[tuple[str, str]]] = [
        ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
        ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        ("data_batch_4", "634d18415352ddfa80567beed471001a"),
        ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
    ]
    test_list: ClassVar[list[tuple[str, str]]] = [("test_batch", "40351d587109b95175f43aff81a1287e")]
    meta: ClassVar[tuple[str, str]] = ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888")
    names_key: ClassVar[str] = "label_names"
    labels_key: ClassVar[str] = "labels"

    def _read(self, folder: Path) -> None:
        files = self.train_list if self.train else self.test_list
        batches = [_unpickle(folder / name, md5) for name, md5 in files]
        planes = np.concatenate([np.asarray(batch["data"], np.uint8) for batch in batches]).reshape(-1, 3, 32, 32)
        self.data = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        self.targets = [int(label) for batch in batches for label in batch[self.labels_key]]
        self.classes = list(_unpickle(folder / self.meta[0], self.meta[1])[self.names_key])
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}


class CIFAR100(CIFAR10):
    """(image, class number) of CIFAR-100, from the folder `cifar-100-python`; otherwise as `CIFAR10`."""

    base_folder = "cifar-100-python"
    train_list: ClassVar[list[tuple[str, str]]] = [("train", "16019d7e3df5f24257cddd939b257f8d")]
    test_list: ClassVar[list[tuple[str, str]]] = [("test", "f0ef6b0ae62326f3e7ffdfab6717acfc")]
    meta = ("meta", "7973b15100ade9c7d40fb424638fde48")
    names_key = "fine_label_names"
    labels_key = "fine_labels"


def read_verified(path: Path, md5: str) -> bytes:
    """Return a file whose MD5 sum is the published one; "" for a file without one.

    Raises:
        DataError: it is missing, or its sum differs.
    """
    data = read_file(path, "file")
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if md5 and found != md5:
        raise DataError(f"The file {str(path)!r} has the MD5 sum {found!r} instead of {md5!r}. Fetch it again.")
    return data


def check_md5(path: Path, md5: str) -> None:
    """Check that the MD5 sum of a large file is the published one.

    Raises:
        DataError: it is missing, or its sum differs.
    """
    if not path.is_file():
        raise DataError(f"The file {str(path)!r} is missing or not a regular file. Fetch it again.")
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise DataError(f"The file {str(path)!r} has the MD5 sum {found!r} instead of {md5!r}. Fetch it again.")


def _read_idx(folder: Path, packed_name: str, md5: str, *, axes: int, code: int = 0x08) -> NDArray[Any]:
    packed, number = folder / packed_name, _NUMBERS[code]
    unpack = lzma.decompress if packed.suffix == ".xz" else gzip.decompress
    plain = packed.with_suffix("")
    if packed.exists() or not plain.exists():
        path, data = packed, unpack(read_verified(packed, md5))
    else:
        path, data = plain, read_file(plain, "file")
    start = 4 + 4 * axes
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if data[:4] != bytes((0, 0, code, axes)) or len(data) != start + prod(shape) * number.itemsize:
        raise DataError(f"The file {str(path)!r} is not a complete IDX file of {axes} axes. Fetch it again.")
    return np.frombuffer(data, number, offset=start).reshape(shape).astype(number.newbyteorder("="))


def _unpickle(path: Path, md5: str) -> dict[str, Any]:
    # Unpickling runs what the file says, so only the published file, proved by its checksum, gets that far.
    batch = pickle.loads(read_verified(path, md5), encoding="latin1")
    if not isinstance(batch, dict):
        raise DataError(f"The file {str(path)!r} holds no CIFAR batch.")
    return batch
