"""Folders for results: `exp`, `exp2`, `exp3` and so on."""

from pathlib import Path


def new_run_folder(base: Path) -> Path:
    """Return a new, empty folder below `base`; two programs at once get two folders."""
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
