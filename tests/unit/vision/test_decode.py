import io
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from boxwright.core.errors import DataError
from boxwright.vision.decode import IMAGE_SUFFIXES, decode_image, decode_scaled, list_images, read_image
from boxwright.vision.letterbox import fit_hw

Bgr = NDArray[np.uint8]


@pytest.fixture
def picture() -> Bgr:
    """40 by 60, smooth, with a red corner at the top left."""
    ramp = np.linspace(40, 200, 60)[None, :, None] + np.linspace(0, 40, 40)[:, None, None]
    image = np.repeat(ramp, 3, axis=2).astype(np.uint8)
    image[:16, :16] = (0, 0, 255)
    return image


def encoded(picture: Bgr, kind: str = "JPEG", mode: str = "RGB", **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture[..., ::-1])).convert(mode).save(out, kind, **options)
    return out.getvalue()


def rotated(picture: Bgr, kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture, kind, exif=exif)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_kinds_come_exactly_in_bgr(picture: Bgr, kind: str) -> None:
    image = decode_image(encoded(picture, kind), "x")
    assert image.dtype == np.uint8
    assert np.array_equal(image, picture)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 100}])
def test_a_jpeg_comes_nearly_so(picture: Bgr, options: dict[str, object]) -> None:
    image = decode_image(encoded(picture, "JPEG", **options), "x").astype(int)
    assert np.abs(image - picture).mean() < 4
    assert image[2, 2].argmax() == 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize(
    ("orientation", "red_at"), [(1, (2, 2)), (3, (-3, -3)), (6, (2, -3)), (8, (-3, 2)), (2, (2, -3)), (5, (2, 2))]
)
def test_the_exif_orientation_is_applied(picture: Bgr, kind: str, orientation: int, red_at: tuple[int, int]) -> None:
    image = decode_image(rotated(picture, kind, orientation), "x")
    assert image.shape == ((60, 40, 3) if orientation >= 5 else (40, 60, 3))
    blue, green, red = image[red_at].tolist()
    assert red > 200
    assert max(blue, green) < 60


@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "L"), ("PNG", "L"), ("PNG", "LA"), ("PNG", "1")])
def test_gray_becomes_three_equal_channels(picture: Bgr, kind: str, mode: str) -> None:
    image = decode_image(encoded(picture, kind, mode), "x")
    assert image.shape == (40, 60, 3)
    assert np.array_equal(image[..., 0], image[..., 2])


def test_alpha_is_dropped_and_a_palette_looked_up(picture: Bgr) -> None:
    assert np.array_equal(decode_image(encoded(picture, "PNG", "RGBA"), "x"), picture)
    assert decode_image(encoded(picture, "PNG", "P"), "x")[2, 2].tolist() == [0, 0, 255]


def test_a_cmyk_jpeg_keeps_its_colours(picture: Bgr) -> None:
    image = decode_image(encoded(picture, "JPEG", "CMYK"), "x").astype(int)
    assert np.abs(image - picture).mean() < 5


@pytest.mark.parametrize("suffix", [".png", ".tiff", ".ppm"])
def test_sixteen_bits_are_scaled_to_eight(suffix: str) -> None:
    values = np.linspace(0, 65535, 64 * 64 * 3).astype(np.uint16).reshape(64, 64, 3)
    image = decode_image(cv2.imencode(suffix, values)[1].tobytes(), "x")
    assert image.dtype == np.uint8
    assert (image.min(), image.max()) == (0, 255)
    assert np.abs(image - values / 257).max() <= 1


@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "GIF"])
def test_a_cut_off_file_is_refused(picture: Bgr, kind: str, part: float) -> None:
    data = encoded(picture, kind)
    with pytest.raises(DataError, match=r"Cannot read image 'half\.x': it is (cut off|damaged|not an image)"):
        decode_image(data[: int(len(data) * part)], "half.x")


def test_a_progressive_jpeg_that_lost_its_last_scans_is_refused(picture: Bgr) -> None:
    data = encoded(picture, "JPEG", progressive=True)
    with pytest.raises(DataError, match="cut off"):
        decode_image(data[: len(data) * 3 // 4], "x")


def test_a_download_padded_with_zeros_is_refused(picture: Bgr) -> None:
    data = encoded(picture, "JPEG")
    with pytest.raises(DataError, match="cut off"):
        decode_image(data[: len(data) // 2] + bytes(len(data) // 2), "x")


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image(picture: Bgr) -> None:
    small = encoded(picture[::4, ::4])
    data = encoded(picture)
    segment = b"Exif\0\0" + small
    data = data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]
    assert decode_image(data, "x").shape == (40, 60, 3)
    with pytest.raises(DataError, match="cut off"):
        decode_image(data[:-40], "x")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_bytes_behind_the_end_do_no_harm(picture: Bgr, kind: str) -> None:
    data = encoded(picture, kind)
    assert np.array_equal(decode_image(data + b"appended by a camera" * 500, "x"), decode_image(data, "x"))


def test_fill_bytes_between_jpeg_segments_do_no_harm(picture: Bgr) -> None:
    data = encoded(picture)
    assert decode_image(data[:2] + b"\xff\xff" + data[2:], "x").shape == (40, 60, 3)


def jpeg(size_hw: tuple[int, int], orientation: int = 1) -> bytes:
    """A smooth picture with a red corner at the top left as stored."""
    height, width = size_hw
    ramp = np.linspace(30, 200, width)[None, :, None] + np.linspace(0, 40, height)[:, None, None]
    image = np.repeat(ramp, 3, axis=2).astype(np.uint8)
    image[: height // 3, : width // 3] = (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, "JPEG", quality=95, exif=exif)


@pytest.mark.parametrize(
    ("image_hw", "expected"), [((400, 560), (400, 560)), ((200, 300), (200, 300)), ((130, 200), (130, 200)),
                               ((800, 1200), (200, 300)), ((801, 1201), (201, 301)), ((2000, 3000), (250, 375))]
)  # fmt: skip
def test_a_jpeg_is_decoded_no_larger_than_needed_and_no_smaller(
    image_hw: tuple[int, int], expected: tuple[int, int]
) -> None:
    pixels, size_hw = decode_scaled(jpeg(image_hw), "a.jpg", (224, 288))
    assert size_hw == image_hw
    assert pixels.shape[:2] == expected
    assert pixels.shape[0] >= min(fit_hw(image_hw, (224, 288))[0], image_hw[0])


@pytest.mark.parametrize(("cover", "shape"), [(False, (50, 100, 3)), (True, (100, 200, 3))])
def test_an_image_that_covers_its_place_keeps_both_sides_long_enough(cover: bool, shape: tuple[int, ...]) -> None:
    assert decode_scaled(jpeg((200, 400)), "a.jpg", (100, 100), cover=cover)[0].shape == shape


@pytest.mark.parametrize("orientation", range(1, 9))
def test_scaled_decoding_turns_by_exif_as_full_decoding_does(orientation: int) -> None:
    data = jpeg((240, 400), orientation)
    full = decode_image(data, "a.jpg")
    pixels, size_hw = decode_scaled(data, "a.jpg", (64, 96))
    assert size_hw == full.shape[:2]
    assert max(pixels.shape) < max(full.shape)
    small = cv2.resize(full, pixels.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert np.abs(pixels.astype(int) - small).mean() < 3


def test_scaled_decoding_reads_a_png_in_full() -> None:
    image = np.arange(400 * 300 * 3, dtype=np.uint8).reshape(400, 300, 3)
    pixels, size_hw = decode_scaled(cv2.imencode(".png", image)[1].tobytes(), "a.png", (32, 32))
    assert size_hw == (400, 300)
    assert np.array_equal(pixels, image)


@pytest.mark.parametrize("bad", ["empty", "half", "noise"])
def test_scaled_decoding_names_a_bad_file(bad: str) -> None:
    data = jpeg((400, 600))
    data = {"empty": b"", "half": data[: len(data) // 2], "noise": b"no image at all"}[bad]
    with pytest.raises(DataError, match="bad one é"):
        decode_scaled(data, "bad one é.jpg", (64, 64))


def test_a_thumbnail_does_not_hide_from_scaled_decoding_that_a_jpeg_is_cut_off() -> None:
    data = jpeg((400, 600))
    segment = b"Exif\0\0" + b"thumbnail" + b"\xff\xd9"
    data = data[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:]
    assert decode_scaled(data, "a.jpg", (64, 64))[1] == (400, 600)
    with pytest.raises(DataError, match="cut off"):
        decode_scaled(data[: len(data) * 3 // 4], "a.jpg", (64, 64))


@pytest.mark.parametrize("data", [b"hello", b"<html>not found</html>" * 20, b"\0" * 500, b"\xff\xd8\xff", b"\xff\xd8"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match=r"Cannot read image 'x\.jpg'"):
        decode_image(data, "x.jpg")


def test_an_empty_file_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "none.jpg").touch()
    with pytest.raises(DataError, match=r"none\.jpg': it is empty \(0 bytes\)"):
        read_image(tmp_path / "none.jpg")


def test_more_pixels_than_opencv_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_PIXELS", "9999999999")
    header = struct.pack(">IIBBBBB", 40000, 40000, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")
    with pytest.raises(DataError, match="more pixels than OpenCV can decode"):
        decode_image(data, "huge.png")


def test_a_long_narrow_image_is_read() -> None:
    data = cv2.imencode(".png", np.full((2, 20000), 9, np.uint8))[1].tobytes()
    assert decode_image(data, "x").shape == (2, 20000, 3)


@pytest.mark.parametrize("name", ["plain.png", "with space.png", "größe-猫.png", "no_suffix"])
def test_any_path_is_read(tmp_path: Path, picture: Bgr, name: str) -> None:
    (tmp_path / name).write_bytes(encoded(picture, "PNG"))
    assert np.array_equal(read_image(tmp_path / name), picture)
    assert np.array_equal(read_image(str(tmp_path / name)), picture)


def test_the_pixels_belong_to_the_caller(picture: Bgr) -> None:
    image = decode_image(encoded(picture, "PNG"), "x")
    image[:] = 0
    assert image.flags.c_contiguous


def test_a_missing_file_a_folder_and_a_loop_of_links_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jpg': there is no such file"):
        read_image(tmp_path / "gone.jpg")
    with pytest.raises(DataError, match="it is a folder"):
        read_image(tmp_path)
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    with pytest.raises(DataError, match=r"loop\.jpg': .*symbolic links"):
        read_image(tmp_path / "loop.jpg")
    with pytest.raises(DataError, match="null byte"):
        read_image("a\0b.jpg")


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Be a user with no rights for a while, where the tests run as root, who may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_without_permission_is_refused(tmp_path: Path, picture: Bgr) -> None:
    (tmp_path / "secret.jpg").write_bytes(encoded(picture))
    (tmp_path / "secret.jpg").chmod(0)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o755)
    with _as_nobody(), pytest.raises(DataError, match=r"secret\.jpg': permission denied"):
        read_image(tmp_path / "secret.jpg")


def test_images_are_listed_sorted_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.PNG", "._b.jpg", "notes.txt", "sub/c.webp", ".cache/d.jpg", "sub/e.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    assert list_images(tmp_path) == [tmp_path / "a.PNG", tmp_path / "b.jpg"]
    assert list_images(tmp_path, recursive=True)[-1] == tmp_path / "sub/c.webp"
    assert len(list_images(tmp_path, recursive=True)) == 3


def test_a_folder_that_is_not_there_can_not_be_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere': No such file"):
        list_images(tmp_path / "nowhere")


def test_suffixes_are_lower_case_with_a_dot() -> None:
    assert {".jpg", ".jpeg", ".png"} <= IMAGE_SUFFIXES
    assert all(s == s.lower() and s.startswith(".") for s in IMAGE_SUFFIXES)
