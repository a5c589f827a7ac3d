"""Where the checkpoint before the last one is. No torch is needed to know it."""

from pathlib import Path


def previous_of(path: Path) -> Path:
    """Return where the checkpoint before this one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")
