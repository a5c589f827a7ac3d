"""8-bit forms of an ONNX file: static with measured ranges, and dynamic with ranges taken at run time.

What keeps the accuracy of YOLOX-nano, each found by measuring:

- Only convolutions and products with constant weights are quantised; SiLU stays in float.
- Depthwise convolutions stay in float: they are few operations, and cost most of the accuracy.
- So do the first layer, whose error goes through all others, and the layers whose outputs leave the network.
- ONNX Runtime's 8-bit convolution has 8-bit outputs, one scale for all channels. The weights of each channel are
  divided by a factor, which is multiplied back in float, so that each channel fills the 8 bits.
- A value below -8 is nothing after SiLU, one below 0 nothing after ReLU: outputs that go there are cut off, which
  leaves finer steps.
- What rounded weights and inputs take from a channel's mean is given back in the bias. (Giving back what all layers
  before it took as well, measured on the quantised network in groups of layers, made it far worse.)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from boxwright.core.cpu import read_cpu
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.onnx_layers import Layer, Rewriter, Weights, attribute, choose_layers, find_users, lowest_used
from boxwright.runtimes.onnx_ranges import Grid, Statistics, channel_grids, measure

_HEADROOM = 1.1
"""Outputs of other images go further than those of the calibration images."""


def quantize_static(path: Path, target: Path, calibration: Calibration) -> dict[str, Any]:
    """Write the file with 8-bit layers and measured scales; return how it was done.

    Raises:
        UsageError: a layer to keep in float does not exist.
    """
    model = onnx.load(path)
    layers, kept = choose_layers(model, calibration.keep_float)
    users = find_users(model.graph)
    seen = measure(model, [n for layer in layers for n in (layer.node.input[0], layer.node.output[0])], calibration)
    bits = _weight_bits()
    out = Rewriter(model)
    chosen = {layer.node.name: layer for layer in layers}
    rounded: dict[str, str] = {}
    for node in model.graph.node:
        if node.name not in chosen:
            out.nodes.append(node)
            continue
        name, grid = node.input[0], seen[node.input[0]].grid
        if name not in rounded:
            rounded[name] = out.round(name, f"{name}/rounded", grid.scale, grid.zero)
        after = seen[node.output[0]] if node.op_type == "Conv" else None
        lowest = lowest_used(node.output[0], users)
        _write_static(out, chosen[node.name], rounded[name], grid, seen[name], after, lowest, bits)
    out.save(target)
    return {
        "mode": "static",
        "quantized": [layer.module for layer in layers],
        "weights": f"{bits} bits, a scale for each channel",
        "inputs": "8 bits, least square error",
        "outputs": "8 bits, a scale for each channel, cut off where SiLU or ReLU begin",
        "float": kept,
        "samples": len(calibration.samples),
    }


def quantize_dynamic(path: Path, target: Path, calibration: Calibration | None) -> dict[str, Any]:
    """Write the file with whole-number products whose input scale is found at every run; return how it was done.

    The scale is one for all rows of a batch, so an image's result depends a little on its neighbours. With calibration
    inputs, rare extremes are cut off before, and the bias makes up for what rounded weights take.

    Raises:
        UsageError: a layer to keep in float does not exist.
    """
    model = onnx.load(path)
    layers, kept = choose_layers(model, calibration.keep_float if calibration else ())
    seen = measure(model, [layer.node.input[0] for layer in layers], calibration) if calibration else {}
    bits = _weight_bits()
    out = Rewriter(model)
    chosen = {layer.node.name: layer for layer in layers}
    rounded: dict[str, list[str]] = {}
    for node in model.graph.node:
        if node.name not in chosen:
            out.nodes.append(node)
            continue
        name = node.input[0]
        if name not in rounded:
            rounded[name] = _round_at_run_time(out, name, seen.get(name))
        _write_dynamic(out, chosen[node.name], rounded[name], seen.get(name), bits)
    out.save(target)
    return {
        "mode": "dynamic",
        "quantized": [layer.module for layer in layers],
        "weights": f"{bits} bits, a scale for each channel",
        "inputs": "8 bits, measured at every run over the whole batch" + (", rare extremes cut off" if seen else ""),
        "float": kept,
    }


def _write_static(
    out: Rewriter,
    layer: Layer,
    rounded: str,
    grid: Grid,
    before: Statistics,
    after: Statistics | None,
    lowest: float,
    bits: int,
) -> None:
    """Write one layer between levels; `after` is given where the outputs become levels too."""
    node, name = layer.node, layer.node.name
    levels, scales = layer.rounded(bits)
    bias = _corrected_bias(layer, levels, scales, before)
    factors, zero = np.ones(len(scales)), 0
    if after is not None:
        factors, zero = channel_grids(np.maximum(after.lows, lowest), after.highs * _HEADROOM)
        scales = (scales / factors).astype(np.float32)
    weight = [
        out.constant(f"{name}/weight", levels, np.int8),
        out.constant(f"{name}/weight_scale", scales, np.float32),
        out.constant(f"{name}/weight_zero", np.zeros(len(scales)), np.int8),
    ]
    inputs = [rounded, out.node("DequantizeLinear", weight, [f"{name}/weight_float"], axis=layer.axis)]
    if bias is not None:
        bias_scale = (scales * np.float32(grid.scale)).astype(np.float32)
        whole = np.clip(np.rint(bias / factors / bias_scale), -(2.0**31), 2.0**31 - 1)
        parts = [
            out.constant(f"{name}/bias", whole, np.int32),
            out.constant(f"{name}/bias_scale", bias_scale, np.float32),
            out.constant(f"{name}/bias_zero", np.zeros(len(scales)), np.int32),
        ]
        inputs.append(out.node("DequantizeLinear", parts, [f"{name}/bias_float"], axis=0))
    output = node.output[0]
    if after is None:
        out.copy(node, inputs, output)
        return
    out.copy(node, inputs, f"{output}/exact")
    steps = out.round(f"{output}/exact", f"{output}/steps", 1.0, zero)
    shape = (1, -1, *(1,) * (layer.weight.ndim - 2))
    out.node("Mul", [steps, out.constant(f"{output}/factors", factors.reshape(shape), np.float32)], [output])


def _round_at_run_time(out: Rewriter, name: str, seen: Statistics | None) -> list[str]:
    """Return the names of a tensor's levels, scale and zero."""
    rounded = [f"{name}/{part}" for part in ("levels", "scale", "zero")]
    if seen is not None:
        grid = seen.grid
        limits = [
            out.constant(f"{name}/low", -grid.zero * grid.scale, np.float32),
            out.constant(f"{name}/high", (255 - grid.zero) * grid.scale, np.float32),
        ]
        name = out.node("Clip", [name, *limits], [f"{name}/cut"])
    out.node("DynamicQuantizeLinear", [name], rounded)
    return rounded


def _write_dynamic(out: Rewriter, layer: Layer, rounded: Sequence[str], before: Statistics | None, bits: int) -> None:
    node, name = layer.node, layer.node.name
    levels, scales = layer.rounded(bits)
    convolution = node.op_type == "Conv"
    bias = layer.bias if before is None else _corrected_bias(layer, levels, scales, before)
    if layer.axis == 0 and not convolution:
        levels = levels.T  # a product of plain matrices has no transposed form
    values, input_scale, zero = rounded
    operands = [
        values,
        out.constant(f"{name}/weight", levels, np.int8),
        zero,
        out.constant(f"{name}/weight_zero", 0, np.int8),
    ]
    options = {a.name: helper.get_attribute_value(a) for a in node.attribute} if convolution else {}
    sums = out.node("ConvInteger" if convolution else "MatMulInteger", operands, [f"{name}/sums"], **options)
    sums = out.node("Cast", [sums], [f"{name}/sums_float"], to=TensorProto.FLOAT)
    shape = (1, -1, *(1,) * (layer.weight.ndim - 2)) if convolution else (-1,)
    scale = out.constant(f"{name}/weight_scale", scales.reshape(shape), np.float32)
    both = out.node("Mul", [input_scale, scale], [f"{name}/both_scales"])
    output = node.output[0]
    if bias is None:
        out.node("Mul", [sums, both], [output])
        return
    product = out.node("Mul", [sums, both], [f"{name}/product"])
    out.node("Add", [product, out.constant(f"{name}/bias", bias.reshape(shape), np.float32)], [output])


def _corrected_bias(
    layer: Layer, levels: NDArray[np.int8], scales: Weights, before: Statistics
) -> NDArray[np.float64] | Weights | None:
    """Return the bias and what rounded weights and inputs take from a convolution's channel means."""
    if layer.node.op_type != "Conv":
        return layer.bias
    group: int = attribute(layer.node, "group", 1)
    rounded = (levels * layer.along(scales)).astype(np.float64)
    means, shifted = before.means, before.means + before.shifts
    lost = _through(layer.weight, means, group) - _through(rounded, shifted, group)
    return np.asarray(lost if layer.bias is None else layer.bias + lost)


def _through(weight: NDArray[Any], means: NDArray[np.float64], group: int) -> NDArray[np.float64]:
    """Return the channel means after a convolution, borders left aside."""
    by_input = weight.sum(axis=tuple(range(2, weight.ndim)), dtype=np.float64)  # (O, I / group)
    by_group = by_input.reshape(group, -1, by_input.shape[1])
    return np.asarray(np.einsum("goi,gi->go", by_group, means.reshape(group, -1)).reshape(-1))


def _weight_bits() -> int:
    """Return 8, or 7 on a CPU whose 8-bit products overflow 16-bit sums (no VNNI)."""
    return 8 if read_cpu().isa & {"vnni", "amx"} else 7
