"""A converted model as its user calls it, and how it is converted and loaded."""

import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import numpy as np

from boxwright.core.batches import Call, flat_inputs, is_loader
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import ConversionError, UsageError, check_choice
from boxwright.core.log import get_logger
from boxwright.core.signature import Array, Signature
from boxwright.optimize.dynamic import FreeAxes
from boxwright.runtimes.artifact import Artifact, open_graph, place_artifact, read_artifact, write_artifact
from boxwright.runtimes.autopilot import Arrangement, choose, choose_beside
from boxwright.runtimes.base import Choice, Graph, Hint, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.parity import BOUNDS

_log = get_logger(__name__)


class OptimizedModel:
    """A loaded model that is called like the original one.

    Torch tensors in, torch tensors out; numpy arrays in, numpy arrays out; nested as the original returns them. An
    input may be given by position or by name.

    Attributes:
        method: the name of the method that made it.
        folder: the artifact it was loaded from; None if it has none.
        arrangement: how it uses the machine, if a hint chose that.
        original: the model that it was made from, if that is known.
        example: the call that it was made with, if that is known.
        options: how it was loaded.
    """

    def __init__(
        self,
        graph: "Graph | Unconverted",
        *,
        method: str = "",
        folder: Path | None = None,
        arrangement: Arrangement | None = None,
        options: "LoadOptions | None" = None,
    ) -> None:
        self.method = method
        self.folder = folder
        self.arrangement = arrangement
        self.options = options
        self.original: Any = None
        self.example: Call | None = None
        self._graph = graph
        self._many: dict[int, Graph] = {}

    @property
    def signature(self) -> Signature:
        """The model's inputs and outputs."""
        return self._graph.signature

    @property
    def graph(self) -> Graph:
        """The loaded model: flat arrays in, flat arrays out."""
        return self._graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output; for a list of calls a list of outputs, if the model runs in several processes.

        Raises:
            UsageError: the call differs in structure from the one that the model was converted with.
        """
        if isinstance(self._graph, Unconverted):
            self._graph.convert(self, args, kwargs)
        if hasattr(self._graph, "cpus") and len(args) == 1 and not kwargs and _are_calls(args[0]):
            return list(self.map(args[0]))
        arrays, with_torch = self._flatten(args, kwargs)
        return self._build(self._graph.run(arrays), with_torch=with_torch)

    forward = __call__

    def map(self, calls: Iterable[Any]) -> Iterator[Any]:
        """Yield the outputs of many calls in order, computed in parallel where the model supports it.

        Args:
            calls: the inputs of each call: a tensor or array, a tuple of positional or a dict of keyword inputs.
        """
        yield from self._map(self._graph, calls)

    def async_predict(self, input_data: Iterable[Any], num_requests: int = 0) -> list[Any]:
        """Return the outputs of many calls, computed in parallel.

        Args:
            input_data: the inputs of each call, as in `map`.
            num_requests: how many are computed in parallel (OpenVINO and ONNX Runtime); 0 for as many as the model was
                loaded for.

        Raises:
            UsageError: the runtime computes one request at a time, or the model has no artifact.
        """
        if num_requests == 0:
            return list(self.map(input_data))
        if num_requests not in self._many:
            if self.folder is None:
                raise UsageError(f"num_requests={num_requests!r} needs a converted model. Use 0.")
            options = replace(self.options or LoadOptions(), hint=None, streams=num_requests)
            self._many[num_requests] = options.open(self.folder, trust=True).graph
        return list(self._map(self._many[num_requests], input_data))

    def _map(self, graph: Graph, calls: Iterable[Any]) -> Iterator[Any]:
        kinds: deque[bool] = deque()

        def flat() -> Iterator[list[Array]]:
            for call in calls:
                arrays, with_torch = self._flatten(*sample_call(call))
                kinds.append(with_torch)
                yield arrays

        for outputs in graph.run_all(flat()):
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
        leaves = self.signature.find_leaves(args, kwargs)
        with_torch = any(hasattr(leaf, "detach") for leaf in leaves)
        return self.signature.check(flat_inputs((tuple(leaves), {}))), with_torch

    def _build(self, outputs: Sequence[Array], *, with_torch: bool) -> Any:
        if with_torch and (self.options is None or self.options.output_tensors):
            torch = import_module("torch")  # the caller has it
            return self.signature.build_result([torch.from_numpy(np.ascontiguousarray(a)) for a in outputs])
        return self.signature.build_result(outputs)

    def close(self) -> None:
        """Release what the model holds."""
        for graph in (self._graph, *self._many.values()):
            graph.close()

    def __enter__(self) -> "OptimizedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Unconverted:
    """What a model has in place of its graph until its first call, which shows what its inputs are.

    Args:
        make: returns the model converted for a call.
        many: whether it will be called with lists of calls, too.
    """

    _BECOMES = ("arrangement", "example", "folder", "options", "_graph", "_many", "_opened", "_source")

    def __init__(self, make: "Callable[[Call], OptimizedModel]", *, many: bool = False) -> None:
        self._make, self._many_calls = make, many

    def convert(self, model: OptimizedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Turn a model into what it becomes for this call, or for the first one of a list of calls."""
        if self._many_calls and len(args) == 1 and not kwargs and _are_calls(args[0]):
            args, kwargs = sample_call(next(iter(args[0])))
        made = vars(self._make((args, kwargs)))
        vars(model).update({name: made[name] for name in self._BECOMES if name in made})

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(
            "The model is converted by its first call, which shows what its inputs are. Call it first, or give "
            "input_sample."
        )


def _are_calls(given: Any) -> bool:
    return isinstance(given, list) or (is_loader(given) and not isinstance(given, Iterator))


def sample_call(sample: Any) -> Call:
    """Return the call that a sample stands for: a dict by name, a list or tuple by position, else one input."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample), {}) if isinstance(sample, list | tuple) else ((sample,), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a loaded model uses the machine: by numbers, or by a hint from which the numbers are chosen.

    Attributes:
        thread_num: computing threads for one call.
        hint: what to choose the numbers for.
        streams: calls computed in parallel.
        output_tensors: return tensors where tensors were given; if not, always arrays.
        openvino_config: further properties for OpenVINO.
        session_options: ONNX Runtime's own `SessionOptions`.
        device: which one of several, where the model is for a device that has numbers.
    """

    thread_num: int | None = None
    hint: Hint | None = None
    streams: int | None = None
    output_tensors: bool = True
    openvino_config: Mapping[str, Any] | None = None
    session_options: Any = None
    device: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("thread_num", self.thread_num), ("streams", self.streams)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value!r} is not possible. Use 1 or more, or None.")
            if value is not None and self.hint is not None:
                raise UsageError(f"hint={self.hint!r} chooses {name} itself. Leave out the hint or {name}={value!r}.")
        if self.session_options is not None and (self.thread_num, self.hint, self.streams) != (None, None, None):
            raise UsageError("session_options hold threads themselves. Leave out thread_num, hint and streams.")
        if self.hint is not None:
            check_choice("hint", self.hint, get_args(Hint))

    def open(self, folder: Path, method: str = "", *, trust: bool = False) -> OptimizedModel:
        """Load an artifact; with `trust`, also if it holds code of another user or machine."""
        artifact, arrangement = read_artifact(folder), None
        place = place_artifact(artifact, self.device)
        tuning = Tuning(threads=self.thread_num, streams=self.streams)
        if self.hint is not None:
            arrangement = (
                choose(read_cpu(), hint=self.hint, runtime=artifact.choice.runtime)
                if place.is_cpu
                else choose_beside(read_cpu(), hint=self.hint, device=place)
            )
            tuning = arrangement.tuning
        for name, owner in (("openvino_config", "openvino"), ("session_options", "onnxruntime")):
            if getattr(self, name) is not None and artifact.choice.runtime != owner:
                raise UsageError(f"{name} does not apply to runtime {artifact.choice.runtime!r}. Leave it out.")
        own = {"properties": self.openvino_config or {}, "session_options": self.session_options}
        tuning = replace(tuning, number=place.number, **own)
        graph = open_graph(artifact, tuning, trust=trust)
        return OptimizedModel(graph, method=method, folder=folder, arrangement=arrangement, options=self)

    @classmethod
    def of(cls, **given: Any) -> "LoadOptions":
        """Return the options of these names.

        Raises:
            UsageError: there is no such option, or they contradict each other.
        """
        for name in given:
            check_choice("option", name, [known.name for known in fields(cls)])
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """How `trace` and `quantize` convert.

    Attributes:
        choice: the runtime and its settings.
        calibration: inputs for int8.
        axes: the axes that may have any size.
        max_distance: how far the outputs may be from the original's; None for what the precision explains.
        folder: where the artifact goes; None for a temporary folder.
    """

    choice: Choice
    calibration: Calibration | None = None
    axes: FreeAxes = field(default_factory=FreeAxes)
    max_distance: float | None = None
    folder: str | Path | None = None

    def __call__(self, model: Any, call: Call, options: LoadOptions) -> OptimizedModel:
        """Convert a model and load it; without a folder, its files are removed with it.

        Raises:
            ConversionError: it can't be converted, or its outputs are further from the original's than allowed.
        """
        target = Path(tempfile.mkdtemp(prefix="boxwright-artifact-")) if self.folder is None else Path(self.folder)
        existed = target.exists()
        source = self.axes.make_source(model, call)
        try:
            artifact = write_artifact(source, self.choice, target, calibration=self.calibration)
            try:
                self._check(artifact)
                made = options.open(target, trust=True)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                if existed and self.folder is not None:
                    target.mkdir(exist_ok=True)
                raise
        except BaseException:
            if self.folder is None:
                shutil.rmtree(target, ignore_errors=True)
            raise
        if self.folder is None:
            remove_with(made, target)
        made.original, made.example = model, call
        return made

    def _check(self, artifact: Artifact) -> None:
        note, found = str(artifact.recipe.get("note", "")), artifact.distance or 0.0
        precision = self.choice.precision
        bound = BOUNDS[precision] if self.max_distance is None else self.max_distance
        cause = f"Perhaps because: {note}. " if note else ""
        if not found <= bound:
            raise ConversionError(
                f"The converted model's outputs are {found:.3g} away from the original's; precision {precision} "
                f"explains {BOUNDS[precision]:g}. {cause}Pass a max_distance above "
                f"{found:.3g} to use it all the same."
            )
        self.axes.check(artifact.signature, note)
        if note:
            _log.warning("%s: %s", self.choice.runtime, note)


def remove_with(owner: object, folder: Path) -> "weakref.finalize[..., Any]":
    """Remove a folder when its owner is collected or the program ends; calling the result removes it now."""
    return weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
