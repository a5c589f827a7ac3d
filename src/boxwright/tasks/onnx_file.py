"""ONNX files as sessions, also those of other programs, and their number of weights. It needs no torch."""

import json
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import xyxy_to_cxcywh
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.signature import Array, Port
from boxwright.core.spec import LARGEST_SIDE, OutputForm, Spec
from boxwright.detector.postprocess import anchor_grid
from boxwright.devices.chosen import Chosen
from boxwright.runtimes.base import Tuning
from boxwright.runtimes.detector import DetectorSession
from boxwright.runtimes.onnxruntime_ import OnnxGraph
from boxwright.tasks.info import Cost
from boxwright.tasks.models import ModelOptions, default_names, refuse

_log = get_logger(__name__)
SPEC_KEY = "boxwright"
"""The metadata key of our files for their `Spec` as JSON."""

SETTINGS_KEY = "boxwright_nms"
"""The metadata key of files that suppress boxes themselves for their thresholds as JSON."""


def open_onnx(
    path: Path, options: ModelOptions, tuning: Tuning | None = None, place: Chosen | None = None
) -> DetectorSession:
    """Return a session over an ONNX file; if it has no description, its output is examined.

    Raises:
        CheckpointError: it is not a detector of this family, or ONNX Runtime can't load it.
        MissingDependencyError: this ONNX Runtime does not run on the device.
        UsageError: an option contradicts the file.
    """
    graph = OnnxGraph(path, tuning=tuning, place=place)
    size_hw = _check_ports(graph)
    if options.size_hw and size_hw and options.size_hw != size_hw:
        raise UsageError(f"The input size of {path.name} is fixed to {size_hw!r}; {options.size_hw!r} can't be used.")
    spec = read_spec(graph)
    if spec is None:
        spec = _find_spec(graph, options, size_hw)
    else:
        refuse(path, output_form=options.output)
    spec = options.apply(spec)
    if _is_suppressed(graph):
        _log.info("%s suppresses boxes itself, with %s; lower thresholds find no more.", path.name, _settings(graph))
        return DetectorSession(SuppressedGraph(graph, spec), spec, suppresses=True)
    return DetectorSession(graph, spec)


class SuppressedGraph:
    """Gives a file that ends with suppression the output of one that does not.

    The boxes that are left are in the first rows; the others have an objectness below any threshold, even 0. So
    predicting and scoring work as with any other file; their own suppression finds little left to do.
    """

    def __init__(self, graph: OnnxGraph, spec: Spec) -> None:
        self.signature = graph.signature
        self._graph = graph
        self._spec = spec

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return one (B, A, 5 + C) output with decoded boxes."""
        return (self._spread(*self._graph.run(inputs), size_hw=inputs[0].shape[2:]),)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests in their order."""
        for outputs in self._graph.run_all(requests):
            yield (self._spread(*outputs, size_hw=self._spec.size_hw),)

    def close(self) -> None:
        """Close the file."""
        self._graph.close()

    def _spread(self, num: Array, boxes: Array, scores: Array, classes: Array, *, size_hw: tuple[int, ...]) -> Array:
        places = len(anchor_grid((size_hw[0], size_hw[1]), self._spec.strides)[0])
        shapes = [a.shape for a in (num, boxes, scores, classes)]
        batch, kept = (*boxes.shape, 0, 0)[:2]
        fits = shapes == [(batch,), (batch, kept, 4), (batch, kept), (batch, kept)]
        if not fits or not ((num >= 0) & (num <= min(kept, places))).all():
            raise CheckpointError(
                f"{str(self._graph.path)!r} says that it suppresses boxes itself, but its outputs {shapes!r} are not "
                "those of such a file, or it counts more boxes than it gives."
            )
        output = np.zeros((batch, places, 5 + self._spec.num_classes), np.float32)
        for i, count in enumerate(num):
            if not ((classes[i, :count] >= 0) & (classes[i, :count] < self._spec.num_classes)).all():
                raise CheckpointError(
                    f"{str(self._graph.path)!r} gives classes without a name; it names {self._spec.num_classes}."
                )
            output[i, :count, :4] = xyxy_to_cxcywh(boxes[i, :count])
            output[i, :count, 4] = scores[i, :count]
            output[i, count:, 4] = -1
            output[i, np.arange(count), 5 + classes[i, :count]] = 1
        return output


def read_spec(graph: OnnxGraph) -> Spec | None:
    """Return the description inside a file of ours, or None.

    Raises:
        CheckpointError: there is one and it can't be read.
    """
    stored = graph.metadata.get(SPEC_KEY)
    if stored is None:
        return None
    try:
        return Spec.from_json(stored)
    except UsageError as error:
        raise CheckpointError(f"The description inside {str(graph.path)!r} can't be read: {error}") from error


def measure_cost(path: Path) -> Cost:
    """Return the number of weights in the file; its FLOPs are not counted.

    Raises:
        CheckpointError: it is not an ONNX file.
    """
    import onnx  # here: running a file needs onnxruntime alone
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except DecodeError as error:
        raise CheckpointError(f"{str(path)!r} is not a whole ONNX file: {error}. Convert the model again.") from error
    return Cost(parameters=sum(prod(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT))


def _check_ports(graph: OnnxGraph) -> tuple[int, int] | None:
    """Return the input size, or None if it is free."""
    inputs, outputs = graph.signature.inputs, graph.signature.outputs
    images = len(inputs) == 1 and len(inputs[0].shape) == 4 and inputs[0].shape[1] in (3, None)
    numbers = not any("(" in port.dtype for port in (*inputs, *outputs))  # types that numpy lacks keep ONNX's name
    if not images or not numbers or (len(outputs) != 1 and not _is_suppressed(graph)):
        raise CheckpointError(
            f"{str(graph.path)!r} is not a detector of this family: it has inputs {_ports(inputs)} and "
            f"outputs {_ports(outputs)}; it needs one (B, 3, H, W) input and one (B, A, 5 + C) output."
        )
    batch, _, height, width = inputs[0].shape
    if max(height or 0, width or 0) > LARGEST_SIDE or (batch or 1) * (height or 1) * (width or 1) > LARGEST_SIDE**2:
        raise CheckpointError(
            f"{str(graph.path)!r} takes an input of {_ports(inputs)}, which is too large: at most {LARGEST_SIDE} "
            f"pixels a side, and {LARGEST_SIDE}x{LARGEST_SIDE} in a batch, are possible."
        )
    return (height, width) if height and width else None


def _ports(ports: Sequence[Port]) -> str:
    return ", ".join(f"{port.dtype} {port.shape!r}" for port in ports)


def _is_suppressed(graph: OnnxGraph) -> bool:
    return SPEC_KEY in graph.metadata and SETTINGS_KEY in graph.metadata and len(graph.signature.outputs) == 4


def _settings(graph: OnnxGraph) -> str:
    try:
        return ", ".join(f"{key} {value:g}" for key, value in json.loads(graph.metadata[SETTINGS_KEY]).items())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"The thresholds inside {str(graph.path)!r} can't be read: {error!r}") from error


def _find_spec(graph: OnnxGraph, options: ModelOptions, size_hw: tuple[int, int] | None) -> Spec:
    size_hw = size_hw or options.size_hw
    name = graph.path.name
    if size_hw is None:
        raise UsageError(f"{name} takes any input size and does not name one. Give it with --size.")
    batch = graph.signature.inputs[0].shape[0] or 1
    grey: Any = np.full((batch, 3, *size_hw), 114, np.float32)
    (output,) = graph.run(graph.signature.check([grey]))
    places = len(anchor_grid(size_hw, (8, 16, 32))[0])
    if output.ndim != 3 or output.shape[:2] != (batch, places) or output.shape[2] < 6:
        raise CheckpointError(
            f"{name} gives an output of shape {output.shape!r} for an input of {size_hw!r}: it is not a YOLOX detector."
        )
    names, ids = default_names(output.shape[2] - 5, graph.path, options)
    form = options.output or guess_form(output[0].astype(np.float32), size_hw)
    _log.debug("%s has no description; its output is taken as %r.", name, form)
    return Spec(names=names, size_hw=size_hw, output=form, category_ids=ids)


def guess_form(output: NDArray[np.float32], size_hw: Sequence[int]) -> OutputForm:
    """Return the form of an output (A, 5 + C), from its values.

    Raw objectness is a logit and mostly below 0. Decoded centres are near their cells, hundreds of pixels apart; raw
    ones are offsets of a few cells at most.
    """
    grid, step = anchor_grid((int(size_hw[0]), int(size_hw[1])), (8, 16, 32))
    scores = output[:, 4:]
    if scores.min() < 0 or scores.max() > 1:
        return "raw"
    off_by = np.abs(output[:, :2] - (grid + 0.5) * step)
    as_offset = np.abs(output[:, :2]) * step
    return "decoded" if np.median(off_by) < np.median(as_offset) else "scores"
