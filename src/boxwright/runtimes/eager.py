"""PyTorch as it is: the network runs op by op."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from boxwright.core.errors import CheckpointError
from boxwright.core.signature import Array, Signature
from boxwright.core.spec import Spec
from boxwright.runtimes.base import Choice, Tuning, one_by_one
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.source import Source

_PROGRAM = "program.pt2"


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
    """Keeps the traced operators and weights in one file, and runs them one by one."""

    name = "eager"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the exported program."""
        program = export_program(source, source.flat())
        torch.export.save(program, folder / _PROGRAM)
        return {}

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> "EagerGraph":
        """Return a graph over the program's operators."""
        try:
            module = torch.export.load(folder / _PROGRAM).module()
        except (RuntimeError, OSError, ValueError) as error:
            raise CheckpointError(f"{str(folder / _PROGRAM)!r} can't be loaded: {error}") from error
        return EagerGraph(module, signature)


class EagerGraph:
    """A torch module behind the graph seam."""

    def __init__(self, module: nn.Module, signature: Signature) -> None:
        self.signature = signature
        self._module: nn.Module | None = module

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for flat inputs."""
        if self._module is None:
            raise CheckpointError("This session is closed. Load the model again.")
        with torch.inference_mode():
            outputs = self._module(*(torch.from_numpy(np.ascontiguousarray(a)) for a in inputs))
        return tuple(t.numpy() for t in outputs)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests, one after the other."""
        return one_by_one(self, requests)

    def close(self) -> None:
        """Let go of the module."""
        self._module = None


def export_program(source: Source, module: nn.Module) -> Any:
    """Return the exported program of a flat module, with a free batch where the source's is free."""
    batch = torch.export.Dim("batch")
    free = source.signature.free_batch
    # A free axis of size 1 would be taken for fixed.
    example = tuple(torch.cat((t, t)) if free and t.shape[0] == 1 else t for t in source.example)
    shapes = (tuple({0: batch} for _ in example),) if free else None
    return torch.export.export(module, example, dynamic_shapes=shapes, strict=False)
