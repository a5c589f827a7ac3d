"""Oxford-IIIT Pet: 37 breeds of cats and dogs, with trimaps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from boxwright.core.errors import DataError, UsageError
from boxwright.vision.datasets.decode import load_image, load_mask
from boxwright.vision.datasets.pair import PairTransform, refuse_download
from boxwright.vision.decode import read_file

_TARGET_TYPES = ("category", "binary-category", "segmentation")


class OxfordIIITPet(Dataset[tuple[Any, Any]]):
    """Gives (image, target) of the Oxford-IIIT Pet set, read from local files.

    Args:
        root: the folder that holds `oxford-iiit-pet/images` and `oxford-iiit-pet/annotations`.
        split: `trainval` or `test`.
        target_types: `category` (breed, 0 to 36), `binary-category` (0 cat, 1 dog), `segmentation` (the trimap, HW),
            or several of them for a tuple.
        transforms: changes image and target.
        transform: changes the image.
        target_transform: changes the target.
        download: not offered.

    Attributes:
        classes: names of the breeds.
        class_to_idx: the number of each breed.
        bin_classes: `Cat` and `Dog`.
        bin_class_to_idx: the number of each.

    Raises:
        UsageError: there is no such split or target, or `download` is asked for.
        DataError: the list of images is missing or damaged.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "trainval",
        target_types: Sequence[str] | str = "category",
        transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        if split not in ("trainval", "test"):
            raise UsageError(f"Unknown split {split!r}. Choose from: trainval, test.")
        self._target_types = [target_types] if isinstance(target_types, str) else list(target_types)
        for kind in self._target_types:
            if kind not in _TARGET_TYPES:
                raise UsageError(f"Unknown target type {kind!r}. Choose from: {', '.join(_TARGET_TYPES)}.")
        self.root = str(root)
        self._base = Path(root) / "oxford-iiit-pet"
        refuse_download(download, "OxfordIIITPet", str(self._base))
        self.transforms = PairTransform(transform, target_transform, transforms)
        listing = self._base / "annotations" / f"{split}.txt"
        try:
            rows = [line.split() for line in read_file(listing, "file").decode().splitlines() if line.strip()]
            self._ids = [row[0] for row in rows]
            self._labels = [int(row[1]) - 1 for row in rows]
            self._bin_labels = [int(row[2]) - 1 for row in rows]
        except (ValueError, IndexError) as error:
            raise DataError(f"{str(listing)!r} must have lines of a name, a breed and a species: {error}.") from error
        breeds = {label: name.rsplit("_", 1)[0] for name, label in zip(self._ids, self._labels, strict=True)}
        self.classes = [" ".join(part.title() for part in breeds[label].split("_")) for label in sorted(breeds)]
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self.bin_classes = ["Cat", "Dog"]
        self.bin_class_to_idx = {name: index for index, name in enumerate(self.bin_classes)}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return the image and its target."""
        image = load_image(self._base / "images" / f"{self._ids[index]}.jpg")
        targets = tuple(self._target(kind, index) for kind in self._target_types)
        target: Any = targets if len(targets) > 1 else targets[0] if targets else None
        return self.transforms(image, target)

    def _target(self, kind: str, index: int) -> Any:
        if kind == "category":
            return self._labels[index]
        if kind == "binary-category":
            return self._bin_labels[index]
        return load_mask(self._base / "annotations" / "trimaps" / f"{self._ids[index]}.png")

    def __len__(self) -> int:
        return len(self._ids)
