"""Classified images: one folder per class, and published sets in this form."""

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from boxwright.core.errors import DataError, UsageError, check_choice
from boxwright.vision.datasets.base import Change, VisionDataset, check_min_side, load_image

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
default_loader = load_image


class CachedLoader:
    """A loader that keeps what it has decoded, up to a number of bytes, and returns copies.

    Decoding is most of the work of a sample. Each worker process of a `DataLoader` has its own cache.

    Example:
        >>> decoded = []
        >>> loader = CachedLoader(lambda path: decoded.append(path) or np.zeros((2, 2, 3), np.uint8), limit_bytes=100)
        >>> loader("a.jpg").shape, loader("a.jpg").shape, decoded
        ((2, 2, 3), (2, 2, 3), ['a.jpg'])
    """

    def __init__(self, loader: Callable[[str], Any], limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise UsageError(f"cache_bytes={limit_bytes!r} keeps nothing. Use a number of bytes, or leave it out.")
        self._loader = loader
        self._left = limit_bytes
        self._kept: dict[str, np.ndarray[Any, Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, path: str) -> Any:
        """Return the image of a path, decoded now or before."""
        kept = self._kept.get(path)
        if kept is not None:
            return kept.copy()  # a transform may write into its input
        image = self._loader(path)
        if isinstance(image, np.ndarray):
            with self._lock:
                if path not in self._kept and image.nbytes <= self._left:
                    self._kept[path] = image.copy()
                    self._left -= image.nbytes
        return image

    def __getstate__(self) -> dict[str, Any]:
        # A worker process starts with an empty cache: sending the images would cost more than decoding them.
        used = sum(image.nbytes for image in self._kept.values())
        return {"_loader": self._loader, "_left": self._left + used}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _kept={}, _lock=threading.Lock())


def find_classes(directory: str | Path) -> tuple[list[str], dict[str, int]]:
    """Return the names of the folders in a folder, sorted, and the number of each.

    Raises:
        DataError: there are none.
    """
    try:
        classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    except OSError as error:
        raise DataError(f"Can't read the folder {str(directory)!r}: {error.strerror}.") from error
    if not classes:
        raise DataError(f"The folder {str(directory)!r} holds no class folders. Expected root/class/image.jpg.")
    return classes, {name: index for index, name in enumerate(classes)}


def make_dataset(
    directory: str | Path,
    class_to_idx: dict[str, int] | None = None,
    extensions: str | Sequence[str] | None = None,
    is_valid_file: Callable[[str], bool] | None = None,
    allow_empty: bool = False,
) -> list[tuple[str, int]]:
    """Return (path, class number) of every file that belongs to a class, in sorted order.

    Args:
        directory: the folder of class folders.
        class_to_idx: the number of each class folder; by default those of `find_classes`.
        extensions: endings of the files that count, in any case.
        is_valid_file: decides by the path instead of by the ending; give exactly one of the two.
        allow_empty: let a class have no file.

    Raises:
        UsageError: both or none of `extensions` and `is_valid_file` are given, or there is no class.
        DataError: a class has no file.
    """
    if (extensions is None) == (is_valid_file is None):
        raise UsageError("Give exactly one of extensions and is_valid_file.")
    if class_to_idx is None:
        class_to_idx = find_classes(directory)[1]
    if not class_to_idx:
        raise UsageError("class_to_idx must name at least one class.")
    endings = (extensions,) if isinstance(extensions, str) else tuple(extensions or ())
    endings = tuple(ending.lower() for ending in endings)
    samples: list[tuple[str, int]] = []
    empty = []
    for name in sorted(class_to_idx):
        before = len(samples)
        # Links are followed, as in torchvision: data sets are often assembled from them.
        for folder, _, files in sorted(os.walk(os.path.join(directory, name), followlinks=True)):
            for file in sorted(files):
                path = os.path.join(folder, file)
                if is_valid_file(path) if is_valid_file is not None else path.lower().endswith(endings):
                    samples.append((path, class_to_idx[name]))
        if len(samples) == before:
            empty.append(name)
    if empty and not allow_empty:
        wanted = f" Files must end in: {', '.join(endings)}." if endings else ""
        raise DataError(
            f"No file was found for the classes {', '.join(map(repr, empty))} in {str(directory)!r}.{wanted}"
        )
    return samples


class DatasetFolder(VisionDataset):
    """(sample, class number) of files in one folder per class.

    Args:
        root: the folder of class folders.
        loader: returns the sample of a path; `make_dataset` explains the arguments that choose the files.

    Attributes:
        classes: names of the classes, sorted.
        class_to_idx: the number of each class.
        samples: (path, class number) of every file.
        targets: the class number of every file.
    """

    def __init__(
        self,
        root: str | Path,
        loader: Callable[[str], Any],
        extensions: tuple[str, ...] | None = None,
        transform: Change = None,
        target_transform: Change = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> None:
        super().__init__(root, None, transform, target_transform)
        self.loader = loader
        self.extensions = extensions
        self.classes, self.class_to_idx = self.find_classes(self.root)
        self.samples = self.make_dataset(self.root, self.class_to_idx, extensions, is_valid_file, allow_empty)
        self.targets = [target for _, target in self.samples]

    # Methods too, because users of torchvision override them.
    find_classes = staticmethod(find_classes)
    make_dataset = staticmethod(make_dataset)

    def load(self, index: int) -> tuple[Any, Any]:
        """Return the sample and its class number."""
        path, target = self.samples[index]
        return self.loader(path), target

    def __len__(self) -> int:
        return len(self.samples)


class ImageFolder(DatasetFolder):
    """(image, class number) of images in one folder per class: root/dog/1.jpg, root/cat/2.png.

    Args:
        root: the folder of class folders.
        loader: returns the image of a path.
        is_valid_file: decides by the path which files count; by default the endings of `IMG_EXTENSIONS` do.
        allow_empty: let a class have no file.
        min_side: decode JPEGs at 1/2, 1/4 or 1/8 of their size while both sides stay at least this long; see
            `load_image`. Only with the default loader.
        cache_bytes: keep up to this many bytes of decoded images in memory, in each worker process; 0 keeps none.

    Attributes:
        imgs: the same as `samples`.
    """

    def __init__(
        self,
        root: str | Path,
        transform: Change = None,
        target_transform: Change = None,
        loader: Callable[[str], Any] = default_loader,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        min_side: int | None = None,
        cache_bytes: int = 0,
    ) -> None:
        check_min_side(min_side)
        if min_side is not None:
            if loader is not default_loader:
                raise UsageError(f"min_side={min_side!r} needs the default loader. Leave one of them out.")
            loader = partial(load_image, min_side=min_side)
        if cache_bytes:
            loader = CachedLoader(loader, cache_bytes)
        extensions = IMG_EXTENSIONS if is_valid_file is None else None
        super().__init__(root, loader, extensions, transform, target_transform, is_valid_file, allow_empty)
        self.imgs = self.samples


class EuroSAT(ImageFolder):
    """(image, class number) of EuroSAT, from `eurosat/2750` in `root`."""

    def __init__(
        self,
        root: str | Path,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Callable[[str], Any] = default_loader,
    ) -> None:
        folder = Path(root) / "eurosat" / "2750"
        self.check_download(download, folder)
        super().__init__(folder, transform, target_transform, loader)
        self.root = str(root)


class Country211(ImageFolder):
    """(image, class number) of Country211, from `country211` in `root`; splits `train`, `valid` and `test`."""

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Callable[[str], Any] = default_loader,
    ) -> None:
        check_choice("split", split, ("train", "valid", "test"))
        folder = Path(root) / "country211" / split
        self.check_download(download, folder)
        super().__init__(folder, transform, target_transform, loader)
        self.root = str(root)


class ImageNet(ImageFolder):
    """(image, class number) of ImageNet 2012, from the unpacked folders `train` and `val` in `root`.

    The class folders are named by WordNet ids. Where torchvision's file `meta.bin` is in `root` it gives the names of
    the classes; otherwise their names are the ids.

    Args:
        root: the folder that holds both.
        split: `train` or `val`.
        kwargs: further arguments of `ImageFolder`.

    Attributes:
        classes: a tuple of names of each class.
        wnids: the WordNet id of each class.
    """

    def __init__(self, root: str | Path, split: str = "train", **kwargs: Any) -> None:
        check_choice("split", split, ("train", "val"))
        super().__init__(Path(root) / split, **kwargs)
        self.root = str(root)
        self.split = split
        meta = Path(root) / "meta.bin"
        named: dict[str, Any] = torch.load(meta, weights_only=True)[0] if meta.exists() else {}
        self.wnids, self.wnid_to_idx = list(self.classes), dict(self.class_to_idx)
        tuples = [tuple(named.get(wnid, (wnid,))) for wnid in self.wnids]
        self.classes: list[Any] = tuples
        self.class_to_idx = {name: index for index, names in enumerate(tuples) for name in names}
