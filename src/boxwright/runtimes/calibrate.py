"""What a quantiser needs besides the model: real inputs, and the layers that keep their precision."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.core.errors import UsageError
from boxwright.core.signature import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Inputs to measure value ranges with.

    Attributes:
        samples: flat inputs of one request each (see `Signature.inputs`), from the user's own data.
        keep_float: torch module names ("backbone.stem.conv") that are not quantised, or in bf16 models not rounded.
        cache: a folder for measured statistics, so that later conversions do not measure again.
    """

    samples: Sequence[tuple[Array, ...]]
    keep_float: tuple[str, ...] = ()
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not self.samples:
            raise UsageError("There are no calibration samples. Give images of your own data (--calibration PATH).")

    def fingerprint(self) -> str:
        """Return a hash of the samples; what is kept in float does not change it."""
        digest = hashlib.sha256()
        for sample in self.samples:
            for array in sample:
                digest.update(str((array.shape, array.dtype)).encode())
                digest.update(array.tobytes())
        return digest.hexdigest()[:16]


def describe_int8(recipe: Mapping[str, Any]) -> str:
    """Return in one line how a model was quantised: how many layers, what stays in float, how ranges were found.

    Example:
        >>> describe_int8({"quantized": "ab", "float": "sums", "keep_float": "c", "activations": "u8", "samples": 4})
        '2 layers in int8; in float: sums, by name c; inputs: u8; calibrated on 4 samples'
    """
    how = {**recipe, **recipe.get("quantisation", {})}
    usual, named = how.get("float") or ", ".join(how.get("ignored_types", ())), how.get("keep_float", ())
    in_float = ", ".join(filter(None, [usual, named and f"by name {', '.join(named)}"]))
    inputs = how.get("activations") or how.get("inputs")
    parts = [
        f"{len(how['quantized'])} layers in int8" if "quantized" in how else f"int8 by {how.get('quantizer', 'it')}",
        in_float and f"in float: {in_float}",
        inputs and f"inputs: {inputs}",
        f"calibrated on {how['samples']} samples" if "samples" in how else "",
    ]
    return "; ".join(filter(None, parts))
