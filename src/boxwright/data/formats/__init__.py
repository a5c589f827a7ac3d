"""Annotation formats: every reader gives the same `Records`."""

from pathlib import Path

from boxwright.core.errors import DataError
from boxwright.data.decode import list_images
from boxwright.data.formats.coco import find_coco_json, read_coco
from boxwright.data.records import PathText, Records

__all__ = ["read_records"]


def read_records(path: PathText) -> Records:
    """Return the set at a path: a COCO json, or a folder that holds one.

    Raises:
        DataError: there is nothing at the path, or nothing with labels in a known format.
    """
    place = Path(path)
    if place.is_file():
        if place.suffix.lower() == ".json":
            return read_coco(place)
        raise DataError(f"{str(place)!r} is no annotation file in a known format. Name a COCO json.")
    if not place.is_dir():
        raise DataError(f"There is no data set at {str(place)!r}. Check the path.")
    found = find_coco_json(place)
    if found is not None:
        return read_coco(found)
    images = len(list_images(place, recursive=True))
    what = f"holds {images} images but no labels" if images else "holds neither images nor labels"
    raise DataError(f"The folder {str(place)!r} {what}. A COCO json is needed beside the images.")
