"""Files that must be exactly those that their makers published."""

import hashlib
from pathlib import Path

from boxwright.core.errors import DataError
from boxwright.vision.decode import read_file


def verified_bytes(path: Path, md5: str) -> bytes:
    """Return all bytes of a file whose MD5 sum is known.

    Raises:
        DataError: it is missing, or another file than expected.
    """
    data = read_file(path, "file")
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(f"The file {str(path)!r} has the MD5 sum {found!r} instead of {md5!r}. Fetch it again.")
    return data
