from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from boxwright.data.records import Records
from boxwright.data.tile import FileTiles
from boxwright.vision.decode import read_image
from boxwright.vision.letterbox import fit_hw, letterbox


def save_jpeg(path: Path, size_hw: tuple[int, int]) -> None:
    """Write a smooth picture with a red corner at the top left."""
    height, width = size_hw
    ramp = np.linspace(30, 200, width)[None, :, None] + np.linspace(0, 40, height)[:, None, None]
    image = np.repeat(ramp, 3, axis=2).astype(np.uint8)
    image[: height // 3, : width // 3] = (0, 0, 255)
    path.write_bytes(cv2.imencode(".jpg", image)[1].tobytes())


def one_image(path: Path) -> Records:
    return Records.from_lists(root=path.parent, paths=[path.name], boxes_xyxy=[[]], class_ids=[[]], names=["x"])


@pytest.mark.parametrize("image_hw", [(37, 61), (61, 37), (64, 64), (100, 180), (1, 150)])
def test_a_tile_of_a_small_image_is_the_inner_part_of_the_letterbox(tmp_path: Path, image_hw: tuple[int, int]) -> None:
    path = tmp_path / "a.jpg"
    save_jpeg(path, image_hw)
    tile = FileTiles(one_image(path), (64, 96)).tile(0)
    boxed, ratio = letterbox(read_image(path), (64, 96))
    height, width = tile.pixels.shape[:2]
    assert (height, width) == fit_hw(image_hw, (64, 96))
    assert tile.ratio((64, 96)) == ratio
    assert np.array_equal(boxed[:height, :width], tile.pixels)


def test_a_huge_image_becomes_a_small_tile(tmp_path: Path) -> None:
    path = tmp_path / "huge.jpg"
    path.write_bytes(cv2.imencode(".jpg", np.full((200, 20_000, 3), 90, np.uint8))[1].tobytes())
    tile = FileTiles(one_image(path), (64, 64)).tile(0)
    assert tile.size_hw == (200, 20_000)
    assert tile.pixels.shape == (1, 64, 3)
    assert np.abs(tile.pixels.astype(int) - 90).max() <= 2


@pytest.mark.parametrize("kind", ["16 bits", "grey", "cmyk"])
def test_unusual_pixels_become_bgr(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.png"
    if kind == "16 bits":
        path.write_bytes(cv2.imencode(".png", np.full((90, 70, 3), 40_000, np.uint16))[1].tobytes())
    elif kind == "grey":
        path.write_bytes(cv2.imencode(".png", np.full((90, 70), 156, np.uint8))[1].tobytes())
    else:
        path = tmp_path / "a.jpg"
        Image.new("CMYK", (70, 90), (99, 99, 99, 0)).save(path, quality=95)
    tile = FileTiles(one_image(path), (64, 64)).tile(0)
    assert tile.pixels.shape == (64, 49, 3)
    assert np.abs(tile.pixels.astype(int) - 156).max() <= 3
