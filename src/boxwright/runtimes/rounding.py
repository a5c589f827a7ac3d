"""Biases that make up for weights rounded to a shorter format."""

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def correct_biases(
    module: nn.Module, example: Sequence[Tensor], dtype: torch.dtype, *, leave: Collection[str] = ()
) -> int:
    """Shift biases by the mean error that rounding the weights makes on an example; return how many were shifted.

    The weights themselves are left as they are. Activations are mostly positive, so the rounding errors of a filter's
    weights add up to a shift of its output, and the shifts of a hundred layers to lost accuracy.

    Args:
        module: the model.
        example: its inputs.
        dtype: what weights are rounded to.
        leave: names of layers whose weights are not.
    """
    sums: dict[nn.Module, Tensor] = {}
    counts: dict[nn.Module, int] = {}

    def compare(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        error = rounded[layer](*args) - output
        axis = error.ndim - 1 if isinstance(layer, nn.Linear) else 1
        others = [i for i in range(error.ndim) if i != axis]
        sums[layer] = sums.get(layer, torch.zeros(())) + (error.mean(others) if others else error)
        counts[layer] = counts.get(layer, 0) + 1

    layers = [part for name, part in module.named_modules() if type(part) in _LAYERS and name not in leave]
    rounded = {layer: _with_weight(layer, dtype) for layer in layers}
    hooks = [layer.register_forward_hook(compare) for layer in layers]
    try:
        with torch.no_grad():
            module(*example)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, total in sums.items():
        assert isinstance(layer, _LAYERS)
        shift = -total / counts[layer]
        bias = shift if layer.bias is None else layer.bias.detach() + shift
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return len(sums)


def _with_weight(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    assert isinstance(layer, _LAYERS)
    rounded = deepcopy(layer)
    weight = layer.weight.detach()
    rounded.weight = nn.Parameter(weight.to(dtype).to(weight.dtype), requires_grad=False)
    return rounded
