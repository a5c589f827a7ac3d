"""What users set in environment variables: where caches and records are, and how large an image may be."""

import os
from pathlib import Path

from boxwright.core.errors import UsageError

CACHE = "BOXWRIGHT_CACHE"
"""The variable that names the cache folder, instead of `~/.cache/boxwright`."""

MAX_PIXELS = "BOXWRIGHT_MAX_PIXELS"
"""The variable that sets the number of pixels above which an image is not decoded."""

TOKEN = "BOXWRIGHT_TOKEN"
"""The variable that holds a server's token, so that it is not in the list of processes."""

_MAX_PIXELS = 178_956_970  # Pillow refuses larger images too


def cache_folder(name: str = "") -> Path:
    """Return the folder of one kind of cache; BOXWRIGHT_CACHE moves all of them."""
    root = os.environ.get(CACHE)
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "boxwright") / name


def data_folder(name: str = "") -> Path:
    """Return the user's folder for data that must survive when caches are deleted; XDG_DATA_HOME moves it."""
    root = os.environ.get("XDG_DATA_HOME")
    return (Path(root) if root else Path.home() / ".local" / "share") / "boxwright" / name


def token() -> str | None:
    """Return the token of a server; None where it is not set."""
    return os.environ.get(TOKEN) or None


def max_pixels() -> int:
    """Return the maximum number of pixels of an image.

    Raises:
        UsageError: the variable is not a whole number above 0.
    """
    text = os.environ.get(MAX_PIXELS)
    if not text:
        return _MAX_PIXELS
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{MAX_PIXELS}={text!r} must be a whole number above 0, such as 500000000.")
    return int(text)
