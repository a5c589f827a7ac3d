"""YOLO, one text file an image and a `data.yaml`: `read_yolo` and `write_yolo`."""

import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from boxwright.core.boxes import cxcywh_to_xyxy, xyxy_to_cxcywh
from boxwright.core.errors import DataError
from boxwright.data.decode import IMAGE_SUFFIXES
from boxwright.data.formats.faults import Fault, note
from boxwright.data.formats.files import Bring, bring_images, exported_names, label_stems, some, write_text
from boxwright.data.formats.yolo_folder import CLASS_FILE, find_yolo, label_folder, list_source
from boxwright.data.formats.yolo_text import format_label, parse_label
from boxwright.data.header import read_sizes_hw
from boxwright.data.records import PathText, Records

_log = logging.getLogger(__name__)


def read_yolo(
    path: PathText,
    split: str | None = None,
    *,
    names: Sequence[str] | None = None,
    faults: list[Fault] | None = None,
) -> Records:
    """Return the images and boxes of a YOLO set.

    The path is a `data.yaml`, a folder with one, a text file that lists images, or a folder of images. Labels are in
    `labels/` where the images are in `images/`, else beside the images. An image without a label file has no boxes.
    A line with a polygon becomes the box around it. Images that a list names and that are not there, and label files
    without an image, are left out, logged, and named in `Records.missing`.

    The format gives parts of the image, so the size of each image is read from its header. An image that can't be read
    stays in the set, without size and boxes: whoever loads it will say what is wrong.

    Args:
        path: where the set is.
        split: "train", "val" or "test" of the yaml, or folders of these names. None takes all of them.
        names: the class names by class id, where no yaml or `classes.txt` says them, or to replace those.
        faults: gets all that is wrong in the label files. Without it the first error is raised.

    Raises:
        DataError: there is no such set or split, nothing names the classes, or a label file is wrong.
    """
    yolo = find_yolo(Path(path))
    if yolo is None:
        raise DataError(f"There is no YOLO set at {str(path)!r}: no data.yaml and no label files. Check the path.")
    classes = tuple(names) if names is not None else yolo.names
    if classes is None:
        raise DataError(
            f"Nothing names the classes of {str(yolo.place)!r}. "
            f"Put 'names' into a data.yaml, or one name a line into {CLASS_FILE!r}."
        )
    sources = yolo.choose(split)
    listed = list(dict.fromkeys(image for source in sources for image in list_source(source)))
    root = _root(sources, listed)
    listings = _Listings()
    images = [image for image in listed if image.name in listings.images(image.parent)]
    missing = [os.path.relpath(image, root) for image in listed if image.name not in listings.images(image.parent)]
    missing += [os.path.relpath(label, root) for label in _orphans(images, listings)]
    if not images:
        raise DataError(f"None of the {len(missing)} images of {str(path)!r} was found: {some(missing)}. Check the path.")
    if missing:
        _log.warning(
            "%d images or labels of %r have no counterpart and are left out: %s.", len(missing), str(path), some(missing)
        )

    sizes: list[tuple[int, int]] = []
    all_boxes: list[NDArray[np.float64]] = []
    all_ids: list[NDArray[np.int32]] = []
    all_areas: list[NDArray[np.float64]] = []
    for image, size in zip(images, read_sizes_hw(images), strict=True):
        ...
