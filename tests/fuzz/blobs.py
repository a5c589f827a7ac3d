"""Bytes that are flipped, cut and pasted, and the parts of PNG, JPEG, MP4, ZIP and tar files."""

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from random import Random

SIDES = (0, 1, 2, 64, 4097, 20_000, 30_000, 65_535, 2**31 - 1, 2**32 - 1)


def spoil(rng: Random, data: bytes, times: int | None = None) -> bytes:
    """Return bytes with flips, cuts, repeats or odd numbers somewhere."""
    blob = bytearray(data)
    for _ in range(times or rng.choice((1, 1, 2, 5, 20))):
        at, action = rng.randrange(len(blob) + 1), rng.randrange(8)
        if not blob or action == 0:
            blob[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
        elif action < 4 and at < len(blob):
            blob[at] ^= 1 << rng.randrange(8)
        elif action == 4:
            del blob[at:]
        elif action == 5:
            del blob[at : at + rng.choice((1, 4, 100, 10_000))]
        elif action == 6:
            blob[at:at] = blob[at : at + rng.choice((1, 16, 1000))] * rng.choice((1, 3, 50))
        else:
            number = struct.pack(rng.choice(("<I", ">I")), rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000)))
            blob[at : at + 4] = number
    return bytes(blob)


def other_form(rng: Random, data: bytes) -> bytes:
    """Return data of another format: nothing, text, or another format's first bytes."""
    heads = (b"", b"\0", b"\n", b"x" * 5000, b"\x80\x05", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"{}",
             b"<?xml", b"\xff\xfe" + "{}".encode("utf-16-le"), b"\0" * 100_000, b"GIF89a",
             b"RIFF\0\0\0\0WEBP", b"%PDF-1.4")  # fmt: skip
    return rng.choice(heads) + rng.choice((b"", data, data[:10]))


def png_parts(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the kind and content of each chunk."""
    at, parts = 8, []
    while at + 8 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        parts.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return parts


def join_png(parts: list[tuple[bytes, bytes]]) -> bytes:
    """Return the file made of these chunks, each with a valid checksum."""
    made = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def spoil_png(rng: Random, data: bytes) -> bytes:
    """Return a PNG with changed sizes, or changed or added chunks; checksums stay valid."""
    parts = png_parts(data)
    for _ in range(rng.choice((1, 1, 3))):
        at, action = rng.randrange(len(parts)), rng.randrange(6)
        kind, body = parts[at]
        if action == 0:
            sides = struct.pack(">II", rng.choice(SIDES), rng.choice(SIDES))
            parts[0] = (b"IHDR", sides + bytes(rng.choice((body[8:13], rng.randbytes(5)))))
        elif action == 1:
            parts[at] = (kind, spoil(rng, body))
        elif action == 2 and len(parts) > 1:
            del parts[at]
        elif action == 3:
            parts[at:at] = [(kind, body)] * rng.choice((1, 3, 200))
        elif action == 4:
            bomb = zlib.compress(bytes(rng.choice((10, 50_000_000))), 9)
            further = (
                (b"iCCP", b"x\0\0" + bomb), (b"zTXt", b"Comment\0\0" + bomb), (b"IDAT", bomb), (b"eXIf", _exif(rng)),
                (b"acTL", b"\0\0\0\2\0\0\0\0"), (b"PLTE", b"abc"),
            )  # fmt: skip
            parts.insert(1, rng.choice(further))
        else:
            rng.shuffle(parts)
    return join_png(parts)


def spoil_jpeg(rng: Random, data: bytes) -> bytes:
    """Return a JPEG with changed sizes, or changed or added segments."""
    parts, at = [], 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        (length,) = struct.unpack(">H", data[at + 2 : at + 4])
        parts.append((data[at + 1], data[at + 4 : at + 2 + length]))
        at += 2 + length
    scan = data[at:]
    for _ in range(rng.choice((1, 1, 3))):
        place, action = rng.randrange(len(parts)), rng.randrange(6)
        marker, body = parts[place]
        if action == 0:
            sides = struct.pack(">HH", rng.choice(SIDES) & 0xFFFF, rng.choice(SIDES) & 0xFFFF)
            parts = [(m, b[:1] + sides + b[5:]) if 0xC0 <= m <= 0xC2 else (m, b) for m, b in parts]
        elif action == 1:
            parts[place] = (marker, spoil(rng, body)[:65_000])
        elif action == 2 and len(parts) > 1:
            del parts[place]
        elif action == 3:
            parts.insert(0, (0xE1, b"Exif\0\0" + _exif(rng)))
        elif action == 4:
            scan = spoil(rng, scan)
        else:
            parts[place] = (rng.randrange(0xC0, 0xFF), body)
    return b"\xff\xd8" + b"".join(bytes((0xFF, m)) + struct.pack(">H", len(b) + 2) + b for m, b in parts) + scan


def _exif(rng: Random) -> bytes:
    """Return a TIFF header with an orientation, valid or not."""
    turned = rng.choice((0, 1, 3, 6, 8, 9, 65_535))
    count = rng.choice((1, 1, 0, 2**32 - 1))
    return b"MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", rng.choice((1, 1, 500)), 0x112, 3, count, turned, 0, 0)


def spoil_mp4(rng: Random, data: bytes) -> bytes:
    """Return a video with a box of another length or kind, or other numbers in its headers."""
    blob = bytearray(data)
    kinds = (b"moov", b"mvhd", b"tkhd", b"mdhd", b"stsd", b"stts", b"stsz", b"stco", b"mdat", b"ftyp", b"avc1", b"mp4v")
    found = [(at, kind) for kind in kinds if (at := data.find(kind)) >= 4]
    if not found or rng.random() < 0.3:
        return spoil(rng, data)
    at, _ = rng.choice(found)
    action = rng.randrange(3)
    if action == 0:
        blob[at - 4 : at] = struct.pack(">I", rng.choice((0, 1, 7, 8, 2**31, 2**32 - 1)))
    elif action == 1:
        blob[at : at + 4] = rng.choice((b"free", b"\0\0\0\0", b"moov"))
    else:
        place = at + 4 + rng.randrange(0, 60)
        blob[place : place + 4] = struct.pack(">I", rng.choice((0, 1, 2**16, 2**31, 2**32 - 1)))
    return bytes(blob)


_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    ValueError,
    NotImplementedError,
    EOFError,
    RuntimeError,
)


def spoil_zip(rng: Random, data: bytes, change: Callable[[Random, str, bytes], bytes]) -> bytes:
    """Return an archive with members changed, removed, renamed, doubled or added.

    Args:
        rng: decides.
        data: the archive.
        change: takes a member's name and content and returns another content.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist() if not info.is_dir()]
    except _UNREADABLE:  # an earlier change has spoilt it
        return spoil(rng, data)
    if not members:
        return spoil(rng, data)
    at, action = rng.randrange(len(members)), rng.randrange(10)
    name, body = members[at]
    if action < 6:
        members[at] = (name, change(rng, name, body))
    elif action == 6:
        del members[at]
    elif action == 7:
        members[at] = (rng.choice(("../../outside/pwned", "/tmp/pwned", "", name.upper(), "a" * 3000)), body)
    elif action == 8:
        members.append((name + "x", body))
    else:
        members.append((name, bytes(rng.choice((10, 30_000_000)))))
    target = io.BytesIO()
    packing = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(target, "w", packing) as archive:
        for name, body in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = packing
            archive.writestr(info, body)
    return target.getvalue() if rng.random() < 0.9 else spoil(rng, target.getvalue())


def spoil_tar(rng: Random, data: bytes, change: Callable[[Random, str, bytes], bytes]) -> bytes:
    """Return a tar file with members changed, removed, renamed, doubled, or turned into links and devices."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [(one, archive.extractfile(one).read()) for one in archive if one.isreg()]  # type: ignore[union-attr]
    except (tarfile.TarError, *_UNREADABLE):  # an earlier change has spoilt it
        return spoil(rng, data)
    if not members:
        return spoil(rng, data)
    at, action = rng.randrange(len(members)), rng.randrange(8)
    info, body = members[at]
    if action < 3:
        members[at] = (info, change(rng, info.name, body))
    elif action == 3:
        del members[at]
    elif action == 4:
        info.name = rng.choice(("../../outside/pwned", "/tmp/pwned", "x", info.name.upper(), "a" * 90))
    elif action == 5:
        members.append(members[at])
    elif action == 6:
        info.type = rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE))
        info.linkname = "../../outside/secret.jpg"
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=rng.choice((tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT))) as archive:
        for info, body in members:
            info.size = len(body) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(body))
    blob = bytearray(made.getvalue())
    if action == 7:  # a size that is not that of the member
        where = rng.randrange(len(blob) // 512) * 512
        blob[where + 124 : where + 136] = rng.choice(
            (b"77777777777\0", b"00000000000\0", b"\x80" + b"\xff" * 11, b"-1 x")
        )[:12]
    return bytes(blob)
