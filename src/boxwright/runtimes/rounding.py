"""What rounding does to the outputs of layers, biases that correct it, and the layers where it costs most.

Those are the first and last layers of a model. Rounding errors of the first layers pass through all others; nothing
after the last layers makes up for theirs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
# fmt: off
_MOVES = frozenset((
    "alias", "cat", "chunk", "clone", "contiguous", "detach", "expand", "flatten", "permute", "reshape", "select",
    "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "transpose", "unbind", "unsqueeze", "view",
    "_reshape_alias", "_to_copy", "_unsafe_view",
))
# fmt: on
"""Operators that move values and leave them as they are."""

_SCALES = frozenset(("add", "sub", "mul", "div"))


@dataclass(frozen=True, slots=True)
class LayerOutputs:
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
) -> dict[str, LayerOutputs]:
    """Run a flat model on samples, and return how each layer's outputs differ from those of its rounded form.

    A layer that never runs is left out.
    """
    found: dict[str, LayerOutputs] = {}
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
        found[name], counts[name] = LayerOutputs(error, low, high), counts.get(name, 0) + 1

    with watching({name: layers[name] for name in rounded}, compare):
        run_samples(module, samples)
    return {name: LayerOutputs(seen.error / counts[name], seen.low, seen.high) for name, seen in found.items()}


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


class FloatLayer(nn.Module):
    """A layer that computes in float32, for inputs of any format.

    Args:
        layer: the layer.
        rounded: return the output in the input's format instead of float32.
    """

    def __init__(self, layer: nn.Module, *, rounded: bool = False) -> None:
        super().__init__()
        self.layer, self.rounded = layer, rounded

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        out: Tensor = self.layer(x.float())
        return out.to(x.dtype) if self.rounded else out


def find_last_layers(module: nn.Module, example: Sequence[Tensor]) -> list[str]:
    """Return the names of the layers whose outputs are the model's outputs, apart from moves.

    Rounded scores tie and boxes jump; these layers are small, and worth more precision.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Flatten())
        >>> find_last_layers(net, [torch.zeros(1, 4)])
        ['2']
    """
    names = _layers(module)
    moves = _Moves()

    def after(layer: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        moves.start(names[layer], output)

    outputs = tree_leaves(_run(module, example, moves, [layer.register_forward_hook(after) for layer in names]))
    found = {name for t in outputs if isinstance(t, Tensor) for name in moves.origins(t)}
    return [name for name in names.values() if name in found]


def find_first_layers(module: nn.Module, example: Sequence[Tensor]) -> list[str]:
    """Return the names of the layers that read the model's inputs, apart from moves and scaling by constants.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> find_first_layers(net, [torch.zeros(1, 2, 2)])
        ['1']
    """
    names = _layers(module)
    moves = _Moves(scaled=True)
    example = [t.detach() for t in example]  # new tensors, so that each has its own id
    for tensor in example:
        moves.start("input", tensor)
    found: set[str] = set()

    def before(layer: nn.Module, args: tuple[Any, ...]) -> None:
        if moves.origins(args[0]):
            found.add(names[layer])

    _run(module, example, moves, [layer.register_forward_pre_hook(before) for layer in names])
    return [name for name in names.values() if name in found]


def _layers(module: nn.Module) -> dict[nn.Module, str]:
    return {part: name for name, part in module.named_modules() if type(part) in _LAYERS}


def _run(module: nn.Module, example: Sequence[Tensor], moves: "_Moves", hooks: Sequence[RemovableHandle]) -> Any:
    try:
        with torch.inference_mode(), moves:
            return module(*example)
    finally:
        for hook in hooks:
            hook.remove()


class _Moves(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's base has no types
    """Follows tensors through operators that move values."""

    def __init__(self, *, scaled: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._scaled = scaled  # whether arithmetic with constants counts as a move
        self._known: dict[int, tuple[Tensor, frozenset[str]]] = {}  # kept, so that no other tensor gets the id

    def start(self, name: str, tensor: Tensor) -> None:
        self._known[id(tensor)] = (tensor, frozenset((name,)))

    def origins(self, tensor: Tensor) -> frozenset[str]:
        return self._known[id(tensor)][1] if id(tensor) in self._known else frozenset()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        moved = name in _MOVES or (
            # What was computed here is known; parameters and buffers are not.
            self._scaled and name in _SCALES and all(self.origins(t) for t in given if id(t) in self._known)
        )
        origins = frozenset(name for t in given for name in self.origins(t)) if moved else frozenset[str]()
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                # A tensor changed in place is no longer the layer's output either.
                self._known[id(tensor)] = (tensor, origins)
        return result
