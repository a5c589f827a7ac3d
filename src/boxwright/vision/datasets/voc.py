"""Pascal VOC: images with boxes in XML."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from torch.utils.data import Dataset

from boxwright.core.errors import DataError, UsageError
from boxwright.vision.datasets.decode import load_image
from boxwright.vision.datasets.pair import PairTransform, refuse_download
from boxwright.vision.decode import read_file

_YEARS = ("2007", "2008", "2009", "2010", "2011", "2012")


class VOCDetection(Dataset[tuple[Any, Any]]):
    """Gives (image, annotation) of a Pascal VOC set: an RGB array, and the XML file as nested dicts.

    Args:
        root: the folder that holds `VOCdevkit/VOC2012` (for 2011: `TrainVal/VOCdevkit/VOC2011`).
        year: 2007 to 2012.
        image_set: `train`, `val` or `trainval`; for 2007 also `test`.
        download: not offered.
        transform: changes the image.
        target_transform: changes the annotation.
        transforms: changes both.

    Attributes:
        images: paths of the images.
        targets: paths of the XML files; `annotations` is the same.

    Raises:
        UsageError: there is no such year or set, or `download` is asked for.
        DataError: a file is missing.
    """

    def __init__(
        self,
        root: str | Path,
        year: str = "2012",
        image_set: str = "train",
        download: bool = False,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        if year not in _YEARS:
            raise UsageError(f"Unknown year {year!r}. Choose from: {', '.join(_YEARS)}.")
        sets = ("train", "trainval", "val", "test") if year == "2007" else ("train", "trainval", "val")
        if image_set not in sets:
            raise UsageError(f"Unknown image_set {image_set!r} for year {year!r}. Choose from: {', '.join(sets)}.")
        inside = Path("TrainVal") if year == "2011" else Path()
        folder = Path(root) / inside / "VOCdevkit" / f"VOC{year}"
        refuse_download(download, "VOCDetection", str(folder))
        self.root = str(root)
        self.year = year
        self.image_set = image_set
        self.transforms = PairTransform(transform, target_transform, transforms)
        listing = read_file(folder / "ImageSets" / "Main" / f"{image_set}.txt", "file").decode()
        # The lists of single classes have a second column.
        names = [line.split()[0] for line in listing.splitlines() if line.strip()]
        self.images = [str(folder / "JPEGImages" / f"{name}.jpg") for name in names]
        self.targets = [str(folder / "Annotations" / f"{name}.xml") for name in names]

    @property
    def annotations(self) -> list[str]:
        """Paths of the XML files."""
        return self.targets

    @staticmethod
    def parse_voc_xml(node: ElementTree.Element) -> dict[str, Any]:
        """Return an XML element as nested dicts; repeated elements become a list, `object` always is one."""
        return {node.tag: _value(node)}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return the image and its annotation."""
        path = self.targets[index]
        try:
            annotation = ElementTree.fromstring(read_file(path, "file"))
        except ElementTree.ParseError as error:
            raise DataError(f"The annotation {path!r} is no XML file: {error}.") from error
        return self.transforms(load_image(self.images[index]), self.parse_voc_xml(annotation))

    def __len__(self) -> int:
        return len(self.images)


def _value(node: ElementTree.Element) -> Any:
    if len(node) == 0 and node.tag != "annotation":
        return (node.text or "").strip()
    found: dict[str, list[Any]] = {}
    for child in node:
        found.setdefault(child.tag, []).append(_value(child))
    values: dict[str, Any] = {tag: items[0] if len(items) == 1 else items for tag, items in found.items()}
    if node.tag == "annotation":
        values["object"] = found.get("object", [])
    return values
