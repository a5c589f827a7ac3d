"""A model on a device: its inputs are copied there, and each of its few shapes runs as one captured graph."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from boxwright.core.errors import BoxwrightError, CheckpointError, MissingDependencyError
from boxwright.core.log import get_logger
from boxwright.core.signature import Array, Port, Signature
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.devices.base import Device, Run
from boxwright.devices.chosen import Chosen
from boxwright.runtimes.base import Graph, Tuning, refuse_fork, side_by_side
from boxwright.runtimes.buckets import in_buckets
from boxwright.runtimes.detector import DetectorSession
from boxwright.runtimes.program import as_tensor, lay_channels_last, torch_threads
from boxwright.runtimes.source import FlatModule, Source

_log = get_logger(__name__)
_IN_FLIGHT = 2
"""While one batch is computed, another one is copied."""
_MOST_CAPTURED = 32
"""Inputs of many sizes would fill the memory; the graph that was made first is dropped."""


class DeviceGraph:
    """A `Graph` over a function of tensors on a device. Several threads may call it.

    Attributes:
        captured: the device's memory in bytes that each captured shape took when it first came.
        takes_bytes: uint8 inputs may stand for float32: a quarter is copied, and converted on the device.
    """

    takes_bytes = True

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        signature: Signature,
        tuning: Tuning,
        device: Device,
        place: torch.device,
        *,
        precision: Precision = Precision.FP32,
        capture: bool = True,
        channels_last: bool = True,
    ) -> None:
        """Make a graph.

        Args:
            function: takes and returns tensors on the device.
            signature: of its inputs and outputs.
            tuning: how it uses the machine.
            device: the kind of device.
            place: the device itself.
            precision: of the function.
            capture: run each shape as one graph; if not, operator by operator.
            channels_last: give the function its images so, not as plain arrays.
        """
        self.signature = signature
        self.captured: dict[tuple[tuple[int, ...], ...], int] = {}
        self._function: Callable[..., Sequence[Tensor]] | None = device.compile(function) if capture else function
        self._device, self._place, self._precision, self._capture = device, place, precision, capture
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._tuning = tuning
        self._dtypes = [getattr(torch, port.dtype) for port in signature.inputs]
        self._runs: dict[Any, Run] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def device_bytes(self) -> int:
        """The device's memory that this process holds."""
        return self._device.held_bytes(self._place)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for flat inputs; bytes may stand for float32 values."""
        refuse_fork(self._process)
        device, patient = self._device, self._tuning.hint == "throughput"
        with torch.inference_mode(), torch_threads(self._tuning.threads):
            staged = [device.stage(as_tensor(array, keep_layout=True)) for array in inputs]
            with self._lock:  # what is queued runs in order; only the queue is filled by one thread at a time
                outputs = [device.fetch(t) for t in self._find(staged)(*staged)]
                wait = device.mark(self._place, patient=patient)
            wait()
        return tuple(t.numpy() for t in outputs)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests in their order; while one is computed, others are copied."""
        threads = self._tuning.streams or _IN_FLIGHT
        with ThreadPoolExecutor(threads, "boxwright-device") as pool:
            yield from side_by_side(self.run, requests, pool, threads)

    def close(self) -> None:
        """Release the model and its graphs."""
        with self._lock:
            self._function = None
            self._runs.clear()

    def _find(self, staged: Sequence[Tensor]) -> Run:
        """Return what runs inputs of these shapes, captured now if they are new."""
        if self._function is None:
            raise CheckpointError("This session is closed. Load the model again.")
        device, place = self._device, self._place
        if not self._capture:
            return self._run_plain
        key = tuple((tuple(t.shape), t.dtype, t.stride()) for t in staged)
        if key not in self._runs:
            before = device.held_bytes(place)
            try:
                with device.working(self._precision):
                    self._runs[key] = device.capture(self._enter, staged, place)
            except RuntimeError as error:
                if device.is_out_of_memory(error):
                    raise CheckpointError(
                        f"The memory of {place} does not hold this model with {self._describe(staged)}. Use a smaller "
                        "batch, or end other programs on the device."
                    ) from error
                raise
            if len(self._runs) > _MOST_CAPTURED:
                device.synchronize()  # it may still run
                del self._runs[next(iter(self._runs))]
            shapes = tuple(tuple(t.shape) for t in staged)
            self.captured[shapes] = max(0, device.held_bytes(place) - before)
            _log.info(
                "Captured for %s: %d MB more on %s, %d MB in all.",
                self._describe(staged), self.captured[shapes] >> 20, place, device.held_bytes(place) >> 20,
            )  # fmt: skip
        return self._runs[key]

    def _describe(self, staged: Sequence[Tensor]) -> str:
        return "inputs of the shapes " + ", ".join(str(tuple(t.shape)) for t in staged)

    def _run_plain(self, *staged: Tensor) -> Sequence[Tensor]:
        with self._device.working(self._precision):
            outputs = self._enter(*(t.to(self._place, non_blocking=True) for t in staged))
            self._device.end_of_step()
            return outputs

    def _enter(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Run the function on tensors of the device, whose bytes become floats there."""
        assert self._function is not None
        given = [
            t.to(dtype).contiguous(memory_format=self._layout if t.ndim == 4 else torch.contiguous_format)
            for t, dtype in zip(tensors, self._dtypes, strict=True)
        ]
        return [t.float() if t.dtype == torch.bfloat16 else t for t in self._function(*given)]


def open_place(name: str, number: int) -> tuple[Device, torch.device]:
    """Return the device that a converted model is for.

    Raises:
        MissingDependencyError: it is not here; the message says what to do.
    """
    try:
        device, place = Chosen(name, number).open()
    except BoxwrightError as error:
        raise MissingDependencyError(
            f"The model is for device={name!r}, which this process can't use: {error} To use a model here, convert its "
            "weights for this machine: boxwright optimize WEIGHTS --device cpu."
        ) from error
    return device, place


def move_program(module: GraphModule, place: torch.device) -> GraphModule:
    """Move a program's weights to a device, and the tensors that it makes itself too; return it."""
    for part in module.modules():
        if not isinstance(part, GraphModule):
            continue
        for node in part.graph.nodes:
            node.args = _on(node.args, place)
            node.kwargs = _on(node.kwargs, place)
        part.recompile()
    lay_channels_last(module)
    module.to(place)
    return module


def _on(value: Any, place: torch.device) -> Any:
    return torch.fx.node.map_aggregate(value, lambda v: place if isinstance(v, torch.device) else v)


def open_original_on(source: Source, chosen: Chosen) -> DeviceGraph:
    """Return a graph over a copy of the source's model on a device, not converted: operator by operator."""
    device, place = chosen.open()
    flat: nn.Module = FlatModule(source.flat().model, source.signature.call).eval().to(place)
    return DeviceGraph(flat, source.signature, Tuning(), device, place, capture=False)


def open_network_on(model: nn.Module, spec: Spec, chosen: Chosen, *, hint: Any = "latency") -> DetectorSession:
    """Return a session over a detector on a device; the model is moved there."""
    device, place = chosen.open()
    model.eval().to(place, memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in torch's stubs

    def run(images: Tensor) -> tuple[Tensor]:
        return (torch.cat(tuple(model(images)), dim=2).float(),)

    images = Port(name="images", dtype="float32", shape=(None, 3, None, None))
    output = Port(name="output", dtype="float32", shape=(None, None, 5 + spec.num_classes))
    call, result = {"tuple": [{"tuple": [{"leaf": 0}]}, {"dict": {}}]}, {"leaf": 0}
    signature = Signature(inputs=(images,), outputs=(output,), call=call, result=result)
    graph: Graph = DeviceGraph(run, signature, Tuning(hint=hint), device, place)
    return DetectorSession(in_buckets(graph, threads=_IN_FLIGHT), spec)
