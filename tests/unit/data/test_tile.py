import io
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from boxwright.core.errors import DataError
from boxwright.data.decode import read_image
from boxwright.data.records import Records
from boxwright.data.tile import FileTiles, decode_scaled, fit
from boxwright.vision.letterbox import letterbox


def save_jpeg(path: Path, size_hw: tuple[int, int], orientation: int = 1) -> NDArray[np.uint8]:
    """Write a smooth picture with a red corner at the top left as stored, and return it."""
    height, width = size_hw
    ramp = np.linspace(30, 200, width)[None, :, None] + np.linspace(0, 40, height)[:, None, None]
    image = np.repeat(ramp, 3, axis=2).astype(np.uint8)
    image[: height // 3, : width // 3] = (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image[..., ::-1])).save(out, "JPEG", quality=95, exif=exif)
    path.write_bytes(out.getvalue())
    return image


def one_image(path: Path) -> Records:
    return Records.from_lists(root=path.parent, paths=[path.name], boxes_xyxy=[[]], class_ids=[[]], names=["x"])


@pytest.mark.parametrize(
    ("image_hw", "expected"), [((400, 560), (400, 560)), ((200, 300), (200, 300)), ((130, 200), (130, 200)),
                               ((800, 1200), (200, 300)), ((801, 1201), (201, 301)), ((2000, 3000), (250, 375))]
)  # fmt: skip
def test_a_jpeg_is_decoded_no_larger_than_needed_and_no_smaller(
    tmp_path: Path, image_hw: tuple[int, int], expected: tuple[int, int]
) -> None:
    save_jpeg(tmp_path / "a.jpg", image_hw)
    pixels, size_hw = decode_scaled(tmp_path / "a.jpg", (224, 288))
    assert size_hw == image_hw
    assert pixels.shape[:2] == expected
    wanted = fit(image_hw, (224, 288))
    assert pixels.shape[0] >= min(wanted[0], image_hw[0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_scaled_decoding_turns_by_exif_as_full_decoding_does(tmp_path: Path, orientation: int) -> None:
    path = tmp_path / "a.jpg"
    save_jpeg(path, (240, 400), orientation)
    full = read_image(path)
    pixels, size_hw = decode_scaled(path, (64, 96))
    assert size_hw == full.shape[:2]
    assert max(pixels.shape) < max(full.shape)
    small = cv2.resize(full, pixels.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert np.abs(pixels.astype(int) - small).mean() < 3


def test_a_png_is_decoded_in_full(tmp_path: Path) -> None:
    image = np.arange(400 * 300 * 3, dtype=np.uint8).reshape(400, 300, 3)
    (tmp_path / "a.png").write_bytes(cv2.imencode(".png", image)[1].tobytes())
    pixels, size_hw = decode_scaled(tmp_path / "a.png", (32, 32))
    assert size_hw == (400, 300)
    assert np.array_equal(pixels, image)


@pytest.mark.parametrize("cut", ["empty", "half", "missing", "noise"])
def test_a_bad_file_is_named(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "bad one é.jpg"
    save_jpeg(path, (400, 600))
    data = path.read_bytes()
    if cut == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "noise": b"no image at all"}[cut])
    with pytest.raises(DataError, match="bad one é"):
        decode_scaled(path, (64, 64))


def test_a_thumbnail_does_not_hide_that_a_jpeg_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    save_jpeg(path, (400, 600))
    data = path.read_bytes()
    segment = b"Exif\0\0" + b"thumbnail" + b"\xff\xd9"
    data = data[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:]
    path.write_bytes(data)
    assert decode_scaled(path, (64, 64))[1] == (400, 600)
    path.write_bytes(data[: len(data) * 3 // 4])
    with pytest.raises(DataError, match="cut off"):
        decode_scaled(path, (64, 64))


@pytest.mark.parametrize("image_hw", [(37, 61), (61, 37), (480, 640), (64, 64), (1, 200)])
def test_an_exact_tile_is_the_inner_part_of_the_letterbox(tmp_path: Path, image_hw: tuple[int, int]) -> None:
    path = tmp_path / "a.jpg"
    save_jpeg(path, image_hw)
    tile = FileTiles(one_image(path), (64, 96), exact=True).tile(0)
    boxed, ratio = letterbox(read_image(path), (64, 96))
    height, width = tile.pixels.shape[:2]
    assert (height, width) == fit(image_hw, (64, 96))
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
