import io
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from boxwright.core.errors import DataError
from boxwright.vision.decode import decode_image, read_size_hw
from boxwright.vision.image_header import parse_header


def encoded(kind: str, orientation: int = 1, size_hw: tuple[int, int] = (40, 60), **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(np.full((*size_hw, 3), 90, np.uint8)).save(out, kind, exif=exif, **options)
    return out.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_header_tells_the_size_that_decoding_gives(kind: str, orientation: int) -> None:
    data = encoded(kind, orientation)
    header = parse_header(data)
    assert header is not None
    assert header.orientation == orientation
    assert header.stored_hw == (40, 60)
    assert header.size_hw == decode_image(data, "x").shape[:2]


def test_progressive_and_grey_jpegs_have_headers_too() -> None:
    progressive = parse_header(encoded("JPEG", progressive=True))
    grey = parse_header(cv2.imencode(".jpg", np.zeros((7, 9), np.uint8))[1].tobytes())
    assert progressive is not None
    assert grey is not None
    assert (progressive.size_hw, grey.size_hw) == ((40, 60), (7, 9))


def test_a_small_picture_inside_the_exif_block_is_not_taken_for_the_image() -> None:
    inner = encoded("JPEG", size_hw=(5, 5))
    whole = encoded("JPEG", size_hw=(40, 60))
    segment = b"Exif\0\0II*\0\x08\0\0\0\0\0" + inner
    data = whole[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + whole[2:]
    header = parse_header(data)
    assert header is not None
    assert header.stored_hw == (40, 60)


def test_an_exif_orientation_outside_of_1_to_8_is_no_orientation() -> None:
    header = parse_header(encoded("JPEG", 9))
    assert header is not None
    assert header.orientation == 1


@pytest.mark.parametrize("keep", [0, 1, 3, 4, 10, 24, 40, 160])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_half_a_header_is_none(kind: str, keep: int) -> None:
    assert parse_header(encoded(kind)[:keep]) is None


@pytest.mark.parametrize("ending", [".jpg", ".png", ".bmp", ".webp"])
def test_files_of_any_format_tell_their_size(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"a{ending}"
    file.write_bytes(cv2.imencode(ending, np.zeros((12, 34, 3), np.uint8))[1].tobytes())
    assert read_size_hw(file) == (12, 34)


def test_a_file_without_a_size_says_why(tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(encoded("PNG")[:50])
    with pytest.raises(DataError, match=r"bad\.png': it is cut off"):
        read_size_hw(bad)
    with pytest.raises(DataError, match="no such file"):
        read_size_hw(tmp_path / "none.jpg")
    with pytest.raises(DataError, match="null byte"):
        read_size_hw("a\0b.jpg")
