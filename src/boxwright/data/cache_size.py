"""How much memory the tiles of a set need, and how much a cache may take."""

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.data.records import Records

_log = get_logger(__name__)

SLAB_BYTES = 16 << 20
"""After so much more a cache looks again how much memory is free."""

# The model, its gradients and everything else need memory too.
SPARE_BYTES = 512 << 20
"""What a cache never takes."""
_SHARE = 0.7


def expected_bytes(records: Records, size_hw: tuple[int, int]) -> int:
    """Return how much pixel data the tiles of a set have; images of unknown size count as large as they can be.

    Example:
        >>> records = Records.from_lists(
        ...     root="x",
        ...     paths=["a", "b"],
        ...     boxes_xyxy=[[], []],
        ...     class_ids=[[], []],
        ...     names=[],
        ...     sizes_hw=[(480, 640), (0, 0)],
        ... )
        >>> expected_bytes(records, (416, 416)) == (312 * 416 + 416 * 416) * 3
        True
    """
    return int(tile_bytes(records, size_hw).sum())


def tile_bytes(records: Records, size_hw: tuple[int, int]) -> NDArray[np.int64]:
    """Return how much pixel data each tile of a set has; see `expected_bytes`."""
    known = np.all(records.sizes_hw > 0, axis=1, keepdims=True)
    sizes = np.where(known, records.sizes_hw, size_hw).astype(np.float64)
    ratios = (np.array(size_hw) / sizes).min(axis=1, keepdims=True)
    found: NDArray[np.int64] = np.maximum((sizes * ratios).astype(np.int64), 1).prod(axis=1) * 3
    return found


def format_gb(size: int) -> str:
    """Return a size for people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def allowed_bytes(limit_bytes: int | None, free_bytes: int, processes: int) -> int:
    """Return how much a cache may take.

    Raises:
        UsageError: a number is out of range.
    """
    if processes < 1 or (limit_bytes is not None and limit_bytes < 0):
        raise UsageError(f"processes={processes!r}, limit_bytes={limit_bytes!r}: neither makes a cache.")
    allowed = int(max(free_bytes - SPARE_BYTES, 0) * _SHARE) // processes
    return allowed if limit_bytes is None else min(limit_bytes, allowed)


def announce(images: int, need: int, limit: int) -> bool:
    """Say how much of a set will be kept; return whether any."""
    if need <= limit:
        _log.info("RAM cache: %d images need about %s of %s.", images, format_gb(need), format_gb(limit))
    elif limit < need // max(images, 1):
        _log.warning(
            "No RAM cache: %d images need about %s, and %s may be used. Every image is read each time.",
            images, format_gb(need), format_gb(limit),
        )  # fmt: skip
        return False
    else:
        _log.warning(
            "RAM cache: %d images need about %s, and %s may be used. About %d %% of them will be kept.",
            images, format_gb(need), format_gb(limit), 100 * limit // need,
        )  # fmt: skip
    return True
