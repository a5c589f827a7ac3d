"""A converted model as its user calls it, and how it is converted and loaded."""

import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import numpy as np

from boxwright.core.batches import Call, flat_inputs
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError, check_choice
from boxwright.core.signature import Array, Signature
from boxwright.core.structure import flatten, rebuild
from boxwright.runtimes.artifact import open_graph, read_artifact, write_artifact
from boxwright.runtimes.autopilot import Arrangement, choose
from boxwright.runtimes.base import Choice, Graph, Hint, Tuning
from boxwright.runtimes.calibrate import Calibration


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
                arrays, with_torch = self._flatten(*sample_call(call))
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


def sample_call(sample: Any) -> Call:
    """Return the call that a sample stands for: a dict by name, a list or tuple by position, else one input."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample), {}) if isinstance(sample, list | tuple) else ((sample,), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a loaded model uses the machine: by numbers, or by a hint from which the numbers are chosen."""

    thread_num: int | None = None
    hint: Hint | None = None
    streams: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("thread_num", self.thread_num), ("streams", self.streams)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value!r} is not possible. Use 1 or more, or None.")
            if value is not None and self.hint is not None:
                raise UsageError(f"hint={self.hint!r} chooses {name} itself. Leave out the hint or {name}={value!r}.")
        if self.hint is not None:
            check_choice("hint", self.hint, get_args(Hint))

    def open(self, folder: Path, method: str = "", *, trust: bool = False) -> OptimizedModel:
        """Load an artifact; with `trust`, also if it holds code of another user or machine."""
        artifact, arrangement = read_artifact(folder), None
        tuning = Tuning(threads=self.thread_num, streams=self.streams)
        if self.hint is not None:
            arrangement = choose(read_cpu(), hint=self.hint, runtime=artifact.choice.runtime)
            tuning = arrangement.tuning
        graph = open_graph(artifact, tuning, trust=trust)
        return OptimizedModel(graph, method=method, folder=folder, arrangement=arrangement)


def convert(
    model: Any,
    call: Call,
    choice: Choice,
    calibration: Calibration | None,
    options: LoadOptions,
    folder: str | Path | None,
) -> OptimizedModel:
    """Convert a model and load it; without a folder, its files are removed with it."""
    from boxwright.runtimes.source import Source  # imports torch, which loading does without

    target = Path(tempfile.mkdtemp(prefix="boxwright-artifact-")) if folder is None else Path(folder)
    try:
        write_artifact(Source.of(model, *call), choice, target, calibration=calibration)
        made = options.open(target, trust=True)
    except BaseException:
        if folder is None:
            shutil.rmtree(target, ignore_errors=True)
        raise
    if folder is None:
        remove_with(made, target)
    return made


def remove_with(owner: object, folder: Path) -> "weakref.finalize[..., Any]":
    """Remove a folder when its owner is collected or the program ends; calling the result removes it now."""
    return weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
