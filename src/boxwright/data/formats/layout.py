"""`find_layout`: in which format a set is, from its files."""

from pathlib import Path
from typing import Literal, TypeAlias, get_args

from boxwright.core.errors import DataError, UsageError, suggest
from boxwright.data.formats.coco_folder import CocoFolder, find_coco, json_files
from boxwright.data.formats.voc_folder import VocFolder, find_voc
from boxwright.data.formats.yolo_folder import YoloFolder, find_yolo
from boxwright.vision.decode import list_images

Format = Literal["coco", "voc", "yolo"]

Layout: TypeAlias = CocoFolder | VocFolder | YoloFolder

_NEEDED = (
    "a COCO json beside the images, a YOLO data.yaml with labels/ beside images/, or "
    "Pascal VOC Annotations/ beside JPEGImages/"
)


def check_format(format: str) -> None:
    """Refuse a name that is no format.

    Raises:
        UsageError: it is none of coco, voc and yolo.
    """
    known = get_args(Format)
    if format not in known:
        raise UsageError(f"Unknown format {format!r}.{suggest(format, known)} Choose from: {', '.join(known)}.")


def find_layout(place: Path, format: Format | None = None) -> Layout:
    """Return the layout of the set at a path: a json, a yaml, a list of images, or a folder.

    Raises:
        DataError: nothing in a known format is there, or the folder can be read in several ways.
        UsageError: the format is unknown.
    """
    if format is not None:
        check_format(format)
    if not place.exists():
        raise DataError(f"There is no data set at {str(place)!r}. Check the path.")
    found: dict[str, Layout] = {}
    if format in (None, "coco") and (coco := find_coco(place)):
        found["coco"] = coco
    if format in (None, "voc") and place.is_dir() and (voc := find_voc(place)):
        found["voc"] = voc
    if format in (None, "yolo") and (yolo := find_yolo(place)):
        found["yolo"] = yolo
    if len(found) > 1:
        ways = " and ".join(f"{name} ({_sign(layout, place)})" for name, layout in found.items())
        raise DataError(
            f"The folder {str(place)!r} can be read in {len(found)} ways: {ways}. Name the json or yaml file itself, "
            f"or give the format: {' or '.join(repr(name) for name in found)}."
        )
    if found:
        return next(iter(found.values()))
    # A single json is taken as it is: if something is wrong with it, reading it says what.
    files = json_files(place) if format in (None, "coco") and place.is_dir() else []
    if len(files) == 1:
        return CocoFolder(place=place, files={"": (files[0],)})
    raise DataError(_nothing(place, format))


def _sign(layout: Layout, place: Path) -> str:
    """Return the file or folder that gave a layout away."""
    if isinstance(layout, CocoFolder):
        sign = layout.every[0]
    elif isinstance(layout, VocFolder):
        sign = next(iter(layout.parts.values())).labels
    elif layout.place.is_file():
        return repr(layout.place.name)
    else:
        sign = next(iter(layout.sources.values()))[0]
    return repr(str(sign.relative_to(place.absolute())))


def _nothing(place: Path, format: Format | None) -> str:
    if place.is_file():
        return (
            f"{str(place)!r} is no annotation file in a known format. "
            "Name a COCO json, a YOLO data.yaml, a text file that lists images, or a folder."
        )
    if format is not None:
        return f"The folder {str(place)!r} holds no set in the format {format!r}. Check the path or the format."
    images = len(list_images(place, recursive=True))
    what = f"holds {images} images but no labels" if images else "holds neither images nor labels"
    return f"The folder {str(place)!r} {what} in a known format. It needs {_NEEDED}."
