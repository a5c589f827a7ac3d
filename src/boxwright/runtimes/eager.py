"""PyTorch as it is: the network runs op by op."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from boxwright.core.errors import CheckpointError
from boxwright.core.signature import Signature
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fused import fuse_program
from boxwright.runtimes.program import ModuleGraph, check_offer, load_program, prepare, save_program
from boxwright.runtimes.source import Source

_PRECISIONS = (Precision.FP32, Precision.BF16)
_MODES = ("", "plain")


class EagerSession:
    """A torch module behind the session seam."""

    def __init__(self, model: nn.Module, spec: Spec, device: torch.device | None = None) -> None:
        self.spec = spec
        self._device = device or torch.device("cpu")
        # The images come channels last; weights in the same layout save a copy at every convolution.
        self._model: nn.Module | None = model.eval()
        self._dtype = next((p.dtype for p in model.parameters()), torch.float32)
        self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in torch's stubs

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the (B, A, 5 + C) output of a (B, 3, H, W) input."""
        if self._model is None:
            raise CheckpointError("This session is closed. Load the model again.")
        with torch.inference_mode():
            raw = self._model(torch.from_numpy(images).to(self._device, self._dtype))
            out: NDArray[np.float32] = torch.cat(tuple(raw), dim=2).float().cpu().numpy()
        return out

    def close(self) -> None:
        """Let go of the module."""
        self._model = None


class EagerRuntime:
    """Keeps the operators and weights in one file, and runs them one by one.

    Mode "" folds batch norms into the convolutions before them, and runs activations in the convolutions' kernels;
    "plain" leaves the model as it is.
    """

    name = "eager"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the exported program."""
        check_offer(choice, calibration, precisions=_PRECISIONS, modes=_MODES)
        kept = () if calibration is None else calibration.keep_float
        module, recipe = prepare(source, choice, plain=choice.mode == "plain", keep_float=kept)
        return recipe | save_program(source, module, folder)

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> ModuleGraph:
        """Return a graph over the program's operators."""
        module = load_program(folder, channels_last=choice.channels_last)
        if choice.mode != "plain":
            fuse_program(module)
        return ModuleGraph(module, signature, tuning, keep_layout=choice.channels_last)
