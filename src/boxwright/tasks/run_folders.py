"""Folders for results: `exp`, `exp2`, `exp3` and so on."""

from pathlib import Path

from boxwright.core.errors import UsageError


def new_run_folder(base: Path) -> Path:
    """Return a new, empty folder below `base`; concurrent programs get different ones.

    Raises:
        UsageError: none can be made there, for example because the current folder is read-only.
    """
    try:
        # First: if `base` can't be a folder, this fails, and the loop below would never end.
        base.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            folder = base / ("exp" if number == 1 else f"exp{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder
    except OSError as error:
        raise UsageError(
            f"Results can't be written to {str(base.absolute())!r}: {error.strerror}. Name another folder with --out."
        ) from error
