"""Synthetic scenes: shapes on busy backgrounds, with exact boxes. A scene depends on (seed, index) alone."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError, check_choice
from boxwright.data.formats.coco import write_coco
from boxwright.data.records import PathText, Records

Pixels: TypeAlias = NDArray[np.float32]
Window: TypeAlias = tuple[slice, slice]


def _spokes(radii: Sequence[float] | NDArray[Any], angles: NDArray[Any] | None = None) -> Pixels:
    """Return points around (0, 0) at these distances, by default evenly spaced from the top."""
    if angles is None:
        angles = np.arange(len(radii)) * (2 * np.pi / len(radii)) - np.pi / 2
    points = np.stack((np.cos(angles), np.sin(angles)), axis=1) * np.asarray(radii)[:, None]
    return np.asarray(points, np.float32)


_ARM = 0.32

SHAPES: dict[str, Pixels] = {
    "circle": _spokes([1.0] * 48),
    "square": np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float32),
    "triangle": _spokes([1.0] * 3),
    "star": _spokes([1.0, 0.42] * 5),
    "cross": np.array(
        [[_ARM, -1], [_ARM, -_ARM], [1, -_ARM], [1, _ARM], [_ARM, _ARM], [_ARM, 1],
         [-_ARM, 1], [-_ARM, _ARM], [-1, _ARM], [-1, -_ARM], [-_ARM, -_ARM], [-_ARM, -1]],
        np.float32,
    ),
}  # fmt: skip
"""The classes, each an outline around (0, 0) of points (N, 2)."""

MIN_VISIBLE = 0.4
"""Later shapes may hide earlier ones, but leave at least this fraction of each. So every shape drawn is labelled."""

_EMPTY_SCENES = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneStyle:
    """How hard scenes are to read.

    Attributes:
        most_shapes: shapes of a scene, at most.
        tries: how often a place is sought for each of them.
        smallest: a shape's longer side, as a fraction of the image's shorter one; None for 12 pixels.
        min_visible: the fraction of each shape that later ones leave visible.
        min_inside: a shape may extend beyond the image, but this fraction of it is inside.
        min_contrast: the least difference from the background in one channel, of 255.
        turn: the most that a shape is turned, in radians; None for any angle.
        patterns: whether backgrounds and shapes may be striped or checkered.
        clutter: whether there are patches, lines and curves that are no shapes.
        lighting: how much brightness may fall and rise across the image.
    """

    most_shapes: int = 9
    tries: int = 8
    smallest: float | None = None
    min_visible: float = MIN_VISIBLE
    min_inside: float = 0.6
    min_contrast: float = 45
    turn: float | None = None
    patterns: bool = True
    clutter: bool = True
    lighting: tuple[float, float] = (0.55, 1.25)


BUSY = SceneStyle()
"""Many shapes of all sizes that hide each other, among clutter."""

CLEAR = SceneStyle(
    most_shapes=6,
    tries=40,
    smallest=0.18,
    min_visible=0.95,
    min_inside=0.9,
    min_contrast=90,
    turn=0.3,
    patterns=False,
    clutter=False,
    lighting=(0.8, 1.1),
)
"""Few shapes, large, whole and upright: a small detector learns them in minutes."""


def draw_scene(
    seed: int,
    index: int,
    size_hw: tuple[int, int] = (320, 320),
    classes: Sequence[str] | None = None,
    style: SceneStyle = BUSY,
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.int32]]:
    """Return a scene: the image (H, W, 3) in BGR, the boxes xyxy (N, 4) and their class ids (N,).

    A box is tight around the whole shape, also around parts that a later shape hides, and clipped to the image. Some
    scenes have no shape.

    Args:
        seed: the scene's set.
        index: the scene's place in the set.
        size_hw: height and width, at least 64 each.
        classes: names from `SHAPES`, by class id; all of them by default.
        style: how hard it is to read.

    Raises:
        UsageError: the size is too small, a class is unknown, or a number is negative.

    Example:
        >>> image, boxes_xyxy, class_ids = draw_scene(seed=0, index=3, size_hw=(96, 128))
        >>> image.shape, boxes_xyxy.shape[1], len(boxes_xyxy) == len(class_ids)
        ((96, 128, 3), 4, True)
    """
    names = _checked_classes(classes)
    if min(size_hw) < 64:
        raise UsageError(f"size_hw={size_hw!r} is too small for a scene. Use at least 64 by 64.")
    if seed < 0 or index < 0:
        raise UsageError(f"seed={seed!r}, index={index!r}: neither may be negative.")
    # The index is part of the seed, so that no scene depends on those before it.
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(index,))))
    canvas = _background(rng, size_hw, style)
    if style.clutter:
        _add_clutter(rng, canvas)
    boxes, class_ids = add_shapes(rng, canvas, names, partial(_draw, style=style), style)
    return _photograph(rng, canvas, style), boxes, class_ids


def generate_scenes(
    folder: PathText,
    *,
    images: int,
    seed: int,
    size_hw: tuple[int, int] = (320, 320),
    classes: Sequence[str] | None = None,
    style: SceneStyle = BUSY,
) -> Records:
    """Write scenes 0 to `images - 1` of a seed as a COCO set and return its records.

    Writes `images/000000.jpg` and so on, then `instances.json`, over files of these names. The same arguments give the
    same bytes.

    Raises:
        UsageError: `images` is less than 1, the size is too small, or a class is unknown.
        DataError: the folder can't be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     records = generate_scenes(folder, images=2, seed=1, size_hw=(64, 64))
        >>> len(records), records.names
        (2, ('circle', 'square', 'triangle', 'star', 'cross'))
    """
    if images < 1:
        raise UsageError(f"images={images!r}: a set needs at least one scene.")
    names = _checked_classes(classes)
    root = Path(os.path.abspath(folder)) / "images"
    paths = [f"{index:06d}.jpg" for index in range(images)]
    all_boxes, all_class_ids = [], []
    try:
        root.mkdir(parents=True, exist_ok=True)
        for index, path in enumerate(paths):
            image, boxes, class_ids = draw_scene(seed, index, size_hw, names, style)
            # Not cv2.imwrite, which only returns False when the disk is full.
            (root / path).write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())
            all_boxes.append(boxes)
            all_class_ids.append(class_ids)
    except OSError as error:
        raise DataError(f"Cannot write scenes to {str(root)!r}: {error.strerror}. Choose another folder.") from error
    sizes_hw = [size_hw] * images
    records = Records.from_lists(
        root=root, paths=paths, boxes_xyxy=all_boxes, class_ids=all_class_ids, names=names, sizes_hw=sizes_hw
    )
    write_coco(records, root.parent / "instances.json")
    return records


def _checked_classes(classes: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(SHAPES if classes is None else classes)
    for name in names:
        check_choice("shape", name, SHAPES)
    if not names or len(set(names)) != len(names):
        raise UsageError(f"classes={names!r}: name one or more different shapes out of {', '.join(SHAPES)}.")
    return names


def _colour(rng: Generator, low: float = 20, high: float = 235) -> Pixels:
    """Return a random colour, (3,)."""
    return rng.uniform(low, high, 3).astype(np.float32)


def _ramp(rng: Generator, size_hw: tuple[int, int]) -> Pixels:
    """Return a slope from 0 to 1 in a random direction, shape (H, W, 1)."""
    height, width = size_hw
    angle = rng.uniform(0, 2 * np.pi)
    x = np.linspace(-0.5, 0.5, width, dtype=np.float32)[None, :] * np.float32(np.cos(angle))
    y = np.linspace(-0.5, 0.5, height, dtype=np.float32)[:, None] * np.float32(np.sin(angle))
    slope: Pixels = x + y
    return np.asarray((slope - slope.min()) / (slope.max() - slope.min()), np.float32)[..., None]


def _clouds(rng: Generator, size_hw: tuple[int, int], cells: int) -> Pixels:
    """Return soft patches from -1 to 1, shape (H, W, 1)."""
    grid = rng.uniform(-1, 1, (cells, cells)).astype(np.float32)
    return np.asarray(cv2.resize(grid, size_hw[::-1], interpolation=cv2.INTER_LINEAR), np.float32)[..., None]


def _stripes(rng: Generator, size_hw: tuple[int, int], period: float) -> Pixels:
    """Return 0 and 1 in stripes, shape (H, W, 1)."""
    length = float(np.hypot(*size_hw))
    return np.asarray(np.floor(_ramp(rng, size_hw) * (length / period)) % 2, np.float32)


def _texture(
    rng: Generator, size_hw: tuple[int, int], first: Pixels, second: Pixels, scale: float, style: SceneStyle
) -> Pixels:
    """Return a surface (H, W, 3) of two colours: plain, sloping, striped, checkered or cloudy."""
    odds = [0.25, 0.25, 0.2, 0.15, 0.15] if style.patterns else [0.4, 0.4, 0.0, 0.0, 0.2]
    kind = rng.choice(["plain", "slope", "stripes", "checks", "clouds"], p=odds)
    if kind == "plain":
        mix = np.zeros((*size_hw, 1), np.float32)
    elif kind == "slope":
        mix = _ramp(rng, size_hw)
    elif kind == "stripes":
        mix = _stripes(rng, size_hw, scale)
    elif kind == "checks":
        mix = np.abs(_stripes(rng, size_hw, scale) - _stripes(rng, size_hw, scale))
    else:
        mix = _clouds(rng, size_hw, int(np.clip(max(size_hw) / scale, 2, 48))) * 0.5 + 0.5
    return first + mix * (second - first)


def _background(rng: Generator, size_hw: tuple[int, int], style: SceneStyle) -> Pixels:
    first = _colour(rng)
    # Never two strong colours in a pattern: shapes must stand out more than the background does.
    second = np.clip(first + rng.uniform(-60, 60, 3), 0, 255).astype(np.float32)
    ground = _texture(rng, size_hw, first, second, rng.uniform(8, 60), style)
    ground = ground + _clouds(rng, size_hw, int(rng.integers(2, 9))) * rng.uniform(5, 35)
    return np.ascontiguousarray(ground, dtype=np.float32)


def _add_clutter(rng: Generator, canvas: Pixels) -> None:
    """Draw distractors: ragged soft patches, lines and curves."""
    height, width = canvas.shape[:2]
    side = min(height, width)
    for _ in range(rng.integers(0, 5)):
        # Uneven angles, because a patch with even ones may look like a star.
        angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(9, 16)))
        patch = _spokes(rng.uniform(0.25, 1.0, len(angles)), angles) * rng.uniform(0.06, 0.3) * side
        cover = _cover(patch + rng.uniform((0, 0), (width, height)), (slice(0, height), slice(0, width)))
        soft = np.asarray(cv2.GaussianBlur(cover, (0, 0), rng.uniform(1.5, 6)), np.float32)
        _paint(canvas, soft, _colour(rng), float(rng.uniform(0.3, 0.8)))
    # OpenCV draws smooth lines on 8 bits only.
    plate = np.clip(canvas, 0, 255).astype(np.uint8)
    for _ in range(rng.integers(0, 9)):
        points = np.round(rng.uniform((0, 0), (width, height), (int(rng.integers(2, 5)), 2)))
        line = points.astype(np.int32).reshape(-1, 1, 2)
        cv2.polylines(plate, [line], False, _colour(rng).tolist(), int(rng.integers(1, 5)), cv2.LINE_AA)
    for _ in range(rng.integers(0, 4)):
        x, y = rng.integers((0, 0), (width, height)).tolist()
        across, down = (rng.uniform(0.05, 0.4, 2) * side).astype(int).tolist()
        turn, start, length = rng.uniform((0, 0, 30), (360, 360, 150)).tolist()
        paint, thickness = _colour(rng).tolist(), int(rng.integers(1, 4))
        cv2.ellipse(plate, (x, y), (across, down), turn, start, start + length, paint, thickness, cv2.LINE_AA)
    canvas[:] = plate


def add_shapes(
    rng: Generator,
    canvas: Pixels,
    names: Sequence[str],
    draw: Callable[[Generator, Pixels, Pixels, float], None],
    style: SceneStyle = BUSY,
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Draw shapes one over the other on a canvas (H, W, 3) and return their boxes and class ids.

    Args:
        rng: of all random numbers.
        canvas: float32 (H, W, 3).
        names: the classes.
        draw: paints one shape: random numbers, a part of the canvas, how much of each pixel it covers, its length.
        style: how many shapes there are, how large, and how much of them is hidden.
    """
    size_hw = (canvas.shape[0], canvas.shape[1])
    count = 0 if rng.random() < _EMPTY_SCENES else 1 + int(style.most_shapes * rng.random() ** 1.6)
    boxes: list[tuple[int, int, int, int]] = []
    class_ids: list[int] = []
    visible: list[NDArray[np.bool_]] = []
    areas: list[int] = []
    for _ in range(count):
        class_id = int(rng.integers(len(names)))
        for _ in range(style.tries):
            outline = _place(rng, SHAPES[names[class_id]], size_hw, style)
            window = _window(outline, size_hw)
            cover = _cover(outline, window)
            solid = cover >= 0.5
            area = int(np.count_nonzero(solid))
            if area < style.min_inside * cv2.contourArea(outline) or any(
                np.count_nonzero(v) - np.count_nonzero(v[window] & solid) < style.min_visible * a
                for v, a in zip(visible, areas, strict=True)
            ):
                continue
            for v in visible:
                v[window] &= ~solid
            visible.append(np.zeros(size_hw, np.bool_))
            visible[-1][window] = solid
            areas.append(area)
            x, y, width, height = cv2.boundingRect(solid.astype(np.uint8))
            left, top = x + window[1].start, y + window[0].start
            boxes.append((left, top, left + width, top + height))
            class_ids.append(class_id)
            draw(rng, canvas[window], cover, float(np.ptp(outline, axis=0).max()))
            break
    return np.array(boxes, np.float32).reshape(-1, 4), np.array(class_ids, np.int32)


def _place(rng: Generator, outline: Pixels, size_hw: tuple[int, int], style: SceneStyle) -> Pixels:
    """Return the outline at a random size, stretch, rotation and place, in pixels."""
    height, width = size_hw
    # Log-uniform: as many between 12 and 24 pixels as between 60 and 120.
    smallest = 12.0 if style.smallest is None else style.smallest * min(size_hw)
    side = np.exp(rng.uniform(np.log(smallest), np.log(min(size_hw) / 2)))
    stretch = np.exp(rng.uniform(-0.15, 0.15))
    angle = rng.uniform(0, 2 * np.pi) if style.turn is None else rng.uniform(-style.turn, style.turn)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shape = (outline * (stretch, 1 / stretch)) @ turn.T
    low, high = shape.min(axis=0), shape.max(axis=0)
    shape = (shape - (low + high) / 2) * (side / (high - low).max())
    return np.asarray(shape + rng.uniform((0, 0), (width, height)), np.float32)


def _window(outline: Pixels, size_hw: tuple[int, int]) -> Window:
    """Return the part of the image that a shape and its shadow may touch."""
    low, high = outline.min(axis=0), outline.max(axis=0)
    margin = 0.3 * (high - low).max() + 4
    (x1, y1), (x2, y2) = np.floor(low - margin).clip(0).astype(int), np.ceil(high + margin).astype(int)
    return slice(int(y1), min(int(y2), size_hw[0])), slice(int(x1), min(int(x2), size_hw[1]))


def _cover(outline: Pixels, window: Window) -> Pixels:
    """Return how much of each pixel of a window an outline covers, 0 to 1, shape (H, W)."""
    rows, columns = window
    cover = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
    # Integer coordinates are pixel centres in OpenCV, and pixel corners in boxes.
    points = np.round((outline - (columns.start + 0.5, rows.start + 0.5)) * 256).astype(np.int32).reshape(-1, 1, 2)
    cv2.fillPoly(cover, [points], [255], cv2.LINE_AA, shift=8)
    return np.asarray(cover, np.float32) / np.float32(255)


def _paint(canvas: Pixels, cover: Pixels, surface: Pixels, strength: float = 1.0) -> None:
    canvas += (surface - canvas) * (cover * np.float32(strength))[..., None]


def _draw(rng: Generator, canvas: Pixels, cover: Pixels, side: float, *, style: SceneStyle) -> None:
    """Paint one shape: perhaps a shadow, a surface that differs from the background, perhaps an edge."""
    size_hw = (canvas.shape[0], canvas.shape[1])
    if rng.random() < 0.4:
        right, down = rng.uniform(-0.12, 0.12, 2) * side
        shift = np.array([[1, 0, right], [0, 1, down]], np.float32)
        shadow = cv2.GaussianBlur(cv2.warpAffine(cover, shift, size_hw[::-1]), (0, 0), max(1.0, side * 0.05))
        _paint(canvas, np.asarray(shadow, np.float32), np.zeros(3, np.float32), float(rng.uniform(0.2, 0.6)))
    ground = canvas[cover >= 0.5].mean(axis=0)
    first = _colour(rng, 0, 255)
    while np.abs(first - ground).max() < style.min_contrast:
        first = _colour(rng, 0, 255)
    second = np.clip(first + rng.uniform(-70, 70, 3), 0, 255).astype(np.float32)
    _paint(canvas, cover, _texture(rng, size_hw, first, second, max(4.0, side * rng.uniform(0.1, 0.3)), style))
    if rng.random() < 0.3 and side > 24:
        # Inside the outline, so that the box stays the same.
        edge = 2 * max(1, int(side * rng.uniform(0.02, 0.07))) + 1
        inner = cv2.erode(cover, np.ones((edge, edge), np.uint8))
        _paint(canvas, cover - np.asarray(inner, np.float32), _colour(rng, 0, 255))


def _photograph(rng: Generator, canvas: Pixels, style: SceneStyle) -> NDArray[np.uint8]:
    """Return the canvas as a camera sees it: lit from one side, perhaps blurred, with noise."""
    low, high = np.sort(rng.uniform(*style.lighting, 2)).astype(np.float32)
    lit = canvas * (low + (high - low) * _ramp(rng, (canvas.shape[0], canvas.shape[1])))
    if rng.random() < 0.4:
        lit = np.asarray(cv2.GaussianBlur(lit, (0, 0), rng.uniform(0.4, 1.0)), np.float32)
    noise = rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(rng.uniform(0, 9))
    return np.asarray(np.rint(lit + noise).clip(0, 255), np.uint8)
