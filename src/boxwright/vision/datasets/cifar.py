"""CIFAR-10 and CIFAR-100: 60,000 photos of 32x32 pixels in 10 or 100 classes."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from boxwright.core.errors import DataError
from boxwright.vision.datasets.checksum import verified_bytes
from boxwright.vision.datasets.pair import PairTransform, refuse_download


class CIFAR10(Dataset[tuple[Any, Any]]):
    """Gives (image, class number) of CIFAR-10, read from the published Python version.

    Args:
        root: the folder that holds `cifar-10-batches-py`.
        train: the 50,000 training images, or else the 10,000 test images.
        transform: changes the image, a 32x32 RGB array.
        target_transform: changes the class number.
        download: not offered.

    Attributes:
        data: all images, 8-bit (N, 32, 32, 3).
        targets: the class numbers.
        classes: the names of the classes.
        class_to_idx: the number of each class.

    Raises:
        DataError: a file is missing, or its checksum is wrong.
        UsageError: `download` is asked for.
    """

    base_folder: ClassVar[str] = "cifar-10-batches-py"
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

    def __init__(
        self,
        root: str | Path,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        folder = Path(root) / self.base_folder
        refuse_download(download, type(self).__name__, str(folder))
        self.root = str(root)
        self.train = train
        self.transform = transform
        self.target_transform = target_transform
        batches = [_unpickle(folder / name, md5) for name, md5 in (self.train_list if train else self.test_list)]
        planes = np.concatenate([np.asarray(batch["data"], np.uint8) for batch in batches]).reshape(-1, 3, 32, 32)
        self.data = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        self.targets: list[int] = [int(label) for batch in batches for label in batch[self.labels_key]]
        self.classes: list[str] = list(_unpickle(folder / self.meta[0], self.meta[1])[self.names_key])
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return the image and its class number."""
        # A copy, so that nothing done to a sample can reach the data set.
        return PairTransform(self.transform, self.target_transform)(self.data[index].copy(), self.targets[index])

    def __len__(self) -> int:
        return len(self.data)


class CIFAR100(CIFAR10):
    """Gives (image, class number) of CIFAR-100, from the folder `cifar-100-python`; otherwise as `CIFAR10`."""

    base_folder = "cifar-100-python"
    train_list: ClassVar[list[tuple[str, str]]] = [("train", "16019d7e3df5f24257cddd939b257f8d")]
    test_list: ClassVar[list[tuple[str, str]]] = [("test", "f0ef6b0ae62326f3e7ffdfab6717acfc")]
    meta = ("meta", "7973b15100ade9c7d40fb424638fde48")
    names_key = "fine_label_names"
    labels_key = "fine_labels"


def _unpickle(path: Path, md5: str) -> dict[str, Any]:
    # Unpickling runs what the file says, so only the published file, proved by its checksum, gets that far.
    batch = pickle.loads(verified_bytes(path, md5), encoding="latin1")
    if not isinstance(batch, dict):
        raise DataError(f"The file {str(path)!r} holds no CIFAR batch.")
    return batch
