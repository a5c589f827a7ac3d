"""A disk that is full: said in one sentence, whichever file of a run met it first."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boxwright.core.errors import CheckpointError

# No space, over one's quota, over one's limit for the size of a file.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_full(error: OSError) -> bool:
    """Return whether an error says that there is no room for a file."""
    return error.errno in _FULL


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Name the run's folder where there is no room for a file of it.

    Raises:
        CheckpointError: there is none.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise CheckpointError(
            f"A file of the run in {str(folder)!r} could not be written: {error.strerror}. What was saved before is "
            "still there. Make room and go on with --resume."
        ) from error
