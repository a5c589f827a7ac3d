"""PyTorch as it is: the network runs op by op in fp32."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from boxwright.core import catalogue
from boxwright.core.errors import CheckpointError, ConversionError
from boxwright.core.spec import Spec

_WEIGHTS = "weights.safetensors"


class EagerSession:
    """A torch module behind the session seam."""

    def __init__(self, model: nn.Module, spec: Spec, device: torch.device | None = None) -> None:
        self.spec = spec
        self._device = device or torch.device("cpu")
        # The images come channels last; weights in the same layout save a copy at every convolution.
        self._model: nn.Module | None = model.eval()
        self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in torch's stubs

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the (B, A, 5 + C) output of a (B, 3, H, W) input."""
        if self._model is None:
            raise CheckpointError("This session is closed. Load the model again.")
        with torch.inference_mode():
            raw = self._model(torch.from_numpy(images).to(self._device))
            out: NDArray[np.float32] = torch.cat(tuple(raw), dim=2).float().cpu().numpy()
        return out

    def close(self) -> None:
        """Let go of the module."""
        self._model = None


class EagerRuntime:
    """Keeps the weights as safetensors and rebuilds the network by its name in the catalogue."""

    name = "eager"

    def convert(self, model: Any, spec: Spec, folder: Path) -> None:
        """Write the weights.

        Raises:
            ConversionError: the spec promises an output that the network does not give.
        """
        catalogue.find("model", spec.model)
        if spec.output != "raw":
            raise ConversionError(f"The network gives raw outputs, not output={spec.output!r}. Use output='raw'.")
        state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
        # Not save_file: it makes a file that no other user may read, such as the one a server runs as.
        (folder / _WEIGHTS).write_bytes(save(state))

    def load(self, folder: Path, spec: Spec) -> EagerSession:
        """Return a session over the rebuilt network."""
        model: nn.Module = catalogue.load("model", spec.model)(num_classes=spec.num_classes, act=spec.activation)
        try:
            model.load_state_dict(load_file(folder / _WEIGHTS))
        except (RuntimeError, OSError, SafetensorError) as error:
            raise CheckpointError(f"The weights in {str(folder)!r} don't fit {spec.model}: {error}") from error
        return EagerSession(model, spec)
