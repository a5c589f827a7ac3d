"""OpenVINO on the CPU: converted directly from torch, run without it."""

import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core import catalogue
from boxwright.core.affinity import unbound
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.signal_stack import kept_signal_stack
from boxwright.core.signature import Array, Signature
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning, check_offer, refuse_fork
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.telemetry import no_telemetry

with no_telemetry():
    import openvino

MODEL_FILE = "model.xml"
_COMPILED_SIZES = 4
_Shapes = tuple[tuple[int, ...], ...]
_PLAIN = ("",)
_MODES = {
    Precision.FP32: _PLAIN,
    Precision.FP16: _PLAIN,
    Precision.BF16: _PLAIN,
    Precision.INT8: ("", "bf16", "nncf"),  # bf16: layers that are not quantised; nncf: it chooses the layers
}


class OpenvinoRuntime:
    """Converts with OpenVINO's own reader of torch models (no ONNX in between), and quantises the result."""

    name = "openvino"

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write `model.xml` and `model.bin`; return how it was done.

        Precision "16" stores weights in half precision. "bf16" applies when the file is loaded, its weights stay in
        float32; its last layers and those of `calibration.keep_float` compute in float32 where OpenVINO can mix.
        "int8" computes the other layers in float32, or with mode "bf16" in bfloat16. With mode "nncf" Intel's NNCF
        chooses the layers: it quantises more kinds of them and keeps less of a detector's accuracy.

        Raises:
            ConversionError: OpenVINO can't read the model, or the model can't be quantised.
            UsageError: the choice is not offered, or int8 lacks calibration.
        """
        check_offer(choice, calibration, modes=_MODES, channels_last=False)
        recipe: dict[str, Any]
        with kept_signal_stack():  # both compile, see _CompiledModel
            model, recipe = catalogue.load("exporter", "openvino")(source)
            recipe["inference"] = _inference_type(choice)
            if choice.precision is Precision.INT8:
                quantize = catalogue.load("quantizer", "openvino")
                model, more = quantize(model, source, calibration, nncf_chooses=choice.mode == "nncf")
                recipe |= more
        half = choice.precision is Precision.FP16
        recipe["weights"] = "f16" if half else "f32" if choice.precision is not Precision.INT8 else "i8"
        if _wanted_type(choice) != recipe["inference"]:
            lacking = f"this CPU does not compute in {_wanted_type(choice)}; {recipe['inference']} is used here"
            recipe["note"] = "; ".join(filter(None, [recipe.get("note"), lacking]))
        openvino.save_model(model, folder / MODEL_FILE, compress_to_fp16=half)
        if _wanted_type(choice) == "bf16":
            kept = () if calibration is None else calibration.keep_float
            with kept_signal_stack():
                recipe |= catalogue.load("quantizer", "openvino_bf16")(
                    folder / MODEL_FILE,
                    source,
                    kept,
                    check=recipe["inference"] == "bf16",
                    strict=choice.precision is Precision.BF16,  # in int8, keep_float only means not to quantise
                )
        return recipe

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> "OpenvinoGraph":
        """Return a graph over the folder's file, compiled for this machine.

        Raises:
            CheckpointError: the file can't be read or compiled.
            UsageError: the tuning is not offered.
        """
        path = folder / MODEL_FILE
        if not path.is_file():
            raise CheckpointError(f"There is no {MODEL_FILE!r} in {str(folder)!r}. Copy the whole folder again.")
        try:
            model = openvino.Core().read_model(path)
        except RuntimeError as error:
            raise CheckpointError(f"{str(path)!r} can't be read by OpenVINO: {_reason(error)}") from error
        return OpenvinoGraph(model, signature, to_settings(choice, tuning))


class OpenvinoGraph:
    """A `Graph` over an OpenVINO model.

    The first request compiles it for that request's shapes, because a free batch costs 10 to 20 % of the speed. The
    first few batch sizes are compiled separately, all later ones share one model with a free batch.

    `run` and `run_all` are thread-safe. `close` is not; let the other threads finish first. A forked child can't use
    it, because it lacks OpenVINO's threads.
    """

    def __init__(self, model: Any, signature: Signature, settings: dict[str, Any]) -> None:
        self.signature = signature
        self._model = model
        self._settings = settings
        self._compiled: dict[_Shapes, _CompiledModel] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()
        _watch_forks().add(self)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for flat inputs; the caller owns the arrays."""
        compiled = self._compile(inputs)
        request = compiled.take()
        try:
            _start(request, inputs)
            return _finish(request)
        finally:
            compiled.give(request)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests in their order, computed in parallel as the hint allows.

        At most one more request than that is held in memory.
        """
        busy: deque[tuple[_CompiledModel, Any, list[Array]]] = deque()  # inputs must live while the request runs
        try:
            for inputs in requests:
                compiled = self._compile(inputs)
                while len(busy) > compiled.parallel:
                    yield _finish_first(busy)
                request = compiled.take()
                busy.append((compiled, request, _start(request, inputs)))
            while busy:
                yield _finish_first(busy)
        finally:
            # Even if the caller stops early or a request fails, nothing keeps running.
            for compiled, request, _ in busy:
                with suppress(CheckpointError):
                    _finish(request)
                compiled.give(request)

    def close(self) -> None:
        """Release the compiled models and their threads."""
        self._model = None
        with kept_signal_stack():
            self._compiled.clear()

    def keep_for_ever(self) -> None:
        """Never free what OpenVINO has made, not even when the program ends."""
        for kept in (self, self._model, *self._compiled.values()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def _compile(self, inputs: Sequence[Array]) -> "_CompiledModel":
        refuse_fork(self._process)
        shapes = tuple(a.shape for a in inputs)
        with self._lock:
            if self._model is None:
                raise CheckpointError("This session is closed. Load the model again.")
            if shapes not in self._compiled and len(self._compiled) >= _COMPILED_SIZES:
                shapes = ()
            if shapes not in self._compiled:
                self._compiled[shapes] = _CompiledModel(self._model, shapes, self._settings)
            return self._compiled[shapes]


@cache
def _watch_forks() -> "weakref.WeakSet[OpenvinoGraph]":
    """Return the models that a forked child keeps: freeing one would wait for threads that only its parent has."""
    graphs: weakref.WeakSet[OpenvinoGraph] = weakref.WeakSet()

    def keep_all() -> None:
        for graph in list(graphs):
            graph.keep_for_ever()

    os.register_at_fork(after_in_child=keep_all)
    return graphs


class _CompiledModel:
    """The model compiled for given shapes (empty: for any batch), and its idle requests."""

    def __init__(self, model: Any, shapes: _Shapes, settings: dict[str, Any]) -> None:
        try:
            if shapes:
                model = model.clone()
                model.reshape({port: list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
            # OpenVINO's threads inherit the affinity of the thread that starts them. Compiling installs a signal stack
            # that is freed with the compiled model.
            with unbound(), kept_signal_stack():
                self._compiled: Any = openvino.Core().compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise CheckpointError(f"OpenVINO can't compile the model: {_reason(error)}") from error
        self.parallel = int(self._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self._idle: list[Any] = []

    def take(self) -> Any:
        """Return an idle request, or a new one."""
        try:
            return self._idle.pop()  # atomic in Python: two threads never get the same
        except IndexError:
            return self._compiled.create_infer_request()

    def give(self, request: Any) -> None:
        """Return a request to the idle ones."""
        self._idle.append(request)


def _start(request: Any, inputs: Sequence[Array]) -> list[Array]:
    """Start a request, and return the arrays that must live until it ends."""
    kept = [np.ascontiguousarray(a).reshape(a.shape) for a in inputs]  # ascontiguousarray makes scalars one-dimensional
    # Asynchronous, so that OpenVINO's threads compute, not the caller's, which may be pinned to a core.
    request.start_async(kept, share_inputs=True)
    return kept


def _finish(request: Any) -> tuple[Array, ...]:
    try:
        request.wait()
    except RuntimeError as error:
        raise CheckpointError(f"OpenVINO failed on a request: {_reason(error)}") from error
    return tuple(np.array(tensor.data) for tensor in request.output_tensors)


def _finish_first(busy: "deque[tuple[_CompiledModel, Any, list[Array]]]") -> tuple[Array, ...]:
    compiled, request, _ = busy[0]
    outputs = _finish(request)
    busy.popleft()
    compiled.give(request)
    return outputs


def _wanted_type(choice: Choice) -> str:
    if choice.precision is Precision.FP16:
        return "f16"
    return "bf16" if Precision.BF16 in (choice.precision, choice.mode) else "f32"


def _inference_type(choice: Choice) -> str:
    """Return the type that this CPU computes in; by default OpenVINO would use bf16 wherever it can."""
    wanted = _wanted_type(choice)
    with unbound():  # on first use OpenVINO counts the main thread's cpus, once
        offered = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return wanted if {"f16": "FP16", "bf16": "BF16", "f32": "FP32"}[wanted] in offered else "f32"


def to_settings(choice: Choice, tuning: Tuning) -> dict[str, Any]:
    """Return OpenVINO's properties for a choice and a tuning.

    Raises:
        UsageError: there are fewer than one thread or stream.
    """
    for name, value in (("threads", tuning.threads), ("streams", tuning.streams)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value!r} is not possible. Use 1 or more, or None.")
    cpu = read_cpu()
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": tuning.hint.upper(),
        "INFERENCE_PRECISION_HINT": _inference_type(choice),
        # Two models of one process would be pinned to the same first cores. The process's affinity holds either way.
        "ENABLE_CPU_PINNING": False,
    }
    streams = tuning.streams
    if streams is None and tuning.threads is not None:
        streams = max(1, cpu.usable_cores // tuning.threads) if tuning.hint == "throughput" else 1
    if streams is not None:
        settings["NUM_STREAMS"] = streams
    if tuning.threads is not None:
        settings["INFERENCE_NUM_THREADS"] = tuning.threads * (streams or 1)  # the total of all streams
    elif cpu.quota is not None:
        settings["INFERENCE_NUM_THREADS"] = cpu.usable_cores  # OpenVINO respects the affinity, but not the quota
    return settings | dict(tuning.properties)


def _reason(error: Exception) -> str:
    """Return the last line of OpenVINO's message; the others name its source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
