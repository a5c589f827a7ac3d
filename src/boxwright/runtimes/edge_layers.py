"""The first and last layers of a model.

Rounding errors of the first layers pass through all others; nothing after the last layers makes up for theirs.
"""

from collections.abc import Sequence
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
