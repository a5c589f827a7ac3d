"""Pictures of a run: the first held-out images at each evaluation, with what the network finds in them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import xywh_to_xyxy
from boxwright.core.errors import DataError
from boxwright.core.files import write_whole
from boxwright.core.log import get_logger
from boxwright.core.types import Detections
from boxwright.data.records import Records
from boxwright.data.shards import read_encoded
from boxwright.vision.decode import decode_scaled
from boxwright.vision.draw import contact_sheet, draw_dashed, draw_detections
from boxwright.vision.letterbox import PAD_VALUE, fit_hw, resize

_log = get_logger(__name__)
LARGEST = 300_000
"""How many bytes a sheet of pictures should have at most."""

_FOLDER = "pictures"
_NAME = re.compile(r"step_([0-9]{8,})\.jpg")
_IMAGES = 9
_TILE_PX = 320
_MIN_SCORE = 0.3
_QUALITIES = (85, 70, 50, 30, 15)

LEGEND = f"Solid boxes are found with a score of at least {_MIN_SCORE:g}, dashed ones are labelled."


def save_pictures(folder: Path, step: int, records: Records, state: Mapping[str, NDArray[Any]]) -> None:
    """Draw the first images of a set into one sheet in the folder of a run.

    A sheet that can't be written is a warning: it is not worth a run.

    Args:
        folder: the run's.
        step: of the evaluation.
        records: the set that was scored.
        state: of the evaluator that has its detections.
    """
    tiles = [tile for at in range(min(_IMAGES, len(records))) if (tile := _draw(records, at, state)) is not None]
    if not tiles:
        return
    path = folder / _FOLDER / f"step_{step:08d}.jpg"
    try:
        write_whole(path, _encode(contact_sheet(tiles, (_TILE_PX, _TILE_PX), PAD_VALUE)))
    except OSError as error:
        _log.warning("%r could not be written: %s. The run continues without it.", str(path), error.strerror)


def find_pictures(folder: Path) -> dict[int, Path]:
    """Return the sheets of a run by step, in order; links that lead out of its folder are left out."""
    top, found = folder.resolve(), {}
    for path in (folder / _FOLDER).glob("step_*.jpg"):
        match = _NAME.fullmatch(path.name)
        if match is not None and path.is_file() and path.resolve().is_relative_to(top):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def drop_pictures(folder: Path, *, after: int) -> None:
    """Remove the sheets of later steps than this one: a resumed run repeats them."""
    for step, path in find_pictures(folder).items():
        if step > after:
            path.unlink(missing_ok=True)


def _draw(records: Records, at: int, state: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8] | None:
    """Return an image with its boxes, fitted into a tile; None if it can't be read."""
    try:
        image, size_hw = decode_scaled(read_encoded(records.path(at)), str(records.path(at)), (_TILE_PX, _TILE_PX))
    except DataError:  # scoring has left it out with a warning
        return None
    of_image = state["detection_image_ids"] == records.image_ids[at]
    shown = np.flatnonzero(of_image & (state["detection_scores"] >= _MIN_SCORE))
    found = Detections(
        boxes_xyxy=xywh_to_xyxy(state["detection_boxes_xywh"][shown]).astype(np.float32),
        scores=state["detection_scores"][shown],
        class_ids=state["detection_class_ids"][shown],
        names=records.names,
        size_hw=size_hw,
    )
    small = resize(image, fit_hw((image.shape[0], image.shape[1]), (_TILE_PX, _TILE_PX)))
    return draw_dashed(draw_detections(small, found), records.boxes(at), size_hw)


def _encode(sheet: NDArray[np.uint8]) -> bytes:
    """Return the sheet as a JPEG, of the best quality that is small enough."""
    data = b""
    for quality in _QUALITIES:
        data = cv2.imencode(".jpg", sheet, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
        if len(data) <= LARGEST:
            break
    return data
