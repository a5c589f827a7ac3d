"""What a quantiser needs beside the model: real inputs, and the layers that shall keep their precision."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from boxwright.core.errors import UsageError
from boxwright.core.signature import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Inputs to measure value ranges with.

    Attributes:
        samples: flat inputs of one request each (see `Signature.inputs`), from the user's own data.
        keep_float: torch module names ("backbone.stem.conv") that are not quantised.
        keep_products: whether elementwise products (the second half of SiLU) stay in float. Quantising both sides of
            every product is what takes most of the accuracy from this family of networks.
        cache: a folder for measured statistics, so that a second conversion need not measure again.
    """

    samples: Sequence[tuple[Array, ...]]
    keep_float: tuple[str, ...] = ()
    keep_products: bool = True
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not self.samples:
            raise UsageError("There are no calibration samples. Give images of your own data (--calibration PATH).")

    def fingerprint(self) -> str:
        """Return a short text that is the same for the same samples, whatever is kept in float."""
        digest = hashlib.sha256()
        for sample in self.samples:
            for array in sample:
                digest.update(str((array.shape, array.dtype)).encode())
                digest.update(array.tobytes())
        return digest.hexdigest()[:16]
