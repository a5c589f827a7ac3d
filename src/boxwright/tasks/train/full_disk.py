"""A full disk: reported in one sentence, whichever file of a run meets it first."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boxwright.core.errors import CheckpointError

# No space, over the quota, over the limit for the size of a file.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_full(error: OSError) -> bool:
    """Return whether an error means that there is no room for a file."""
    return error.errno in _FULL


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into a CheckpointError that names the run's folder."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise CheckpointError(
            f"A file of the run in {str(folder)!r} could not be written: {error.strerror}. What was saved before is "
            "still there. Make room and resume with --resume."
        ) from error
