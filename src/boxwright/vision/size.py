"""The size that an image's header claims, in every format that OpenCV reads, without decoding.

It decides whether a file is decoded at all, so it is never smaller than what the decoder would allocate: if a header
gives several sizes, the largest counts. For any other purpose, use the sizes of `decode.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

_Size = tuple[int, int]
_Order = Literal["little", "big"]

_MARKER = re.compile(rb"\xff+([^\xff\x00])")
_STANDALONE = frozenset({0x01, 0xD8, *range(0xD0, 0xD8)})  # markers without a length
_TABLES = frozenset({0xC4, 0xC8, 0xCC})  # the only markers from C0 to CF that don't start a frame
_SOS, _EOI = 0xDA, 0xD9
_MOST_SEGMENTS = 10_000
_LARGEST_JPEG = (65535, 65535)
_WIDTH, _HEIGHT, _TILE_WIDTH, _TILE_HEIGHT = 256, 257, 322, 323  # tags of TIFF
_MOST_ENTRIES = 4096
_TEXT = 1 << 16  # bytes of a text header that are read
_UNCLEAR = (1 << 20, 1 << 20)  # the size of a text header that decoders may read in another way than we do
_NETPBM = re.compile(rb"P[1-6Ff](?:\s|#[^\r\n]*[\r\n])+(\d{1,12})(?:\s|#[^\r\n]*[\r\n])+(\d{1,12})\s")
_PAM = re.compile(rb"^(WIDTH|HEIGHT)[ \t]+(\d{1,12})[ \t]*$", re.MULTILINE)
_RADIANCE = re.compile(rb"^[-+]Y[ \t]+(\d{1,12})[ \t]+[-+]X[ \t]+(\d{1,12})$", re.MULTILINE)


def is_image(head: bytes) -> bool:
    """Return whether a file is an image by its first bytes (4096 are enough), whatever its name says.

    Example:
        >>> is_image(b"GIF89a"), is_image(b"root:x:0:0"), is_image(b"BMW drivers")
        (True, False, False)
    """
    reader = _find_reader(head)
    # Some starts are two letters that a text may begin with.
    strict = _STRICT.get(reader) if reader is not None else None
    return reader is not None and (strict is None or strict.match(head) is not None)


def find_size_hw(data: bytes) -> tuple[int, int] | None:
    r"""Return the height and width that an encoded image claims, None if its header does not say.

    Example:
        >>> find_size_hw(b"BM" + bytes(12) + b"\x28\0\0\0" + b"\x40\0\0\0" + b"\x20\0\0\0")
        (32, 64)
    """
    reader = _find_reader(data)
    return max(reader(data), key=lambda size: size[0] * size[1], default=None) if reader is not None else None


def _find_reader(data: bytes) -> Callable[[bytes], Iterable[_Size]] | None:
    if data[4:8] == b"ftyp":
        return _avif
    if data.startswith(b"RIFF") and data[8:12] != b"WEBP":
        return None  # audio and video files start the same way
    return next((reader for start, reader in _READERS if data.startswith(start)), None)


def _jpeg(data: bytes) -> Iterator[_Size]:
    # As libjpeg does: what lies between two segments is skipped.
    at = 2
    for _ in range(_MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        if found is None:
            return
        marker, at = found[1][0], found.end()
        if marker in (_SOS, _EOI):
            return
        if marker in _STANDALONE:
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _TABLES:
            yield _pair(data, at + 3, 2, "big")
        at += max(int.from_bytes(data[at : at + 2], "big"), 2)
    yield _LARGEST_JPEG


def _png(data: bytes) -> Iterator[_Size]:
    yield _pair(data, 16, 4, "big")[::-1]


def _gif(data: bytes) -> Iterator[_Size]:
    yield _pair(data, 6, 2, "little")[::-1]


def _bmp(data: bytes) -> Iterator[_Size]:
    if int.from_bytes(data[14:18], "little") == 12:  # the oldest header
        yield _pair(data, 18, 2, "little")[::-1]
    else:
        width, height = (int.from_bytes(data[at : at + 4], "little", signed=True) for at in (18, 22))
        yield abs(height), abs(width)


def _webp(data: bytes) -> Iterator[_Size]:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = _pair(data, 24, 3, "little")
        yield height + 1, width + 1
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        yield (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    else:
        width, height = _pair(data, 26, 2, "little")
        yield height & 0x3FFF, width & 0x3FFF


def _tiff(data: bytes) -> Iterator[_Size]:
    order: _Order = "little" if data.startswith(b"II") else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    # BigTIFF has 64-bit numbers; its entries are 20 bytes long.
    wide = number(2, 2) == 43
    table = number(8, 8) if wide else number(4, 4)
    count, first, step = (number(table, 8), table + 8, 20) if wide else (number(table, 2), table + 2, 12)
    sizes = {1: 1, 3: 2, 4: 4} | ({16: 8} if wide else {})  # in bytes, of the types whose value is in the entry
    found: dict[int, int] = {}
    for entry in range(first, first + step * min(count, _MOST_ENTRIES), step):
        tag, size = number(entry, 2), sizes.get(number(entry + 2, 2), 0)
        value = number(entry + (12 if wide else 8), size) if size else 1 << 20
        found[tag] = max(found.get(tag, 0), value)
    yield found.get(_HEIGHT, 0), found.get(_WIDTH, 0)
    yield found.get(_TILE_HEIGHT, 0), found.get(_TILE_WIDTH, 0)  # a tile is decoded whole


def _jpeg2000(data: bytes) -> Iterator[_Size]:
    # The size is in the code stream; the boxes before it may say something else.
    for found in re.finditer(rb"\xff\x4f\xff\x51", data):
        right, bottom, left, top = (
            int.from_bytes(data[at : at + 4], "big") for at in range(found.end() + 4, found.end() + 20, 4)
        )
        yield max(bottom - top, 0), max(right - left, 0)


def _avif(data: bytes) -> Iterator[_Size]:
    for found in re.finditer(rb"ispe", data):
        yield _pair(data, found.end() + 4, 4, "big")[::-1]


def _netpbm(data: bytes) -> Iterator[_Size]:
    found = _NETPBM.match(data[:_TEXT])
    yield _UNCLEAR if found is None else (int(found[2]), int(found[1]))


def _pam(data: bytes) -> Iterator[_Size]:
    header, end, _ = data[:_TEXT].partition(b"ENDHDR")
    sides = {name: [int(value) for key, value in _PAM.findall(header) if key == name] for name in (b"HEIGHT", b"WIDTH")}
    clear = end and all(len(values) == 1 for values in sides.values())
    yield (sides[b"HEIGHT"][0], sides[b"WIDTH"][0]) if clear else _UNCLEAR


def _radiance(data: bytes) -> Iterator[_Size]:
    found = [(int(height), int(width)) for height, width in _RADIANCE.findall(data[:_TEXT])]
    yield from found or [_UNCLEAR]


def _sun_raster(data: bytes) -> Iterator[_Size]:
    yield _pair(data, 4, 4, "big")[::-1]


def _pair(data: bytes, at: int, size: int, order: _Order) -> _Size:
    return int.from_bytes(data[at : at + size], order), int.from_bytes(data[at + size : at + 2 * size], order)


_READERS: tuple[tuple[bytes, Callable[[bytes], Iterable[_Size]]], ...] = (
    (b"\xff\xd8\xff", _jpeg),
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"RIFF", _webp),
    (b"BM", _bmp),
    (b"GIF8", _gif),
    (b"II*\0", _tiff),
    (b"MM\0*", _tiff),
    (b"II+\0", _tiff),
    (b"MM\0+", _tiff),
    (b"\0\0\0\x0cjP  ", _jpeg2000),
    (b"\xff\x4f\xff\x51", _jpeg2000),
    *((b"P%d" % number, _netpbm) for number in range(1, 7)),
    (b"P7", _pam),
    (b"PF", _netpbm),
    (b"Pf", _netpbm),
    (b"#?RADIANCE", _radiance),
    (b"#?RGBE", _radiance),
    (b"\x59\xa6\x6a\x95", _sun_raster),
)

_STRICT: dict[Callable[[bytes], Iterable[_Size]], re.Pattern[bytes]] = {
    _avif: re.compile(rb".{4}ftyp(?:.{4}){0,100}?avi[fs]", re.DOTALL),
    _bmp: re.compile(rb"BM.{12}(?:\x0c\0\0\0|[\x24-\xff]\0\0\0)", re.DOTALL),  # the length of the second header
    _gif: re.compile(rb"GIF8[79]a"),
    _netpbm: re.compile(rb"P[1-6Ff]\s(?:\s*#[^\r\n]*[\r\n])*\s*\d"),
    _pam: re.compile(rb"P7\s.*?\bWIDTH\s+\d", re.DOTALL),
}
