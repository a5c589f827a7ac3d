"""Pictures with coloured squares on black, and sets and videos of them, made for the toy detector."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

NAMES = ("red", "green", "blue")
CELL = 8
"""Side of a square where the picture is 64 pixels wide."""

Square = tuple[str, int, int]
"""Class name, column and row, counted in squares from the top left."""

_BGR = {"red": (0, 0, 255), "green": (0, 255, 0), "blue": (255, 0, 0)}


def scene(*squares: Square, size_hw: tuple[int, int] = (64, 64), cell: int = CELL) -> NDArray[np.uint8]:
    """Return a BGR picture with the squares in it."""
    image = np.zeros((*size_hw, 3), np.uint8)
    for name, column, row in squares:
        image[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = _BGR[name]
    return image


def save_scene(path: Path, *squares: Square) -> Path:
    """Write such a picture; the ending of the name says as what."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, scene(*squares))[1].tobytes())
    return path


def save_video(path: Path, frames: Iterable[NDArray[np.uint8]], *, fps: float = 10) -> Path:
    """Write frames of one size as a video."""
    writer = None
    for frame in frames:
        if writer is None:
            size = (frame.shape[1], frame.shape[0])
            writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), fps, size)
        writer.write(frame)
    assert writer is not None
    writer.release()
    return path


def save_labelled_set(folder: Path, scenes: Sequence[Sequence[Square]], *, names: Sequence[str] = NAMES) -> Path:
    """Write `images/*.png` and a COCO json with the squares as truth, and return the folder.

    The categories are numbered 10, 20, 30, in the order of the names.
    """
    images, annotations = [], []
    for number, squares in enumerate(scenes, start=1):
        save_scene(folder / "images" / f"{number:04d}.png", *squares)
        images.append({"id": number, "file_name": f"{number:04d}.png", "height": 64, "width": 64})
        for name, column, row in squares:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 10 * (1 + list(names).index(name)),
                    "bbox": [column * CELL, row * CELL, CELL, CELL],
                    "area": CELL * CELL,
                    "iscrowd": 0,
                }
            )
    categories = [{"id": 10 * n, "name": name} for n, name in enumerate(names, start=1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(content))
    return folder
