"""Mutates pictures and videos."""

from pathlib import Path
from random import Random

from fuzz.blobs import other_form, spoil, spoil_jpeg, spoil_mp4, spoil_png

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tiff")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv")


def spoil_picture(rng: Random, path: Path) -> bytes:
    """Return a spoilt copy of a picture or video, by its suffix."""
    data = path.read_bytes()
    chance = rng.random()
    if chance < 0.12:
        return other_form(rng, data)
    structured = {".jpg": spoil_jpeg, ".png": spoil_png, ".mp4": spoil_mp4}.get(path.suffix)
    if structured is None or chance < 0.3:
        return spoil(rng, data)
    try:
        return structured(rng, data)
    except (IndexError, ValueError):  # it was spoilt before
        return spoil(rng, data)
