"""Static int8 for any torch model: layers that round their inputs and weights, ranges measured on real inputs.

A quantised layer is a float layer between the operators "quantize" and "dequantize". TorchInductor makes int8 kernels
from this form, and `onednn` reads it; run as it is, it shows the error.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

# Registers the operators quantized_decomposed::*. torch.ao is to be removed from torch, but TorchInductor recognises
# int8 layers by these operators and imports them from here itself, as torchao does. They will move when it does.
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn
from torch.nn import functional

from boxwright.core.errors import ConversionError
from boxwright.core.files import write_whole
from boxwright.core.signature import Array
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import fold_batch_norms, set_module
from boxwright.runtimes.program import settle
from boxwright.runtimes.rounding import compare_outputs, find_first_layers, find_last_layers, run_samples, watching
from boxwright.runtimes.source import PREFIX, Source, check_names

_BINS = 2048
FLOAT_LAYERS = "depthwise convolutions, first and last layers, products, sums, activations"
"""What int8 models compute in float, for their recipes."""

_NO_LAYER = (
    "The model has no layer that int8 is for: a Conv2d that is not depthwise, or a Linear, run by the calibration "
    "inputs and not named in keep_float."
)


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and largest input value of a layer, zero among them."""

    low: float
    high: float

    @property
    def scale(self) -> float:
        """The distance between two of the 256 steps."""
        return max((self.high - self.low) / 255, 1e-9)

    @property
    def zero_point(self) -> int:
        """The step that represents zero."""
        return min(max(round(-self.low / self.scale), 0), 255)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What calibration finds out about a layer.

    Attributes:
        inputs: the range of its inputs with the least square error.
        error: the mean error of each output channel with rounded inputs and weights.
        lows: the least value of each output channel.
        highs: the greatest value of each output channel.
    """

    inputs: Range
    error: list[float]
    lows: list[float]
    highs: list[float]


class QuantizedLayer(nn.Module):
    """A convolution or linear layer with int8 weights (one scale per output channel) and uint8 inputs (one scale)."""

    def __init__(self, layer: nn.Module, limits: Range, bits: int = 8) -> None:
        super().__init__()
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        weight, top = layer.weight.detach(), 2 ** (bits - 1) - 1
        scales = (weight.abs().flatten(1).amax(1) / top).clamp_min(1e-9)
        rounded = (weight / scales.view(-1, *[1] * (weight.ndim - 1))).round().clamp(-top, top)
        self.weight = nn.Buffer(rounded.to(torch.int8))
        self.scales = nn.Buffer(scales)
        self.zeros = nn.Buffer(torch.zeros(len(scales), dtype=torch.int64))
        self.bias = nn.Buffer(torch.zeros(len(scales)) if layer.bias is None else layer.bias.detach().clone())
        self.scale, self.zero_point = limits.scale, limits.zero_point
        self.conv: tuple[Any, ...] | None = None
        if isinstance(layer, nn.Conv2d):
            self.conv = (layer.stride, layer.padding, layer.dilation, layer.groups)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for rounded inputs and weights."""
        ops = torch.ops.quantized_decomposed
        x = ops.quantize_per_tensor(x, self.scale, self.zero_point, 0, 255, torch.uint8)
        x = ops.dequantize_per_tensor(x, self.scale, self.zero_point, 0, 255, torch.uint8)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        if self.conv is None:
            return functional.linear(x, weight, self.bias)
        return functional.conv2d(x, weight, self.bias, *self.conv)


def quantize(source: Source, choice: Choice, calibration: Calibration) -> tuple[nn.Module, dict[str, Any]]:
    """Return a copy of the source's model with quantised layers, and the recipe.

    Everything that is neither a convolution nor linear keeps its precision: products, sums and activations are computed
    in float. For the layers see `measure_layers`.

    Raises:
        UsageError: the calibration names modules that are not there.
        ConversionError: the model has no layer to quantise.
    """
    module: nn.Module = source.flat()
    folded = fold_batch_norms(module, source.example)
    measured = measure_layers(module, source, calibration)
    for name, found in measured.items():
        layer = QuantizedLayer(module.get_submodule(name), found.inputs)
        layer.bias.sub_(torch.tensor(found.error))
        set_module(module, name, layer)
    recipe = {
        "folded": len(folded),
        "quantized": [name.removeprefix(PREFIX) for name in measured],
        "keep_float": list(calibration.keep_float),
        "float": FLOAT_LAYERS,
        "activations": "uint8, one scale per tensor, range with the least square error",
        "weights": "int8, one scale per output channel, bias corrected by the mean error",
        "samples": len(calibration.samples),
    }
    return settle(module, choice), recipe


def measure_layers(module: nn.Module, source: Source, calibration: Calibration, bits: int = 8) -> dict[str, Measured]:
    """Return the layers to quantise and what is measured of each.

    Args:
        module: the source's model, flat and folded.
        source: where it comes from.
        calibration: inputs, and what to keep in float.
        bits: of the rounded weights.

    Raises:
        UsageError: the calibration names modules that are not there.
        ConversionError: there is no layer to quantise.
    """
    found = _measure(module, choose_layers(module, source.example, calibration.keep_float), calibration, bits)
    if not found:
        raise ConversionError(_NO_LAYER)
    return found


def choose_layers(module: nn.Module, example: Sequence[Tensor], keep_float: Sequence[str] = ()) -> dict[str, nn.Module]:
    """Return the layers of a flat, folded model to quantise, by name.

    Depthwise convolutions are left out: one scale for channels of very different ranges costs most of the accuracy, and
    they are a small part of the work. So are the first and the last layers, if there are others.

    Raises:
        UsageError: `keep_float` names a module that is not there.
        ConversionError: there is no layer to quantise.
    """
    layers = find_layers(module, keep_float)
    for ends in (find_last_layers(module, example), find_first_layers(module, example)):
        if set(layers) - set(ends):
            layers = {name: layer for name, layer in layers.items() if name not in ends}
    if not layers:
        raise ConversionError(_NO_LAYER)
    return layers


def find_layers(module: nn.Module, keep_float: Sequence[str] = (), *, depthwise: bool = False) -> dict[str, nn.Module]:
    """Return the layers of a flat model that can be quantised, by name; depthwise convolutions only on request.

    Raises:
        UsageError: `keep_float` names a module that is not there.
    """
    known = [name.removeprefix(PREFIX) for name, _ in module.named_modules() if name.startswith(PREFIX)]
    check_names(keep_float, known)
    kept = tuple(f"{PREFIX}{name}" for name in keep_float)
    return {
        name: part
        for name, part in module.named_modules()
        if can_quantize(part, depthwise=depthwise) and not any(name == k or name.startswith(f"{k}.") for k in kept)
    }


def can_quantize(part: nn.Module, *, depthwise: bool = False) -> bool:
    """Return whether a layer's kind can be quantised."""
    if type(part) is nn.Linear:
        return True
    return (
        type(part) is nn.Conv2d
        and (depthwise or not 1 < part.groups == part.in_channels)
        and part.padding_mode == "zeros"
        and not isinstance(part.padding, str)
    )


def measure_ranges(
    module: nn.Module, layers: Mapping[str, nn.Module], samples: Sequence[Sequence[Array]]
) -> dict[str, Range]:
    """Return the range of each layer's input over all samples; layers that never ran are left out."""
    found: dict[str, Range] = {}

    def watch(name: str, x: Tensor) -> None:
        low, high = (float(v) for v in torch.aminmax(x.detach()))
        before = found.get(name, Range(0.0, 0.0))
        found[name] = Range(min(before.low, low), max(before.high, high))

    with watching(layers, watch):
        run_samples(module, samples)
    return found


def clip_ranges(
    module: nn.Module, layers: Mapping[str, nn.Module], ranges: Mapping[str, Range], samples: Sequence[Sequence[Array]]
) -> dict[str, Range]:
    """Return narrower ranges where finer steps gain more than clipping rare large values costs."""
    counts: dict[str, Tensor] = {}

    def watch(name: str, x: Tensor) -> None:
        found = torch.histc(x.float(), _BINS, ranges[name].low, max(ranges[name].high, ranges[name].low + 1e-9))
        counts[name] = counts.get(name, torch.zeros(())) + found

    with watching({name: layers[name] for name in ranges}, watch):
        run_samples(module, samples)
    return {name: _clip(limits, counts[name]) for name, limits in ranges.items()}


def _clip(limits: Range, counts: Tensor) -> Range:
    centres = limits.low + (torch.arange(_BINS) + 0.5) / _BINS * (limits.high - limits.low)

    def error(tried: Range) -> float:
        steps = (centres / tried.scale + tried.zero_point).round().clamp(0, 255)
        return float((counts * ((steps - tried.zero_point) * tried.scale - centres) ** 2).sum())

    shares = [1 - i / 50 for i in range(36)]
    best = min((Range(limits.low, limits.high * share) for share in shares), key=error)
    return min((Range(best.low * share, best.high) for share in shares), key=error)


def _measure(
    module: nn.Module, layers: Mapping[str, nn.Module], calibration: Calibration, bits: int
) -> dict[str, Measured]:
    """Return what is measured of each layer that runs, from the cache if it holds it."""
    everything = find_layers(module)  # what is kept in float does not change the others
    file = _cache_file(module, calibration, bits)
    if file is not None and file.is_file():
        stored = json.loads(file.read_text(encoding="utf-8"))
        known = {name: stored[name] for name in layers if name in stored}
        return {name: Measured(**v | {"inputs": Range(**v["inputs"])}) for name, v in known.items()}
    widest = measure_ranges(module, everything, calibration.samples)
    ranges = clip_ranges(module, everything, widest, calibration.samples)
    rounded = {name: QuantizedLayer(everything[name], limits, bits) for name, limits in ranges.items()}
    found = {
        name: Measured(inputs=ranges[name], error=seen.error.tolist(), lows=seen.low.tolist(), highs=seen.high.tolist())
        for name, seen in compare_outputs(module, everything, rounded, calibration.samples).items()
    }
    if file is not None:
        write_whole(file, json.dumps({name: asdict(measured) for name, measured in found.items()}))
    return {name: found[name] for name in layers if name in found}


def _cache_file(module: nn.Module, calibration: Calibration, bits: int) -> Path | None:
    if calibration.cache is None:
        return None
    digest = hashlib.sha256(calibration.fingerprint().encode())
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.float().contiguous().numpy().tobytes())
    return calibration.cache / f"layers-{bits}-{digest.hexdigest()[:16]}.json"
