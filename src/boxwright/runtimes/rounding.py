"""What rounding does to the outputs of layers, and biases that correct it."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True, slots=True)
class Outputs:
    """A layer's outputs by channel: the mean error that rounding makes, the least and the greatest exact value."""

    error: Tensor
    low: Tensor
    high: Tensor


def correct_biases(
    module: nn.Module, example: Sequence[Tensor], dtype: torch.dtype, *, leave: Collection[str] = ()
) -> int:
    """Shift biases by the mean error that rounding the weights makes on an example; return how many were shifted.

    The weights stay as they are. Activations are mostly positive, so the rounding errors of a filter's weights add up
    to a shift of its output, and the shifts of a hundred layers to lost accuracy.

    Args:
        module: the model.
        example: its inputs.
        dtype: what weights are rounded to.
        leave: names of layers whose weights are not.
    """
    layers = {name: part for name, part in module.named_modules() if type(part) in _LAYERS and name not in leave}
    rounded = {name: deepcopy(layer) for name, layer in layers.items()}
    for layer in rounded.values():
        weight: Any = layer.weight
        layer.weight = nn.Parameter(weight.detach().to(dtype).to(weight.dtype), requires_grad=False)
    found = compare_outputs(module, layers, rounded, [example])
    for name, outputs in found.items():
        bias: Any = layers[name].bias
        bias = -outputs.error if bias is None else bias.detach() - outputs.error
        layers[name].bias = nn.Parameter(bias, requires_grad=False)
    return len(found)


def compare_outputs(
    module: nn.Module,
    layers: Mapping[str, nn.Module],
    rounded: Mapping[str, nn.Module],
    samples: Iterable[Sequence[Any]],
) -> dict[str, Outputs]:
    """Run a flat model on samples, and return how each layer's outputs differ from those of its rounded form.

    A layer that never runs is left out.
    """
    found: dict[str, Outputs] = {}
    counts: dict[str, int] = {}

    def compare(name: str, x: Tensor) -> None:
        axis = -1 if isinstance(layers[name], nn.Linear) else 1
        exact, other = (
            t.movedim(axis, -1).reshape(-1, t.shape[axis]) for t in (layers[name](x), rounded[name](x))
        )  # (N, C)
        error, low, high = (other - exact).mean(0), exact.amin(0), exact.amax(0)
        if name in found:
            seen = found[name]
            error, low, high = seen.error + error, seen.low.minimum(low), seen.high.maximum(high)
        found[name], counts[name] = Outputs(error, low, high), counts.get(name, 0) + 1

    with watching({name: layers[name] for name in rounded}, compare):
        run_samples(module, samples)
    return {name: Outputs(seen.error / counts[name], seen.low, seen.high) for name, seen in found.items()}


def run_samples(module: nn.Module, samples: Iterable[Sequence[Any]]) -> None:
    """Run a flat model on each sample."""
    with torch.no_grad():
        for sample in samples:
            module(*(torch.as_tensor(a) for a in sample))


@contextmanager
def watching(layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call a function with the name and the input of every call of the layers, inside a block."""
    busy = False

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def before(_part: nn.Module, args: tuple[Any, ...]) -> None:
            nonlocal busy
            if busy:  # the function may call the layer itself
                return
            busy = True
            try:
                see(name, args[0])
            finally:
                busy = False

        return before

    hooks = [part.register_forward_pre_hook(hook(name)) for name, part in layers.items()]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()
