"""The original model behind the graph seam: not converted, run as PyTorch runs it."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from boxwright.core.signature import Array
from boxwright.core.structure import flatten, rebuild
from boxwright.runtimes.base import one_by_one
from boxwright.runtimes.source import Source


class LiveGraph:
    """A source's own model."""

    def __init__(self, source: Source) -> None:
        self.signature = source.signature
        self._model = source.model.eval()

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for flat inputs."""
        tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in inputs]
        args, kwargs = rebuild(self.signature.call, tensors)
        with torch.inference_mode():
            leaves, _ = flatten(self._model(*args, **kwargs))
        return tuple((t.float() if t.dtype in (torch.bfloat16, torch.float16) else t).numpy() for t in leaves)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests, one after the other."""
        return one_by_one(self, requests)

    def close(self) -> None:
        """Do nothing: the model belongs to the caller."""


def weight_bytes(source: Source) -> int:
    """Return how much memory the parameters and buffers of the model take."""
    return sum(t.nbytes for t in (*source.model.parameters(), *source.model.buffers()))
