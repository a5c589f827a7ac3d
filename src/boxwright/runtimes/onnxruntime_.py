"""ONNX Runtime on the CPU: a plain fp32 session over an exported or a given file. No torch is needed to run it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from boxwright.core import catalogue
from boxwright.core.errors import CheckpointError
from boxwright.core.spec import Spec

MODEL_FILE = "model.onnx"
METADATA_KEY = "boxwright"

# ONNX Runtime's errors share no base class of their own.
_ERRORS = tuple(v for v in vars(_state).values() if isinstance(v, type) and issubclass(v, Exception))


class OnnxFile:
    """An opened ONNX file: what it says of itself, and a way to run it.

    Attributes:
        batch: the batch size if it is fixed.
        size_hw: the input size if it is fixed.
        stored_spec: the description that an export of ours carries.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session: Any = _open(path)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or len(outputs) != 1:
            raise CheckpointError(
                f"{str(path)!r} is not a detector of this family: it has inputs {[i.shape for i in inputs]!r} and "
                f"outputs {[o.shape for o in outputs]!r}; it needs one (B, 3, H, W) input and one (B, A, 5 + C) output."
            )
        self._input = inputs[0].name
        batch, _, height, width = (d if isinstance(d, int) else None for d in inputs[0].shape)
        self.batch: int | None = batch
        self.size_hw: tuple[int, int] | None = (height, width) if height and width else None
        self.stored_spec = self._read_spec()

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the file's output for exactly these images.

        Raises:
            CheckpointError: the file does not take such images.
        """
        try:
            out: NDArray[np.float32] = self._session.run(None, {self._input: np.ascontiguousarray(images)})[0]
        except _ERRORS as error:
            raise CheckpointError(
                f"{str(self.path)!r} can't run {images.dtype} images of shape {images.shape!r}: {_reason(error)}"
            ) from error
        return out

    def _read_spec(self) -> Spec | None:
        stored = self._session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
        if stored is None:
            return None
        try:
            return Spec.from_dict(json.loads(stored))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CheckpointError(f"The description inside {str(self.path)!r} can't be read: {error!r}") from error


class OnnxSession:
    """An ONNX file behind the session seam; any number of images, also where the file's batch is fixed."""

    def __init__(self, file: OnnxFile, spec: Spec) -> None:
        self.spec = spec
        self._file: OnnxFile | None = file

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the (B, A, 5 + C) output of a (B, 3, H, W) input."""
        if self._file is None:
            raise CheckpointError("This session is closed. Load the model again.")
        file, count = self._file, len(images)
        if file.batch is None or file.batch == count:
            return file.run(images)
        filling = -count % file.batch
        if filling:
            images = np.concatenate((images, np.repeat(images[-1:], filling, axis=0)))
        parts = [file.run(images[at : at + file.batch]) for at in range(0, len(images), file.batch)]
        return np.concatenate(parts)[:count]

    def close(self) -> None:
        """Let go of the file."""
        self._file = None


class OnnxRuntime:
    """Exports to one ONNX file and runs it."""

    name = "onnxruntime"

    def convert(self, model: Any, spec: Spec, folder: Path) -> None:
        """Write `model.onnx` with the spec inside."""
        catalogue.load("exporter", "onnx")(model, spec, folder / MODEL_FILE)

    def load(self, folder: Path, spec: Spec) -> OnnxSession:
        """Return a session over the folder's file."""
        return OnnxSession(OnnxFile(folder / MODEL_FILE), spec)


def _open(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"There is no model file at {str(path)!r}. Check the path.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its warnings go to stderr past any logger
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _ERRORS as error:
        raise CheckpointError(f"{str(path)!r} can't be loaded by ONNX Runtime: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
