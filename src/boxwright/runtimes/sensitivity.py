"""Which layers lose most by int8 or bf16: the order in which a search puts them back to float."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.signature import Array
from boxwright.core.types import Precision
from boxwright.runtimes.fold import fold_copy
from boxwright.runtimes.parity import distance
from boxwright.runtimes.quantized import QuantizedLayer, find_layers, measure_ranges
from boxwright.runtimes.source import PREFIX, Source


def rank_layers(
    source: Source, samples: Sequence[Sequence[Array]], precision: Precision = Precision.INT8
) -> list[tuple[str, float]]:
    """Return the module name of each layer and the error at the outputs if it alone is in int8 or bf16, worst first.

    The layers are the convolutions (2-d) and the linear ones.

    The error is the largest `parity.distance` over the samples. In int8, weights have one scale per output channel and
    inputs one scale per tensor, with the range of the samples; no runtime is involved.

    Args:
        source: the model.
        samples: flat inputs of one request each; two to four are enough to order the layers.
        precision: int8 or bf16.
    """
    module = fold_copy(source)
    layers = find_layers(module, depthwise=True)  # other runtimes quantise those too
    rounded: dict[str, nn.Module]
    if precision is Precision.BF16:
        rounded = {name: _RoundedLayer(layer) for name, layer in layers.items()}
    else:
        ranges = measure_ranges(module, layers, samples)
        rounded = {name: QuantizedLayer(layers[name], limits) for name, limits in ranges.items()}
    inputs = [tuple(torch.as_tensor(a) for a in sample) for sample in samples]
    expected = [_run(module, tensors) for tensors in inputs]
    errors = {
        name.removeprefix(PREFIX): max(
            distance(_run_with(module, layers[name], other, tensors), want)
            for tensors, want in zip(inputs, expected, strict=True)
        )
        for name, other in rounded.items()
    }
    return sorted(errors.items(), key=lambda item: -item[1])


class _RoundedLayer(nn.Module):
    """A layer in bf16 within a model in float32."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = deepcopy(layer).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._layer(x.to(torch.bfloat16)).float()
        return out


def _run_with(module: nn.Module, layer: nn.Module, other: nn.Module, inputs: tuple[Tensor, ...]) -> list[Array]:
    def replace(_layer: nn.Module, args: tuple[Any, ...], _output: Tensor) -> Tensor:
        return other(args[0])  # type: ignore[no-any-return]

    handle = layer.register_forward_hook(replace)
    try:
        return _run(module, inputs)
    finally:
        handle.remove()


def _run(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Array]:
    with torch.inference_mode():
        return [(t.float() if t.is_floating_point() else t).numpy() for t in module(*inputs)]
