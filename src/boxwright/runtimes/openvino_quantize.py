"""8-bit OpenVINO models: the ranges that `quantized` measures, written as the nodes OpenVINO makes int8 kernels from.

Why not NNCF alone: on the official nano, with 128 calibration images, it takes 0.0149 AP with SiLU's products left in
float, and this 0.0030 (`benchmarks/int8_accuracy.py`). Depthwise, first and last layers stay in float here, and ranges
have the least square error.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from boxwright.core.errors import ConversionError, UsageError
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import fold_batch_norms
from boxwright.runtimes.openvino_convert import find_module
from boxwright.runtimes.quantized import Range, measure_layers, weight_scales
from boxwright.runtimes.source import PREFIX, Source
from boxwright.runtimes.telemetry import no_telemetry

with no_telemetry():
    import openvino.opset13 as ops

_Key = tuple[str, int]
"""An output: its node's name and its place there."""

_WIDER = 2.0  # how many times wider than a layer's own range its levels may become
_KINDS = ("Convolution", "GroupConvolution", "MatMul")


def quantize(model: Any, source: Source, calibration: Calibration) -> tuple[Any, dict[str, Any]]:
    """Quantise a model in place; return it and how that was done.

    Args:
        model: the OpenVINO model of `source`, with its own names.
        source: the torch model behind it.
        calibration: samples, and what to leave in float.

    Raises:
        UsageError: a layer to keep in float does not exist, or products shall be quantised.
        ConversionError: there is no layer to quantise.
    """
    if not calibration.keep_products:
        raise UsageError("keep_products=False needs mode 'nncf': this quantiser leaves products in float.")
    module: nn.Module = source.flat()
    fold_batch_norms(module, source.example)
    statistics = measure_layers(module, source, calibration)
    found: dict[str, tuple[Any, nn.Conv2d | nn.Linear, Range, NDArray[np.float32]]] = {}
    done: list[str] = []
    for node in model.get_ordered_ops():
        name = find_module(node.get_friendly_name())
        if node.get_type_name() not in _KINDS or name not in statistics:
            continue
        limits, error = statistics[name]
        layer = module.get_submodule(name)
        if isinstance(layer, nn.Conv2d | nn.Linear) and _has_weights(node, layer):
            found[node.get_name()] = (node, layer, limits, np.asarray(error, np.float32))
            done.append(name.removeprefix(PREFIX))
    rounder = _Rounder([(node, limits) for node, _, limits, _ in found.values()])
    for node, *_ in found.values():  # all of them first: what follows puts nodes in between
        rounder.round_inputs(node)
    for node, quantized, _, shift in found.values():
        _round_weights(node, quantized)
        _shift_outputs(node, shift)
    if not done:
        raise ConversionError(
            f"None of the {len(statistics)} layers to quantise is found again by its name in the OpenVINO model. "
            "Mode 'nncf' needs no names."
        )
    model.validate_nodes_and_infer_types()
    return model, {
        "quantizer": "boxwright",
        "quantized": done,
        "keep_float": list(calibration.keep_float),
        "float": "depthwise convolutions, first and last layers, products, sums, activations",
        "activations": "uint8, a scale a tensor, range with the least square error, common where layers share values",
        "weights_scale": "int8, one scale an output channel, bias corrected by the mean error",
        "samples": len(calibration.samples),
        "samples_sha": calibration.fingerprint(),
    }


def _has_weights(node: Any, layer: nn.Conv2d | nn.Linear) -> bool:
    """Return whether the node's second input is the layer's weights, the output channels first."""
    shape = node.input_value(1).get_partial_shape()
    size = layer.weight.numel()
    if not shape.is_static or int(np.prod(shape.to_shape())) != size:
        return False
    return isinstance(layer, nn.Conv2d) or bool(node.get_attributes()["transpose_b"])


class _Rounder:
    """Puts levels before layers.

    Levels stand where a value is computed, once for all layers that read it: then the layer that computes it writes
    bytes, and what only joins, picks or repeats values hands on bytes. So layers whose inputs share a value have the
    same levels, wide enough for each. A layer that would make them much too wide for another has its own.
    """

    def __init__(self, layers: Sequence[tuple[Any, Range]]) -> None:
        self._own = {node.get_name(): limits for node, limits in layers}
        self._layers = set(self._own)  # those that share
        self._limits: dict[_Key, Range] = {}
        self._known: dict[_Key, Any] = {}
        while True:
            groups = self._group([node for node, _ in layers if node.get_name() in self._layers])
            crowded = [names for _, names, limits in groups if self._is_too_wide(limits, names)]
            if not crowded:
                break
            for names in crowded:
                self._layers.remove(max(names, key=lambda name: self._own[name].scale))
        for keys, _, limits in groups:
            self._limits |= dict.fromkeys(keys, limits)

    def round_inputs(self, node: Any) -> None:
        """Have a layer read levels."""
        source, name = node.input_value(0), node.get_name()
        node.input(0).replace_source_output(
            self._round(source) if name in self._layers else _round(source, self._own[name])
        )

    def _is_too_wide(self, limits: Range, names: set[str]) -> bool:
        return any(limits.scale > _WIDER * self._own[name].scale for name in names)

    def _group(self, layers: Sequence[Any]) -> list[tuple[set[_Key], set[str], Range]]:
        """Return the values that have the same levels, the layers that read them, and the levels."""
        groups: list[tuple[set[_Key], set[str], Range]] = []
        for node in layers:
            keys, names = {_key(origin) for origin in self._origins(node.input_value(0))}, {node.get_name()}
            limits, apart = self._own[node.get_name()], []
            for group in groups:
                if group[0] & keys:
                    keys, names = keys | group[0], names | group[1]
                    limits = Range(low=min(limits.low, group[2].low), high=max(limits.high, group[2].high))
                else:
                    apart.append(group)
            groups = [*apart, (keys, names, limits)]
        return groups

    def _origins(self, source: Any) -> list[Any]:
        """Return where the values of an output are computed."""
        parts = self._hands_on(source)
        return [origin for part in parts for origin in self._origins(part.get_source_output())] if parts else [source]

    def _hands_on(self, source: Any) -> list[Any]:
        """Return the inputs whose values an output consists of, unchanged, if nothing reads it but quantised layers."""
        node = source.get_node()
        if node.get_type_name() == "Concat":
            parts = node.inputs()
        elif node.get_type_name() == "MaxPool" or _repeats(node):
            parts = [node.input(0)]
        else:
            return []
        return list(parts) if all(self._is_quantized(i) for i in source.get_target_inputs()) else []

    def _is_quantized(self, reader: Any) -> bool:
        node = reader.get_node()
        if node.get_name() in self._layers:
            return bool(reader.get_index() == 0)
        return any(part.get_index() == reader.get_index() for part in self._hands_on(node.output(0)))

    def _round(self, source: Any) -> Any:
        key = _key(source)
        if key in self._known:
            return self._known[key]
        parts = self._hands_on(source)
        self._known[key] = source
        if parts:
            for part in parts:
                part.replace_source_output(self._round(part.get_source_output()))
        else:
            rounded = _round(source, self._limits[key])
            self._known |= {key: rounded, _key(rounded): rounded}
        return self._known[key]


def _round(source: Any, limits: Range) -> Any:
    low = np.float32(-limits.zero_point * limits.scale)
    high = np.float32((255 - limits.zero_point) * limits.scale)
    return ops.fake_quantize(source, low, high, low, high, 256).output(0)


def _key(output: Any) -> _Key:
    return output.get_node().get_name(), output.get_index()


def _repeats(node: Any) -> bool:
    """Return whether a node only repeats or leaves out values of its first input."""
    return bool(node.get_type_name() == "Interpolate" and node.get_attributes()["mode"] == "nearest")


def _round_weights(node: Any, layer: nn.Conv2d | nn.Linear) -> None:
    """Store the weights as levels and scales."""
    shape = node.input_value(1).get_partial_shape().to_shape()
    weight = layer.weight.detach().numpy().reshape(shape)
    lead = shape[:2] if node.get_type_name() == "GroupConvolution" else shape[:1]
    scales = weight_scales(layer).numpy().reshape(*lead, *[1] * (len(shape) - len(lead)))
    levels = ops.constant(np.clip(np.rint(weight / scales), -127, 127).astype(np.int8))
    node.input(1).replace_source_output(ops.multiply(ops.convert(levels, "f32"), ops.constant(scales)).output(0))


def _shift_outputs(node: Any, shift: NDArray[np.float32]) -> None:
    """Take the mean error from each output channel, in the bias where there is one."""
    if node.get_type_name() != "MatMul":
        shift = shift.reshape(1, -1, *[1] * (len(node.get_output_partial_shape(0)) - 2))
    users = list(node.output(0).get_target_inputs())
    if len(users) == 1 and users[0].get_node().get_type_name() == "Add":
        bias = users[0].get_node().input(1 - users[0].get_index())
        constant = bias.get_source_output().get_node()
        if constant.get_type_name() == "Constant":
            bias.replace_source_output(ops.constant(constant.get_data() - shift).output(0))
            return
    moved = ops.subtract(node.output(0), ops.constant(shift))
    for user in users:
        user.replace_source_output(moved.output(0))
