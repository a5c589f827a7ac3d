"""8-bit forms of an ONNX file: static with measured ranges, also around zero, and dynamic with ranges of each run.

The layers and their ranges are those of `quantized`. ONNX Runtime's 8-bit convolution has 8-bit outputs too, with one
scale for all channels. What keeps the accuracy of YOLOX-nano there, each found by measuring:

- The weights of each channel are divided by a factor, which is multiplied back in float, so that each channel fills
  the 8 bits.
- A value below -8 is nothing after SiLU, one below 0 nothing after ReLU: outputs are cut off there, which leaves finer
  steps.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from boxwright.core.cpu import read_cpu
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import fold_copy
from boxwright.runtimes.onnx_layers import Layer, Rewriter, Weights, find_layers, lowest_used
from boxwright.runtimes.quantized import FLOAT_LAYERS, Measured, Range, choose_layers, measure_layers
from boxwright.runtimes.source import PREFIX, Source

Floats = NDArray[np.float64]
_HEADROOM = 1.1
"""Outputs of other images go further than those of the calibration images."""


def quantize_static(path: Path, target: Path, source: Source, calibration: Calibration) -> dict[str, Any]:
    """Write the file with 8-bit layers and measured scales; return how it was done.

    Args:
        path: the ONNX file of the source.
        target: the file to write.
        source: the torch model.
        calibration: samples, and what to leave in float.

    Raises:
        UsageError: a layer to keep in float does not exist.
        ConversionError: there is no layer to quantise.
    """
    bits = _weight_bits()
    measured = measure_layers(fold_copy(source), source, calibration, bits)
    lowest = lowest_used(onnx.load(path).graph)
    rounded: dict[tuple[str, Range], str] = {}

    def write(out: Rewriter, layer: Layer) -> None:
        seen, name = measured[PREFIX + layer.module], layer.node.input[0]
        levels, key = seen.inputs, (name, seen.inputs)
        if key not in rounded:
            rounded[key] = out.round(name, f"{name}/rounded_{len(rounded)}", levels.scale, levels.zero_point)
        _write_static(out, layer, rounded[key], seen, lowest.get(layer.node.output[0], -np.inf), bits)

    return _rewrite(path, target, measured, write) | {
        "mode": "static",
        "weights": f"{bits} bits, a scale for each channel",
        "inputs": "8 bits, least square error",
        "outputs": "8 bits, a scale for each channel, cut off where SiLU or ReLU begin",
        "keep_float": list(calibration.keep_float),
        "samples": len(calibration.samples),
    }


def quantize_symmetric(path: Path, target: Path, source: Source, calibration: Calibration) -> dict[str, Any]:
    """Write the file with 8-bit inputs and weights around zero, the form that TensorRT takes; return how it was done.

    Biases and outputs stay in float. Arguments and errors are those of `quantize_static`.
    """
    measured = measure_layers(fold_copy(source), source, calibration)
    rounded: dict[tuple[str, Range], str] = {}

    def write(out: Rewriter, layer: Layer) -> None:
        node, seen, tensor = layer.node, measured[PREFIX + layer.module], layer.node.input[0]
        key = (tensor, seen.inputs)
        if key not in rounded:
            scale = max(-seen.inputs.low, seen.inputs.high, 1e-9) / 127
            rounded[key] = out.round(tensor, f"{tensor}/rounded_{len(rounded)}", scale, 0, np.int8)
        levels, scales = layer.rounded(8)
        weight = [
            out.constant(f"{node.name}/weight", levels, np.int8),
            out.constant(f"{node.name}/weight_scale", scales, np.float32),
            out.constant(f"{node.name}/weight_zero", np.zeros(len(scales)), np.int8),
        ]
        inputs = [rounded[key], out.node("DequantizeLinear", weight, [f"{node.name}/weight_float"], axis=layer.axis)]
        bias = _corrected_bias(layer, seen)
        if bias is not None:
            inputs.append(out.constant(f"{node.name}/bias", bias, np.float32))
        out.copy(node, inputs, node.output[0])

    return _rewrite(path, target, measured, write) | {
        "mode": "static",
        "weights": "8 bits, a scale for each channel",
        "inputs": "8 bits around zero, least square error",
        "keep_float": list(calibration.keep_float),
        "samples": len(calibration.samples),
    }


def quantize_dynamic(path: Path, target: Path, source: Source, calibration: Calibration | None) -> dict[str, Any]:
    """Write the file with integer products whose input scale is found at every run; return how it was done.

    The scale is one for all rows of a batch, so an image's result depends a little on its neighbours. With calibration
    inputs, rare extremes are cut off before, and the bias corrects the error of rounded weights. Arguments and errors
    are those of `quantize_static`.
    """
    bits, module = _weight_bits(), fold_copy(source)
    measured: Mapping[str, Measured | None]
    if calibration is None:
        measured = dict.fromkeys(choose_layers(module, source.example))
    else:
        measured = measure_layers(module, source, calibration, bits)
    rounded: dict[tuple[str, Range | None], list[str]] = {}

    def write(out: Rewriter, layer: Layer) -> None:
        seen, name = measured[PREFIX + layer.module], layer.node.input[0]
        key = (name, None if seen is None else seen.inputs)
        if key not in rounded:
            rounded[key] = _round_at_run_time(out, name, f"{name}/dynamic_{len(rounded)}", seen)
        _write_dynamic(out, layer, rounded[key], seen, bits)

    return _rewrite(path, target, measured, write) | {
        "mode": "dynamic",
        "weights": f"{bits} bits, a scale for each channel",
        "inputs": "8 bits, measured at every run over the whole batch" + ", rare extremes cut off" * bool(calibration),
        "keep_float": [] if calibration is None else list(calibration.keep_float),
    }


def channel_grids(lows: Floats, highs: Floats) -> tuple[Floats, int]:
    """Return a scale for each channel and the one zero they share, so that every channel's range is covered.

    The scales are as fine as that allows, by their geometric mean.
    """
    lows, highs = np.minimum(lows, 0), np.maximum(highs, 0)
    choices = range(1 if lows.min() < 0 else 0, 255 if highs.max() > 0 else 256)

    def scales(zero: int) -> Floats:
        return np.maximum(np.maximum(-lows / max(zero, 1), highs / max(255 - zero, 1)), 1e-6)

    best = min(choices, key=lambda zero: float(np.log(scales(zero)).sum()))
    return scales(best), best


def _write_static(out: Rewriter, layer: Layer, rounded: str, seen: Measured, lowest: float, bits: int) -> None:
    """Write one layer between 8-bit inputs and, for a convolution, 8-bit outputs."""
    node, name = layer.node, layer.node.name
    levels, scales = layer.rounded(bits)
    bias = _corrected_bias(layer, seen)
    convolution = node.op_type == "Conv"
    factors, zero = np.ones(len(scales)), 0
    if convolution:
        factors, zero = channel_grids(np.maximum(seen.lows, lowest), np.array(seen.highs) * _HEADROOM)
        scales = (scales / factors).astype(np.float32)
    weight = [
        out.constant(f"{name}/weight", levels, np.int8),
        out.constant(f"{name}/weight_scale", scales, np.float32),
        out.constant(f"{name}/weight_zero", np.zeros(len(scales)), np.int8),
    ]
    inputs = [rounded, out.node("DequantizeLinear", weight, [f"{name}/weight_float"], axis=layer.axis)]
    if bias is not None:
        bias_scale = (scales * np.float32(seen.inputs.scale)).astype(np.float32)
        whole = np.clip(np.rint(bias / factors / bias_scale), -(2.0**31), 2.0**31 - 1)
        parts = [
            out.constant(f"{name}/bias", whole, np.int32),
            out.constant(f"{name}/bias_scale", bias_scale, np.float32),
            out.constant(f"{name}/bias_zero", np.zeros(len(scales)), np.int32),
        ]
        inputs.append(out.node("DequantizeLinear", parts, [f"{name}/bias_float"], axis=0))
    output = node.output[0]
    if not convolution:
        out.copy(node, inputs, output)
        return
    out.copy(node, inputs, f"{output}/exact")
    steps = out.round(f"{output}/exact", f"{output}/steps", 1.0, zero)
    shape = (1, -1, *(1,) * (layer.weight.ndim - 2))
    out.node("Mul", [steps, out.constant(f"{output}/factors", factors.reshape(shape), np.float32)], [output])


def _round_at_run_time(out: Rewriter, name: str, target: str, seen: Measured | None) -> list[str]:
    """Return the names of a tensor's levels, scale and zero."""
    rounded = [f"{target}/{part}" for part in ("levels", "scale", "zero")]
    if seen is not None:
        scale, zero = seen.inputs.scale, seen.inputs.zero_point
        limits = [
            out.constant(f"{target}/low", -zero * scale, np.float32),
            out.constant(f"{target}/high", (255 - zero) * scale, np.float32),
        ]
        name = out.node("Clip", [name, *limits], [f"{target}/cut"])
    out.node("DynamicQuantizeLinear", [name], rounded)
    return rounded


def _write_dynamic(out: Rewriter, layer: Layer, rounded: Sequence[str], seen: Measured | None, bits: int) -> None:
    node, name = layer.node, layer.node.name
    levels, scales = layer.rounded(bits)
    convolution = node.op_type == "Conv"
    bias = layer.bias if seen is None else _corrected_bias(layer, seen)
    if layer.axis == 0 and not convolution:
        levels = levels.T  # MatMulInteger has no transposed form
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


def _corrected_bias(layer: Layer, seen: Measured) -> Floats | Weights | None:
    """Return the bias less the mean error of each channel; a product without a bias has no place for it."""
    if layer.bias is None and layer.node.op_type != "Conv":
        return None
    return np.asarray((0.0 if layer.bias is None else layer.bias) - np.asarray(seen.error))


def _rewrite(
    path: Path, target: Path, modules: Container[str], write: Callable[[Rewriter, Layer], None]
) -> dict[str, Any]:
    """Write a file in which a function has written the layers of the modules; return which they are."""
    model = onnx.load(path)
    layers = {n: layer for n, layer in find_layers(model.graph).items() if PREFIX + layer.module in modules}
    out = Rewriter(model)
    for node in model.graph.node:
        if node.name in layers:
            write(out, layers[node.name])
        else:
            out.nodes.append(node)
    out.save(target)
    return {"quantized": list(dict.fromkeys(layer.module for layer in layers.values())), "float": FLOAT_LAYERS}


def _weight_bits() -> int:
    """Return 8, or 7 on a CPU whose 8-bit products overflow 16-bit sums (no VNNI)."""
    return 8 if read_cpu().isa & {"vnni", "amx"} else 7
