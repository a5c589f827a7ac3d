"""Images with boxes, masks, captions or breeds: COCO, Pascal VOC, Oxford-IIIT Pet and folders of masks."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.core.errors import DataError, check_choice
from boxwright.vision.datasets.base import (
    Change,
    ChangeBoth,
    VisionDataset,
    join_inside,
    load_image,
    load_mask,
    read_list,
)
from boxwright.vision.decode import read_file


class CocoDetection(VisionDataset):
    """(image, annotations) of a COCO set: an RGB array, and the list of the image's annotation dicts.

    It needs no pycocotools, so there is no attribute `coco`; `images` and `categories` hold what the file says.

    Args:
        root: the folder of the images.
        annFile: the JSON file.
        allow_outside: also read images that the file names outside of `root`.

    Attributes:
        ids: the ids of the images, sorted.
        images: by id, what the file says about an image.
        categories: by id, what the file says about a category.
    """

    def __init__(
        self,
        root: str | Path,
        annFile: str | Path,
        transform: Change = None,
        target_transform: Change = None,
        transforms: ChangeBoth = None,
        *,
        allow_outside: bool = False,
    ) -> None:
        super().__init__(root, transforms, transform, target_transform)
        self._allow_outside = allow_outside
        self._annotations: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        try:
            content = json.loads(read_file(annFile, "file"))
            self.images: dict[Any, dict[str, Any]] = {image["id"]: image for image in content["images"]}
            self.categories: dict[Any, dict[str, Any]] = {item["id"]: item for item in content.get("categories", [])}
            # Test sets come without annotations.
            for annotation in content.get("annotations", []):
                self._annotations[annotation["image_id"]].append(annotation)
            self.ids = sorted(self.images)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"The file {str(annFile)!r} is not in COCO's form ({type(error).__name__}: {error}). "
                "It must hold 'images' with ids and 'annotations' with image_ids."
            ) from error

    def load(self, index: int) -> tuple[Any, Any]:
        """Return the image and its annotations."""
        image_id = self.ids[index]
        name = self.images[image_id].get("file_name")
        if not isinstance(name, str):
            raise DataError(f"Image {image_id!r} has the 'file_name' {name!r}. Give it the name of a file.")
        image = load_image(join_inside(self.root, name, allow_outside=self._allow_outside))
        return image, self._target(image_id)

    def _target(self, image_id: Any) -> list[Any]:
        return list(self._annotations.get(image_id, ()))

    def __len__(self) -> int:
        return len(self.ids)


class CocoCaptions(CocoDetection):
    """(image, captions) of a COCO set: an RGB array, and the list of the image's captions; otherwise as above."""

    def _target(self, image_id: Any) -> list[Any]:
        captions = [annotation.get("caption") for annotation in super()._target(image_id)]
        if None in captions:
            raise DataError(f"An annotation of image {image_id!r} has no 'caption'. Use the captions_*.json file.")
        return captions


class _VOC(VisionDataset):
    """What both tasks of Pascal VOC share: the images of a list, and a file of the same name for each."""

    _task = ("Main", "Annotations", ".xml")

    def __init__(
        self,
        root: str | Path,
        year: str = "2012",
        image_set: str = "train",
        download: bool = False,
        transform: Change = None,
        target_transform: Change = None,
        transforms: ChangeBoth = None,
    ) -> None:
        super().__init__(root, transforms, transform, target_transform)
        check_choice("year", year, ("2007", "2008", "2009", "2010", "2011", "2012"))
        sets = ("train", "trainval", "val", *(("test",) if year == "2007" else ()))
        check_choice(f"{year} image_set", image_set, sets)
        folder = Path(root) / ("TrainVal" if year == "2011" else "") / "VOCdevkit" / f"VOC{year}"
        self.check_download(download, folder)
        self.year = year
        self.image_set = image_set
        lists, targets, ending = self._task
        # The lists of single classes have a second column.
        names = [row[0] for row in read_list(folder / "ImageSets" / lists / f"{image_set}.txt")]
        self.images = [str(join_inside(folder / "JPEGImages", f"{name}.jpg")) for name in names]
        self.targets = [str(join_inside(folder / targets, f"{name}{ending}")) for name in names]

    def __len__(self) -> int:
        return len(self.images)


class VOCDetection(_VOC):
    """(image, annotation) of a Pascal VOC set: an RGB array, and the XML file as nested dicts.

    Args:
        root: the folder that holds `VOCdevkit/VOC2012` (for 2011: `TrainVal/VOCdevkit/VOC2011`).
        year: 2007 to 2012.
        image_set: `train`, `val` or `trainval`; for 2007 also `test`.

    Attributes:
        images: paths of the images.
        targets: paths of the XML files; `annotations` is the same.
    """

    @property
    def annotations(self) -> list[str]:
        """Paths of the XML files."""
        return self.targets

    @staticmethod
    def parse_voc_xml(node: ElementTree.Element) -> dict[str, Any]:
        """Return an XML element as nested dicts; repeated elements become a list, `object` always is one."""
        return {node.tag: _xml_value(node)}

    def load(self, index: int) -> tuple[Any, Any]:
        """Return the image and its annotation."""
        path = self.targets[index]
        try:
            annotation = ElementTree.fromstring(read_file(path, "file"))
        except ElementTree.ParseError as error:
            raise DataError(f"The annotation {path!r} is not an XML file: {error}.") from error
        return load_image(self.images[index]), self.parse_voc_xml(annotation)


class VOCSegmentation(_VOC):
    """(image, mask) of a Pascal VOC set: an RGB array, and the class of each pixel (HW; 0 background, 255 unlabelled).

    Arguments as in `VOCDetection`.

    Attributes:
        images: paths of the images.
        targets: paths of the masks; `masks` is the same.
    """

    _task = ("Segmentation", "SegmentationClass", ".png")

    @property
    def masks(self) -> list[str]:
        """Paths of the masks."""
        return self.targets

    def load(self, index: int) -> tuple[Any, Any]:
        """Return the image and its mask."""
        return load_image(self.images[index]), load_mask(self.targets[index])


def _xml_value(node: ElementTree.Element) -> Any:
    if len(node) == 0 and node.tag != "annotation":
        return (node.text or "").strip()
    found: dict[str, list[Any]] = {}
    for child in node:
        found.setdefault(child.tag, []).append(_xml_value(child))
    values: dict[str, Any] = {tag: items[0] if len(items) == 1 else items for tag, items in found.items()}
    if node.tag == "annotation":
        values["object"] = found.get("object", [])
    return values


class OxfordIIITPet(VisionDataset):
    """(image, target) of the Oxford-IIIT Pet set: 37 breeds of cats and dogs, with trimaps.

    Args:
        root: the folder that holds `oxford-iiit-pet/images` and `oxford-iiit-pet/annotations`.
        split: `trainval` or `test`.
        target_types: `category` (breed, 0 to 36), `binary-category` (0 cat, 1 dog), `segmentation` (the trimap, HW),
            or several of them for a tuple.

    Attributes:
        classes: names of the breeds.
        class_to_idx: the number of each breed.
        bin_classes: `Cat` and `Dog`.
        bin_class_to_idx: the number of each.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "trainval",
        target_types: Sequence[str] | str = "category",
        transforms: ChangeBoth = None,
        transform: Change = None,
        target_transform: Change = None,
        download: bool = False,
    ) -> None:
        super().__init__(root, transforms, transform, target_transform)
        check_choice("split", split, ("trainval", "test"))
        self._target_types = [target_types] if isinstance(target_types, str) else list(target_types)
        for kind in self._target_types:
            check_choice("target type", kind, ("category", "binary-category", "segmentation"))
        self._base = Path(root) / "oxford-iiit-pet"
        self.check_download(download, self._base / "images", self._base / "annotations")
        listing = self._base / "annotations" / f"{split}.txt"
        try:
            rows = read_list(listing)
            self._ids = [row[0] for row in rows]
            self._labels = [int(row[1]) - 1 for row in rows]
            self._bin_labels = [int(row[2]) - 1 for row in rows]
        except (ValueError, IndexError) as error:
            raise DataError(f"{str(listing)!r} must have lines of a name, a breed and a species: {error}.") from error
        breeds = {label: name.rsplit("_", 1)[0] for name, label in zip(self._ids, self._labels, strict=True)}
        self.classes = [" ".join(part.title() for part in breeds[label].split("_")) for label in sorted(breeds)]
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self.bin_classes = ["Cat", "Dog"]
        self.bin_class_to_idx = {"Cat": 0, "Dog": 1}

    def load(self, index: int) -> tuple[Any, Any]:
        """Return the image and its target."""
        image = load_image(join_inside(self._base / "images", f"{self._ids[index]}.jpg"))
        targets = tuple(self._target(kind, index) for kind in self._target_types)
        return image, targets if len(targets) > 1 else targets[0] if targets else None

    def _target(self, kind: str, index: int) -> Any:
        if kind == "category":
            return self._labels[index]
        if kind == "binary-category":
            return self._bin_labels[index]
        return load_mask(join_inside(self._base / "annotations" / "trimaps", f"{self._ids[index]}.png"))

    def __len__(self) -> int:
        return len(self._ids)


class SegmentationImageFolder(VisionDataset):
    """(image, target) of images whose masks give each object its own number, 0 being the background.

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
    """

    def __init__(self, root: str | Path, image_folder: str, mask_folder: str, transforms: ChangeBoth = None) -> None:
        super().__init__(root, transforms)
        self.image_folder = str(Path(root) / image_folder)
        self.mask_folder = str(Path(root) / mask_folder)
        self.imgs = _names(self.image_folder)
        self.masks = _names(self.mask_folder)
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

    def load(self, index: int) -> tuple[Any, Any]:
        """Return the image and its objects."""
        image = load_image(Path(self.image_folder) / self.imgs[index])
        numbers = load_mask(Path(self.mask_folder) / self.masks[index])
        return image, _objects(numbers, index)

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
