"""How far a converted model's outputs are from the original's, and how far is acceptable."""

from collections.abc import Sequence

import numpy as np

from boxwright.core.signature import Array
from boxwright.core.types import Precision

BOUNDS: dict[Precision, float] = {
    Precision.FP64: 1e-4,
    Precision.FP32: 1e-3,
    # An eighth of bfloat16's: three more binary digits. The official nano's are up to 0.025 away, for 0.0001 AP.
    Precision.FP16: 4e-2,
    # Rounding the biases alone takes the official nano's outputs 0.1 away, all of bf16 up to 0.2, for 0.003 AP.
    Precision.BF16: 3e-1,
    Precision.BF16_TRUE: 3e-1,
    Precision.INT8: 5e-1,
}
"""The largest `distance` that a precision explains; beyond it something else is wrong. It does not measure accuracy."""


def distance(outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return the largest relative error of an output: root of the mean square, against the reference's spread.

    Outputs that differ in number, shape or whole-number values, or that are not finite where the reference is, are
    infinitely far away.

    Example:
        >>> a = np.array([1.0, -1.0])
        >>> distance([a], [a]), distance([a * 1.5], [a]), distance([a], [np.ones(3)])
        (0.0, 0.5, inf)
    """
    if len(outputs) != len(reference):
        return float("inf")
    worst = 0.0
    for have, want in zip(outputs, reference, strict=True):
        if have.shape != want.shape:
            return float("inf")
        if not np.issubdtype(want.dtype, np.floating):
            # Indices and masks: the share of values that differ.
            worst = max(worst, float(np.mean(have != want)) if want.size else 0.0)
            continue
        finite = np.isfinite(want)
        if not np.array_equal(np.isfinite(have), finite):
            return float("inf")
        error = (have[finite].astype(np.float64) - want[finite].astype(np.float64)).ravel()
        values = want[finite].astype(np.float64).ravel()
        if not values.size:
            continue
        # The spread, not the size: an output with a large offset would hide errors in it. A lone number has no spread;
        # a thousandth of its size leaves room for rounding.
        scale = max(float(values.std()), 1e-3 * float(np.abs(values).max()), 1e-12)
        worst = max(worst, float(np.sqrt(np.mean(error**2))) / scale)
    return worst
