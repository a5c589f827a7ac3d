import json
import math
from ast import literal_eval

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from support.shared import shared_path

from boxwright.data.augment import Scratch
from boxwright.data.dataset import Purpose, stream
from boxwright.data.mosaic import CORNERS, Mosaic, draw_mosaic, place_rows, render_mosaic, warp_rows
from boxwright.data.policy import AugmentPolicy
from boxwright.data.synthetic import draw_scene
from boxwright.data.tile import Tile

SIZE = (96, 128)
POLICIES = [AugmentPolicy(), AugmentPolicy(anchor="centre"), AugmentPolicy(scale=(0.5, 1.5), degrees=45, shear=20)]


def drawn(policy: AugmentPolicy, i: int, size_hw: tuple[int, int] = SIZE) -> Mosaic:
    return draw_mosaic(stream(0, Purpose.SAMPLE, 0, i), policy, size_hw)


@pytest.fixture(scope="module")
def tiles() -> dict[int, Tile]:
    sizes = [(96, 120), (80, 128), (96, 70), (96, 128)]
    return {corner: Tile(draw_scene(1, corner, hw)[0], hw) for corner, hw in enumerate(sizes)}


def place(mosaic: Mosaic, corner: int, h: int, w: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The part of the canvas that a tile covers, and the part of the tile that is there."""
    height, width = mosaic.size_hw
    x, y = mosaic.centre_xy
    left, top = (x - w if corner in (0, 2) else x), (y - h if corner in (0, 1) else y)
    x1, y1, x2, y2 = max(left, 0), max(top, 0), min(left + w, 2 * width), min(top + h, 2 * height)
    return (x1, y1, x2, y2), (x1 - left, y1 - top, x2 - left, y2 - top)


def plain_canvas(mosaic: Mosaic, tiles: dict[int, Tile]) -> NDArray[np.uint8]:
    """The published way: all four images on a canvas of twice the size."""
    canvas = np.full((2 * mosaic.size_hw[0], 2 * mosaic.size_hw[1], 3), 114, np.uint8)
    for corner, tile in tiles.items():
        (x1, y1, x2, y2), (left, top, right, bottom) = place(mosaic, corner, *tile.pixels.shape[:2])
        canvas[y1:y2, x1:x2] = tile.pixels[top:bottom, left:right]
    return canvas


def test_the_canvas_compared_with_is_that_of_the_reference() -> None:
    golden = json.loads(shared_path("golden/preprocess_and_schedule.json").read_text())["mosaic_coord"]
    for key, (covered, part) in golden.items():
        corner, x, y, width, height = literal_eval(key)
        mosaic = Mosaic((64, 64), (x, y), np.eye(2, 3))
        assert place(mosaic, corner, height, width) == (tuple(covered), tuple(part)), key


@pytest.mark.parametrize("policy", POLICIES)
def test_pixels_equal_those_of_a_warped_canvas(policy: AugmentPolicy, tiles: dict[int, Tile]) -> None:
    scratch, out = Scratch(), np.empty((*SIZE, 3), np.uint8)
    for i in range(60):
        mosaic = drawn(policy, i)
        canvas = plain_canvas(mosaic, tiles)
        expected = cv2.warpAffine(canvas, mosaic.matrix, SIZE[::-1], borderValue=(114, 114, 114))
        render_mosaic(mosaic, {c: tiles[c] for c in mosaic.visible_corners()}, out, scratch)
        assert np.abs(out.astype(int) - expected).max() <= 3, i


def test_another_size_is_the_same_view_resized() -> None:
    smooth = np.linspace(0, 250, 128).astype(np.uint8)[None, :, None].repeat(96, 0).repeat(3, 2)
    tiles = {corner: Tile(np.ascontiguousarray(smooth), SIZE) for corner in CORNERS}
    # Centre and scale such that the tiles fill the view: at their edges the two ways may differ.
    mosaic = Mosaic(SIZE, (128, 96), np.array([[1.1, 0.1, -20.0], [-0.1, 1.1, -12.0]]))
    scratch = Scratch()
    base = np.empty((*SIZE, 3), np.uint8)
    render_mosaic(mosaic, {0: tiles[0]}, base, scratch)
    for size in ((192, 256), (48, 64), (160, 192)):
        out = np.empty((*size, 3), np.uint8)
        render_mosaic(mosaic, {0: tiles[0]}, out, scratch)
        resized = cv2.resize(base, size[::-1], interpolation=cv2.INTER_LINEAR)
        assert np.median(np.abs(out.astype(int) - resized)) <= 1, size


def test_a_tile_that_is_left_out_as_invisible_would_not_show(tiles: dict[int, Tile]) -> None:
    hidden = 0
    for policy in POLICIES:
        for i in range(60):
            mosaic = drawn(policy, i)
            for corner in set(CORNERS) - set(mosaic.visible_corners()):
                hidden += 1
                white = Tile(np.full((*SIZE, 3), 255, np.uint8), SIZE)
                canvas = plain_canvas(mosaic, {corner: white})
                seen = cv2.warpAffine(canvas, mosaic.matrix, SIZE[::-1], borderValue=(114, 114, 114))
                assert (seen == 114).all()
    assert hidden > 50


def test_a_mosaic_out_of_sight_is_padding(tiles: dict[int, Tile]) -> None:
    mosaic = Mosaic(SIZE, (100, 100), np.array([[1.0, 0, 5000], [0, 1.0, 0]]))
    out = np.zeros((*SIZE, 3), np.uint8)
    assert mosaic.visible_corners() == []
    render_mosaic(mosaic, tiles, out, Scratch())
    assert (out == 114).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_boxes_are_those_around_the_warped_corners(policy: AugmentPolicy) -> None:
    rng = np.random.default_rng(3)
    for i in range(40):
        mosaic = drawn(policy, i)
        low = rng.uniform(-20, 200, (12, 2))
        rows = np.column_stack((low, low + rng.uniform(1, 90, (12, 2)), np.arange(12))).astype(np.float32)
        expected = []
        for *box, class_id in rows.astype(np.float64):
            x1, y1, x2, y2 = np.clip(box, 0, (256, 192, 256, 192))
            corners = np.array([(x1, y1, 1), (x2, y1, 1), (x2, y2, 1), (x1, y2, 1)]) @ mosaic.matrix.T
            a, b = corners.min(axis=0).clip(0, (128, 96)), corners.max(axis=0).clip(0, (128, 96))
            if (b - a > 1).all():
                expected.append((*a, *b, class_id))
        warped = warp_rows(mosaic, rows, SIZE)
        assert warped[:, 4].tolist() == [e[4] for e in expected]
        assert np.allclose(warped, np.array(expected).reshape(-1, 5), atol=1e-3)


def test_boxes_scale_with_the_output() -> None:
    mosaic = Mosaic(SIZE, (128, 96), np.eye(2, 3))
    rows = np.array([[10, 20, 30, 50, 7]], np.float32)
    assert warp_rows(mosaic, rows, (192, 128)).tolist() == [[10, 40, 30, 100, 7]]


def test_boxes_follow_their_tile_to_the_canvas() -> None:
    mosaic = Mosaic((64, 64), (40, 80), np.eye(2, 3))
    tile = Tile(np.zeros((48, 64, 3), np.uint8), (96, 128))
    rows = np.array([[10, 20, 30, 40, 1]], np.float32)
    assert place_rows(mosaic, 0, tile, rows).tolist() == [[5 - 24, 10 + 32, 15 - 24, 20 + 32, 1]]
    assert place_rows(mosaic, 3, tile, rows).tolist() == [[5 + 40, 10 + 80, 15 + 40, 20 + 80, 1]]


def test_drawn_mosaics_cover_the_ranges_of_the_recipe() -> None:
    policy = AugmentPolicy(degrees=10, shear=0, scale=(0.1, 2.0), translate=0.1)
    mosaics = [drawn(policy, i) for i in range(1500)]
    centres = np.array([m.centre_xy for m in mosaics])
    assert (centres.min(axis=0) < (66, 50)).all()
    assert (centres.min(axis=0) >= (64, 48)).all()
    assert (centres.max(axis=0) > (189, 141)).all()
    assert (centres.max(axis=0) < (192, 144)).all()
    scales = [math.hypot(m.matrix[0, 0], m.matrix[1, 0]) for m in mosaics]
    assert 0.1 <= min(scales) < 0.12
    assert 1.98 < max(scales) <= 2.0
    angles = np.degrees([math.atan2(m.matrix[0, 1], m.matrix[0, 0]) for m in mosaics])
    assert -10 <= angles.min() < -9.9
    assert 9.9 < angles.max() <= 10
    shifts = np.array([m.matrix[:, 2] for m in mosaics])
    assert (np.abs(shifts).max(axis=0) <= (12.8, 9.6)).all()
    assert (np.abs(shifts).max(axis=0) > (12.6, 9.4)).all()


def test_the_centre_anchor_keeps_the_middle_in_the_middle() -> None:
    policy = AugmentPolicy(anchor="centre", translate=0.0)
    for i in range(20):
        assert np.allclose(drawn(policy, i).matrix @ (128, 96, 1), (64, 48))
