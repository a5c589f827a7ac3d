"""A converted model as its user calls it: tensors or arrays in, the model's own output structure out."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.batches import flat_inputs
from boxwright.core.errors import UsageError
from boxwright.core.signature import Array, Signature
from boxwright.core.structure import flatten, rebuild
from boxwright.runtimes.autopilot import Arrangement
from boxwright.runtimes.base import Graph


class OptimizedModel:
    """A loaded model that is called like the original one.

    Torch tensors in, torch tensors out; numpy arrays in, numpy arrays out; nested as the original returns them.

    Attributes:
        method: the name of the method that made it.
        folder: the artifact it was loaded from; None if it has none.
        arrangement: how it uses the machine, if a hint chose that.
    """

    def __init__(
        self, graph: Graph, *, method: str = "", folder: Path | None = None, arrangement: Arrangement | None = None
    ) -> None:
        self.method = method
        self.folder = folder
        self.arrangement = arrangement
        self._graph = graph

    @property
    def signature(self) -> Signature:
        """The model's inputs and outputs."""
        return self._graph.signature

    @property
    def graph(self) -> Graph:
        """The loaded model: flat arrays in, flat arrays out."""
        return self._graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output.

        Raises:
            UsageError: the call differs in structure from the one that the model was converted with.
        """
        arrays, with_torch = self._flatten(args, kwargs)
        return self._build(self._graph.run(arrays), with_torch=with_torch)

    forward = __call__

    def map(self, calls: Iterable[Any]) -> Iterator[Any]:
        """Yield the outputs of many calls in order, computed in parallel where the model supports it.

        Args:
            calls: the inputs of each call: a tensor or array, a tuple of positional or a dict of keyword inputs.
        """
        kinds: deque[bool] = deque()

        def flat() -> Iterator[list[Array]]:
            for call in calls:
                kwargs = dict(call) if isinstance(call, Mapping) else {}
                args = () if kwargs else tuple(call) if isinstance(call, list | tuple) else (call,)
                arrays, with_torch = self._flatten(args, kwargs)
                kinds.append(with_torch)
                yield arrays

        for outputs in self._graph.run_all(flat()):
            yield self._build(outputs, with_torch=kinds.popleft())

    def eval(self) -> "OptimizedModel":
        """Return the model itself, which is always in evaluation mode."""
        return self

    def train(self, mode: bool = True) -> "OptimizedModel":
        """Return the model itself for `mode=False`.

        Raises:
            UsageError: it was asked to train.
        """
        if mode:
            raise UsageError("A converted model can't be trained. Train the original, and convert it again.")
        return self

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Array], bool]:
        leaves, template = flatten((args, kwargs))
        with_torch = any(hasattr(leaf, "detach") for leaf in leaves)
        if with_torch:
            args, kwargs = rebuild(template, flat_inputs((args, kwargs)))
        return self.signature.flatten_call(args, kwargs), with_torch

    def _build(self, outputs: Sequence[Array], *, with_torch: bool) -> Any:
        if with_torch:
            torch = import_module("torch")  # the caller has it
            return self.signature.build_result([torch.from_numpy(np.ascontiguousarray(a)) for a in outputs])
        return self.signature.build_result(outputs)

    def close(self) -> None:
        """Release what the model holds."""
        self._graph.close()

    def __enter__(self) -> "OptimizedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
