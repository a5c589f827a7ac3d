"""Which layers suffer most from int8: the order in which a search puts them back to float."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.signature import Array
from boxwright.runtimes.fold import fold_batch_norms
from boxwright.runtimes.parity import distance
from boxwright.runtimes.quantized import QuantizedLayer, Range, find_layers, measure_ranges
from boxwright.runtimes.source import Source


def rank_layers(source: Source, samples: Sequence[Sequence[Array]]) -> list[tuple[str, float]]:
    """Return the module name of each layer and the error at the outputs if it alone is in int8, worst first.

    The layers are the convolutions (2-d) and the linear ones.

    The error is `parity.distance`, its largest value over the samples. Weights have one scale an output channel,
    inputs one scale a tensor with the range that the samples show; no runtime is asked.

    Args:
        source: the model.
        samples: flat inputs of one request each; two to four are enough to order the layers.
    """
    module: nn.Module = source.flat()
    fold_batch_norms(module, source.example)
    layers = find_layers(module, depthwise=True)  # other runtimes quantise those too
    ranges = measure_ranges(module, layers, samples)
    inputs = [tuple(torch.as_tensor(a) for a in sample) for sample in samples]
    expected = [_run(module, tensors) for tensors in inputs]
    errors = {
        name.removeprefix("model."): max(
            distance(_run_quantized(module, layers[name], limits, tensors), want)
            for tensors, want in zip(inputs, expected, strict=True)
        )
        for name, limits in ranges.items()
    }
    return sorted(errors.items(), key=lambda item: -item[1])


def _run_quantized(module: nn.Module, layer: nn.Module, limits: Range, inputs: tuple[Tensor, ...]) -> list[Array]:
    handle = layer.register_forward_hook(_replace(QuantizedLayer(layer, limits)))
    try:
        return _run(module, inputs)
    finally:
        handle.remove()


def _replace(rounded: QuantizedLayer) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    def after(_layer: nn.Module, args: tuple[Any, ...], _output: Tensor) -> Tensor:
        return rounded(args[0])  # type: ignore[no-any-return]

    return after


def _run(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Array]:
    with torch.inference_mode():
        return [(t.float() if t.is_floating_point() else t).numpy() for t in module(*inputs)]
