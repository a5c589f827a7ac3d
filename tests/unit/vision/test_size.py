import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from boxwright.core.errors import DataError
from boxwright.vision.decode import decode_image
from boxwright.vision.size import find_size_hw, is_image


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\0\0\0\0" + b"IEND\xaeB`\x82"


def jpeg_header(width: int, height: int, before: bytes = b"") -> bytes:
    frame = b"\xff\xc2\0\x11\x08" + struct.pack(">HH", height, width) + b"\x03" + bytes(9)
    return b"\xff\xd8\xff\xe0\0\x04ab" + before + frame + b"\xff\xda\0\x08" + bytes(40) + b"\xff\xd9"


@pytest.mark.parametrize(
    "suffix",
    [".jpg", ".png", ".bmp", ".webp", ".tiff", ".gif", ".avif", ".jp2", ".ppm", ".pgm", ".ras", ".hdr", ".pfm"],
)
def test_the_size_of_every_format_is_that_of_its_pixels(suffix: str) -> None:
    kind = np.float32 if suffix in (".hdr", ".pfm") else np.uint8
    encoded, data = cv2.imencode(suffix, np.full((40, 56) if suffix == ".pgm" else (40, 56, 3), 7, kind))
    assert encoded
    assert is_image(data.tobytes()[:4096])
    assert find_size_hw(data.tobytes()) == (40, 56)


@pytest.mark.parametrize("options", [{"format": "WEBP", "lossless": True}, {"format": "WEBP"}, {"format": "TIFF"}])
def test_the_sizes_of_what_pillow_writes_are_found(options: dict[str, object]) -> None:
    stream = io.BytesIO()
    Image.new("RGBA", (56, 40)).save(stream, **options)  # type: ignore[arg-type]
    assert find_size_hw(stream.getvalue()) == (40, 56)


def test_big_tiff_pam_and_the_oldest_bmp_are_known() -> None:
    entries = b"".join(struct.pack("<HHQQ", tag, 4, 1, value) for tag, value in ((256, 56), (257, 40)))
    assert find_size_hw(b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2) + entries) == (40, 56)
    assert find_size_hw(b"P7\nWIDTH 56\nHEIGHT 40\nDEPTH 3\nMAXVAL 255\nENDHDR\n") == (40, 56)
    assert find_size_hw(b"BM" + bytes(12) + struct.pack("<IHH", 12, 56, 40)) == (40, 56)
    assert find_size_hw(b"P6 # 9 9\n56\n40\n255\n") == (40, 56)


@pytest.mark.parametrize(
    "text", [b"root:x:0:0:root:/root:/bin/bash\n", b"", b"RIFF\0\0\0\0WAVEfmt ", b"0 0.5 0.5 0.1 0.1"]
)
def test_other_files_are_not_images(text: bytes) -> None:
    assert not is_image(text)
    assert find_size_hw(text) is None


@pytest.mark.parametrize(
    "data",
    [
        png_header(30000, 30000),
        jpeg_header(30000, 30000),
        jpeg_header(30000, 30000, before=b"garbage\xff\xff\xff\xfe\0\x02"),
        jpeg_header(9, 9, before=b"\xff\xfe\0\x02" * 20_000),
        b"GIF89a" + struct.pack("<HH", 30000, 30000) + bytes(20),
        b"BM" + bytes(12) + struct.pack("<Iii", 40, 30000, -30000) + bytes(40),
        b"P5 30000 30000 255\n",
    ],
    ids=lambda data: repr(data[:8]),
)
def test_a_header_that_claims_too_many_pixels_is_refused_before_decoding(data: bytes) -> None:
    with pytest.raises(DataError, match=r"bomb.* pixels, more than the limit of 178,956,970.*BOXWRIGHT_MAX_PIXELS"):
        decode_image(data, "bomb")


def test_a_jpeg_of_very_many_scans_is_refused_before_decoding() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (2000, 2000)).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    assert decode_image(data, "progressive").shape == (2000, 2000, 3)
    last = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(DataError, match=r"it has 5010 scans, more than 894"):
        decode_image(data[:-2] + last * 5000 + b"\xff\xd9", "bomb")


def test_the_limit_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cv2.imencode(".png", np.zeros((40, 56, 3), np.uint8))[1].tobytes()
    monkeypatch.setenv("BOXWRIGHT_MAX_PIXELS", "2239")
    with pytest.raises(DataError, match="56 x 40 pixels"):
        decode_image(data, "small")
    monkeypatch.setenv("BOXWRIGHT_MAX_PIXELS", "2240")
    assert decode_image(data, "small").shape == (40, 56, 3)


def tiff_with_a_wide_width(width: int, height: int) -> bytes:
    """A TIFF whose width is a 64-bit number, which lies elsewhere in the file."""
    pixels = zlib.compress(bytes(width * height))
    pixels += bytes(len(pixels) % 2)
    entries = [
        (257, 4, height), (258, 3, 8), (259, 3, 8), (262, 3, 1), (273, 4, 16), (277, 3, 1), (278, 4, height),
        (279, 4, len(pixels)), (256, 16, 8),
    ]  # fmt: skip
    table = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    head = struct.pack("<2sHIQ", b"II", 42, 16 + len(pixels), width)
    return head + pixels + struct.pack("<H", len(entries)) + table + bytes(4)


@pytest.mark.parametrize(
    "data",
    [
        b"P5\n1000x1000x255\n" + bytes(1_000_000),
        b"P5\n#" + b"a" * 70_000 + b"\n1000 1000\n255\n" + bytes(1_000_000),
        b"P7\nWIDTH 1000\nHEIGHT 1000\nDEPTH 1\nMAXVAL 255\nENDHDR\n\nWIDTH 1\nHEIGHT 1\n" + bytes(1_000_000),
        b"P7\nWIDTH 1000\nHEIGHT 1000\nWIDTH 1\nDEPTH 1\nMAXVAL 255\nENDHDR\n" + bytes(1_000_000),
        b"P7\n#" + b"a" * 70_000 + b"\nWIDTH 1000\nHEIGHT 1000\nDEPTH 1\nMAXVAL 255\nENDHDR\n" + bytes(1_000_000),
        b"#?RADIANCE\n" + b"A=b\n" * 20_000 + b"FORMAT=32-bit_rle_rgbe\n\n-Y 1000 +X 1000\n" + bytes(4_000_000),
        tiff_with_a_wide_width(1000, 1000),
    ],
    ids=["x for a space", "long comment", "size after the header", "two widths", "long header", "late size", "wide"],
)
def test_a_header_that_decoders_may_read_otherwise_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_PIXELS", "10000")
    with pytest.raises(DataError, match="BOXWRIGHT_MAX_PIXELS"):
        decode_image(data, "bomb")
