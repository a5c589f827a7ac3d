"""The seam of the runtimes: a model is converted to a folder, and a folder is loaded into a session."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.core.spec import Spec


class Session(Protocol):
    """A loaded model: numpy in, numpy out."""

    spec: Spec

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the (B, A, 5 + C) output, in the form `spec.output`, of a (B, 3, H, W) input."""
        ...

    def close(self) -> None:
        """Give back what the session holds."""
        ...


class Runtime(Protocol):
    """A back end: one file, one entry of the catalogue."""

    name: str

    def convert(self, model: Any, spec: Spec, folder: Path) -> None:
        """Write everything that `load` needs into the folder.

        Raises:
            ConversionError: the model can't be converted.
        """
        ...

    def load(self, folder: Path, spec: Spec) -> Session:
        """Return a session over a folder that `convert` filled.

        Raises:
            CheckpointError: the folder's files can't be loaded.
        """
        ...
