"""Published sets of image files with one class per image, read from the folders that their archives unpack to."""

import csv
import json
from collections.abc import Callable, Iterable
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError, check_choice
from boxwright.vision.datasets.base import (
    Change,
    VisionDataset,
    join_inside,
    read_list,
    read_mat,
)
from boxwright.vision.datasets.folder import default_loader, find_classes, make_dataset
from boxwright.vision.decode import read_file

Loader = Callable[[str], Any]


class _Listed(VisionDataset):
    """(image, class number) of images whose paths and classes `_fill` reads from the set's lists."""

    classes: list[Any]
    class_to_idx: dict[str, int]

    def __init__(
        self, root: str | Path, transform: Change, target_transform: Change, loader: Loader = default_loader
    ) -> None:
        super().__init__(root, None, transform, target_transform)
        self.loader = loader
        self.samples: list[tuple[str, int]] = []

    def _fill(self, folder: Path, names: Iterable[str], labels: Iterable[int]) -> None:
        self.samples = [(str(join_inside(folder, name)), label) for name, label in zip(names, labels, strict=True)]

    def _name(self, classes: Iterable[str]) -> None:
        self.classes = list(classes)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}

    def load(self, index: int) -> tuple[Any, Any]:
        """Return the image and its class number."""
        path, label = self.samples[index]
        return self.loader(path), label

    def __len__(self) -> int:
        return len(self.samples)


class Food101(_Listed):
    """(image, class number) of Food-101, from `food-101` in `root`; splits `train` and `test`."""

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Loader = default_loader,
    ) -> None:
        super().__init__(root, transform, target_transform, loader)
        check_choice("split", split, ("train", "test"))
        folder = Path(root) / "food-101"
        listing = folder / "meta" / f"{split}.json"
        self.check_download(download, listing)
        try:
            content: dict[str, list[str]] = json.loads(read_file(listing, "file"))
            pairs = [(f"{name}.jpg", kind) for kind, names in content.items() for name in names]
        except (ValueError, AttributeError, TypeError) as error:
            raise DataError(f"{str(listing)!r} must hold lists of names by class: {error}.") from error
        self._name(sorted(content))
        self._fill(folder / "images", [name for name, _ in pairs], [self.class_to_idx[kind] for _, kind in pairs])


class DTD(_Listed):
    """(image, class number) of the Describable Textures, from `dtd/dtd` in `root`.

    Args:
        root: the folder that holds `dtd/dtd/images` and `dtd/dtd/labels`.
        split: `train`, `val` or `test`.
        partition: which of the ten ways to split, 1 to 10.
        loader: returns the image of a path.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        partition: int = 1,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Loader = default_loader,
    ) -> None:
        super().__init__(root, transform, target_transform, loader)
        check_choice("split", split, ("train", "val", "test"))
        if partition not in range(1, 11):
            raise UsageError(f"partition={partition!r} must be a whole number from 1 to 10.")
        folder = Path(root) / "dtd" / "dtd"
        listing = folder / "labels" / f"{split}{partition}.txt"
        self.check_download(download, listing)
        names = [row[0] for row in read_list(listing)]
        kinds = [name.split("/")[0] for name in names]
        self._name(sorted(set(kinds)))
        self._fill(folder / "images", names, [self.class_to_idx[kind] for kind in kinds])


class FGVCAircraft(_Listed):
    """(image, class number) of FGVC Aircraft, from `fgvc-aircraft-2013b` in `root`.

    Args:
        root: the folder that holds `fgvc-aircraft-2013b/data`.
        split: `train`, `val`, `trainval` or `test`.
        annotation_level: `variant`, `family` or `manufacturer`.
        loader: returns the image of a path.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "trainval",
        annotation_level: str = "variant",
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Loader = default_loader,
    ) -> None:
        super().__init__(root, transform, target_transform, loader)
        check_choice("split", split, ("train", "val", "trainval", "test"))
        files = {"variant": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}
        check_choice("annotation level", annotation_level, files)
        folder = Path(root) / "fgvc-aircraft-2013b" / "data"
        listing = folder / f"images_{annotation_level}_{split}.txt"
        self.check_download(download, listing)
        self._name(" ".join(row) for row in read_list(folder / files[annotation_level]))
        rows = [(row[0], " ".join(row[1:])) for row in read_list(listing)]
        if unknown := sorted({kind for _, kind in rows} - set(self.classes)):
            raise DataError(f"{str(listing)!r} names the class {unknown[0]!r}, which {files[annotation_level]} lacks.")
        self._fill(
            folder / "images", [f"{name}.jpg" for name, _ in rows], [self.class_to_idx[kind] for _, kind in rows]
        )


class GTSRB(_Listed):
    """(image, class number) of the German traffic signs, from `gtsrb` in `root`; splits `train` and `test`."""

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
    ) -> None:
        super().__init__(root, transform, target_transform)
        check_choice("split", split, ("train", "test"))
        base = Path(root) / "gtsrb"
        folder = base / "GTSRB" / ("Training" if split == "train" else "Final_Test/Images")
        self.check_download(download, folder)
        if split == "train":
            self.samples = make_dataset(folder, extensions=".ppm")
            return
        listing = base / "GT-final_test.csv"
        rows = list(csv.DictReader(StringIO(read_file(listing, "file").decode()), delimiter=";"))
        try:
            self._fill(folder, [row["Filename"] for row in rows], [int(row["ClassId"]) for row in rows])
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f"{str(listing)!r} must have the columns Filename and ClassId: {error}.") from error


class SUN397(_Listed):
    """(image, class number) of SUN397, from `SUN397` in `root`."""

    def __init__(
        self,
        root: str | Path,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Loader = default_loader,
    ) -> None:
        super().__init__(root, transform, target_transform, loader)
        folder = Path(root) / "SUN397"
        listing = folder / "ClassName.txt"
        self.check_download(download, listing)
        # A line is a path: /a/abbey.
        self._name(row[0][3:] for row in read_list(listing))
        paths = sorted(folder.rglob("sun_*.jpg"))
        try:
            labels = [self.class_to_idx["/".join(path.relative_to(folder).parts[1:-1])] for path in paths]
        except KeyError as error:
            raise DataError(f"The folder {str(folder)!r} has images of {error}, which ClassName.txt lacks.") from error
        self.samples = [(str(path), label) for path, label in zip(paths, labels, strict=True)]


class Flowers102(_Listed):
    """(image, class number) of Oxford Flowers, from `flowers-102` in `root`; splits `train`, `val` and `test`.

    Its lists are MATLAB files, which scipy reads.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Loader = default_loader,
    ) -> None:
        super().__init__(root, transform, target_transform, loader)
        keys = {"train": "trnid", "val": "valid", "test": "tstid"}
        check_choice("split", split, keys)
        folder = Path(root) / "flowers-102"
        self.check_download(download, folder / "setid.mat", folder / "imagelabels.mat")
        numbers = read_mat(folder / "setid.mat", keys[split]).ravel().tolist()
        labels = read_mat(folder / "imagelabels.mat", "labels").ravel().tolist()
        if numbers and not 1 <= min(numbers) <= max(numbers) <= len(labels):
            raise DataError(f"setid.mat names image {max(numbers)}, but imagelabels.mat holds {len(labels)} labels.")
        names = [f"image_{number:05d}.jpg" for number in numbers]
        self._fill(folder / "jpg", names, [int(labels[number - 1]) - 1 for number in numbers])


class Caltech101(_Listed):
    """(image, class number) of Caltech 101, from `caltech101/101_ObjectCategories` in `root`.

    Only the target type `category` is offered; outlines (`annotation`) are not.
    """

    def __init__(
        self,
        root: str | Path,
        target_type: list[str] | str = "category",
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
    ) -> None:
        super().__init__(Path(root) / "caltech101", transform, target_transform)
        for kind in [target_type] if isinstance(target_type, str) else target_type:
            check_choice("target type", kind, ("category",))
        folder = Path(self.root) / "101_ObjectCategories"
        self.check_download(download, folder)
        self._name(name for name in find_classes(folder)[0] if name != "BACKGROUND_Google")
        self.categories = self.classes
        self.samples = make_dataset(folder, self.class_to_idx, extensions=".jpg")


class Caltech256(_Listed):
    """(image, class number) of Caltech 256, from `caltech256/256_ObjectCategories` in `root`."""

    def __init__(
        self,
        root: str,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
    ) -> None:
        super().__init__(Path(root) / "caltech256", transform, target_transform)
        folder = Path(self.root) / "256_ObjectCategories"
        self.check_download(download, folder)
        self._name(find_classes(folder)[0])
        self.categories = self.classes
        self.samples = make_dataset(folder, self.class_to_idx, extensions=".jpg")


class Imagenette(_Listed):
    """(image, class number) of Imagenette, from `imagenette2`, `imagenette2-320` or `imagenette2-160` in `root`.

    Args:
        root: the folder that holds the unpacked archive.
        split: `train` or `val`.
        size: `full`, `320px` or `160px`.
        loader: returns the image of a path.

    Attributes:
        classes: a tuple of names of each class.
        wnids: the WordNet id of each class.
    """

    names: ClassVar[dict[str, tuple[str, ...]]] = {
        "n01440764": ("tench", "Tinca tinca"),
        "n02102040": ("English springer", "English springer spaniel"),
        "n02979186": ("cassette player",),
        "n03000684": ("chain saw", "chainsaw"),
        "n03028079": ("church", "church building"),
        "n03394916": ("French horn", "horn"),
        "n03417042": ("garbage truck", "dustcart"),
        "n03425413": ("gas pump", "gasoline pump", "petrol pump", "island dispenser"),
        "n03445777": ("golf ball",),
        "n03888257": ("parachute", "chute"),
    }

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        size: str = "full",
        download: bool = False,
        transform: Change = None,
        target_transform: Change = None,
        loader: Loader = default_loader,
    ) -> None:
        super().__init__(root, transform, target_transform, loader)
        check_choice("split", split, ("train", "val"))
        folders = {"full": "imagenette2", "320px": "imagenette2-320", "160px": "imagenette2-160"}
        check_choice("size", size, folders)
        folder = Path(root) / folders[size] / split
        self.check_download(download, folder)
        self.wnids, self.wnid_to_idx = find_classes(folder)
        self.classes = [self.names.get(wnid, (wnid,)) for wnid in self.wnids]
        self.class_to_idx = {name: index for index, names in enumerate(self.classes) for name in names}
        self.samples = make_dataset(folder, self.wnid_to_idx, extensions=".jpeg")


def _load_grey(path: str) -> NDArray[np.uint8]:
    """Return an image without colours as an array HW."""
    return np.ascontiguousarray(default_loader(path)[..., 0])


class Omniglot(_Listed):
    """(image, class number) of Omniglot, from `omniglot-py` in `root`; an image is an array HW.

    Args:
        root: the folder that holds `omniglot-py/images_background` and `omniglot-py/images_evaluation`.
        background: the characters of the background set, or else those of the evaluation set.
        loader: returns the image of a path.

    Attributes:
        classes: alphabet and character, as in `Greek/character01`.
    """

    def __init__(
        self,
        root: str | Path,
        background: bool = True,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Loader = _load_grey,
    ) -> None:
        super().__init__(root, transform, target_transform, loader)
        folder = Path(root) / "omniglot-py" / ("images_background" if background else "images_evaluation")
        self.check_download(download, folder)
        alphabets = find_classes(folder)[0]
        self._name(f"{name}/{character}" for name in alphabets for character in find_classes(folder / name)[0])
        self.samples = make_dataset(folder, self.class_to_idx, extensions=".png")


class RenderedSST2(_Listed):
    """(image, class number) of Rendered SST2, from `rendered-sst2` in `root`; splits `train`, `val` and `test`."""

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
        loader: Loader = default_loader,
    ) -> None:
        super().__init__(root, transform, target_transform, loader)
        folders = {"train": "train", "val": "valid", "test": "test"}
        check_choice("split", split, folders)
        folder = Path(root) / "rendered-sst2" / folders[split]
        self.check_download(download, folder)
        self._name(("negative", "positive"))
        self.samples = make_dataset(folder, self.class_to_idx, extensions=".png")
