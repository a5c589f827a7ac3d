"""Batch norms folded into the convolutions before them: the same outputs from fewer operators."""

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from boxwright.runtimes.parity import distance

_PAIRS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.Linear: nn.BatchNorm1d,
}
_SAME = 1e-3
"""Folding changes rounding; a larger difference means that a pair was not one."""


def fold_batch_norms(module: nn.Module, example: Sequence[Tensor]) -> list[str]:
    """Fold batch norms in place where possible, and return the names of those folded.

    A run of the example shows which layer's output goes only into a batch norm. The folded model is run too: if its
    outputs differ, nothing is folded.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
        >>> fold_batch_norms(net, [torch.zeros(1, 3, 8, 8)])
        ['1']
    """
    with torch.inference_mode():
        pairs = find_pairs(module, example, _is_pair)
        if not pairs:
            return []
        before = [t.numpy() for t in _outputs(module, example)]
        folded = deepcopy(module)
        _fold(folded, pairs)
        after = [t.numpy() for t in _outputs(folded, example)]
    if not distance(after, before) < _SAME:
        return []
    _fold(module, pairs)
    return [second for _, second in pairs]


def fold_copy(source: Any) -> nn.Module:
    """Return a flat copy of a `runtimes.source.Source`'s model with its batch norms folded."""
    module: nn.Module = source.flat()
    fold_batch_norms(module, source.example)
    return module


def find_pairs(
    module: nn.Module, example: Sequence[Tensor], fits: Callable[[nn.Module, nn.Module], bool]
) -> list[tuple[str, str]]:
    """Return the names of modules (first, second) where the first's output goes only into the second.

    Args:
        module: in evaluation mode.
        example: tensors to run it with.
        fits: whether two modules are of the wanted kinds.
    """
    names = {part: name for name, part in module.named_modules()}
    calls: Counter[nn.Module] = Counter()
    made: dict[int, tuple[nn.Module, Tensor]] = {}  # holds the tensors, so that no other gets their id
    taken: list[tuple[nn.Module, nn.Module, Tensor]] = []
    in_place: set[nn.Module] = set()
    uses = _UseCount()

    def before(part: nn.Module, args: tuple[Any, ...]) -> None:
        calls[part] += 1
        if len(args) == 1 and isinstance(args[0], Tensor) and id(args[0]) in made:
            first, tensor = made[id(args[0])]
            if fits(first, part) and not uses.count[id(tensor)]:
                taken.append((first, part, tensor))

    def after(part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and all(output is not a for a in args):
            made[id(output)] = (part, output)
        elif not isinstance(part, nn.Identity):
            in_place.add(part)

    leaves = [part for part in names if not list(part.children())]
    hooks = [part.register_forward_pre_hook(before) for part in leaves]
    hooks += [part.register_forward_hook(after) for part in leaves]
    try:
        with torch.inference_mode(), uses:
            outputs = [t for t in tree_leaves(module(*example)) if isinstance(t, Tensor)]
    finally:
        for hook in hooks:
            hook.remove()
    given = {id(t) for t in outputs}
    return [
        (names[first], names[second])
        for first, second, tensor in taken
        if calls[first] == calls[second] == 1
        # Changed in place, the tensor is the second's output from then on.
        and (second in in_place or (uses.count[id(tensor)] == 1 and id(tensor) not in given))
    ]


class _UseCount(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's base has no types
    """Counts the operators that each tensor goes into."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[int] = Counter()
        self._kept: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        self._kept += tensors  # an id is unique only while its tensor lives
        self.count.update(id(t) for t in tensors)
        return func(*args, **(kwargs or {}))


def _is_pair(first: nn.Module, second: nn.Module) -> bool:
    return (
        type(first) in _PAIRS
        and type(second) is _PAIRS[type(first)]
        and isinstance(second, nn.modules.batchnorm._BatchNorm)
        and second.track_running_stats
        and not second.training
    )


def _fold(module: nn.Module, pairs: Sequence[tuple[str, str]]) -> None:
    for first, second in pairs:
        layer, norm = module.get_submodule(first), module.get_submodule(second)
        fuse: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
        set_module(module, first, fuse(layer, norm))
        set_module(module, second, nn.Identity())


def set_module(module: nn.Module, name: str, part: nn.Module) -> None:
    """Replace the module with this name."""
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, part)


def _outputs(module: nn.Module, example: Sequence[Tensor]) -> list[Tensor]:
    return [t.float() if t.is_floating_point() else t for t in tree_leaves(module(*example)) if isinstance(t, Tensor)]
