"""A user's batches: what goes into the model, what its outputs are compared with, and how many samples there are."""

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from boxwright.core.errors import UsageError
from boxwright.core.signature import Array, refuse_bfloat16
from boxwright.core.structure import flatten

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword inputs of one call."""
TARGETS = ("labels", "label", "target", "targets", "y")
"""The names that a target goes by in a batch that is a dictionary."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class BatchForm:
    """Splits batches into inputs and target by the parameters of the model's `forward`.

    A mapping is split by name: what `forward` takes goes in, the rest is the target; where `forward` takes none of its
    names, the mapping itself is the input. Of a tuple or list, the first elements go in, as many as `forward` takes.
    The last one is the target unless `forward` requires it. Inputs may be nested, as in ((a, b), target), or a mapping,
    as in ({"a": a, "b": b}, target). Anything else is the one input, without a target.

    Args:
        model: the model.
        targets: names that are the target, even if `forward` takes them, as Hugging Face's models take `labels`.

    Raises:
        UsageError: the model has no `forward`.

    Example:
        >>> class Model:
        ...     def forward(self, x, mask=None): ...
        >>> form = BatchForm(Model())
        >>> form.split(["x", "y"]), form.split(["x", "mask", "y"]), form.split("x")
        (((('x',), {}), 'y'), ((('x', 'mask'), {}), 'y'), ((('x',), {}), None))
    """

    def __init__(self, model: Any, *, targets: Iterable[str] = ()) -> None:
        if not callable(getattr(model, "forward", None)):
            raise UsageError(
                f"model={model!r} has no forward(…). Give a torch.nn.Module; a function can be the forward of one."
            )
        parameters = parameters_of(model.forward) or parameters_of(lambda *_args, **_kwargs: None) or []
        required = required_inputs(parameters)
        self.targets = tuple(name for name in targets if name not in required)
        self._least = len(required)
        self._most = sum(p.kind in _POSITIONAL for p in parameters)
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            self._most = sys.maxsize
        self._names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def split(self, batch: Any) -> tuple[Call, Any]:
        """Return the call, and the target or None."""
        if isinstance(batch, Mapping):
            return self._split_mapping(batch)
        if not isinstance(batch, list | tuple):
            return ((batch,), {}), None
        if batch and isinstance(batch[0], Mapping) and self._takes(batch[0]):
            call, rest = self._split_mapping(batch[0])
            return call, _unwrap(tuple(batch[1:])) if len(batch) > 1 else rest
        parts = list(_unpack(batch))
        if len(parts) == 2 and self._least > 1 and _is_list(parts[0]) and not _holds_mappings(parts[1]):
            return (tuple(parts[0]), {}), parts[1]  # ((a, b), target)
        if len(parts) < self._least:
            raise UsageError(
                f"A batch holds {len(parts)} parts, but the model's forward needs {self._least} inputs. "
                "Give batches of (input, …, target)."
            )
        count = len(parts) if len(parts) <= max(self._least, 1) else min(len(parts) - 1, self._most)
        return (tuple(parts[:count]), {}), _unwrap(tuple(parts[count:]))

    def _split_mapping(self, batch: Mapping[str, Any]) -> tuple[Call, Any]:
        if not self._takes(batch):
            return ((batch,), {}), None
        inputs = {k: v for k, v in batch.items() if (self._any_name or k in self._names) and k not in self.targets}
        return ((), inputs), _unwrap({k: v for k, v in batch.items() if k not in inputs})

    def _takes(self, batch: Mapping[str, Any]) -> bool:
        """Return whether `forward` takes a mapping's values by their names."""
        return not self._names.isdisjoint(batch) or (self._any_name and not self._least)


def parameters_of(function: Any) -> list[inspect.Parameter] | None:
    """Return a function's parameters; None for a compiled one without a signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def required_inputs(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """Return the names of the positional parameters that have no default."""
    return [p.name for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]


def count_samples(batch: Any) -> int:
    """Return how many samples a batch has: the first length of its first tensor.

    Of a tuple that begins with a list, as detectors take their images, it is the length of that list.

    Example:
        >>> count_samples((np.zeros((4, 3)), np.zeros(4)))
        4
        >>> count_samples(([np.zeros((3, 8, 8)), np.zeros((3, 8, 9))], [{"boxes": np.zeros((0, 4))}] * 2))
        2
    """
    batch = _unpack(batch)
    if isinstance(batch, list | tuple) and batch and _is_list(batch[0]) and not _begins_with_inputs(batch):
        return len(batch[0])
    for leaf in _leaves(batch):
        if getattr(leaf, "shape", ()):
            return int(leaf.shape[0])
    return len(batch) if hasattr(batch, "__len__") else 1


def is_loader(data: Any) -> bool:
    """Return whether data gives batches when iterated, and is not one batch itself."""
    single = isinstance(data, list | tuple | Mapping) or (hasattr(data, "shape") and hasattr(data, "dtype"))
    return isinstance(data, Iterable) and not single


def iterate(data: Any) -> Iterator[Any]:
    """Yield the batches of a loader, or the one batch that data is."""
    return iter(data) if is_loader(data) else iter([data])


def flat_inputs(call: Call) -> tuple[Array, ...]:
    """Return the flat arrays of a call."""
    leaves, _ = flatten(call)
    for leaf in leaves:
        refuse_bfloat16(leaf)
    return tuple(np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf) for leaf in leaves)


def _unpack(batch: Any) -> Any:
    """Return the ((a, b), target) of a batch (((a, b), target),), any other batch as it is."""
    if _is_list(batch) and len(batch) == 1 and _is_list(batch[0]) and len(batch[0]) == 2 and _is_list(batch[0][0]):
        return batch[0]
    return batch


def _begins_with_inputs(batch: Sequence[Any]) -> bool:
    """Return whether a batch begins with a list of inputs, each for all samples, and not with a list of samples.

    Inputs have as many entries as the tensors beside their list. Without such tensors, only what torch's own collation
    may have made counts as inputs: lists of tensors within a list.
    """
    beside = [part for part in batch if hasattr(part, "shape")]
    if not beside and not (type(batch) is list and all(type(part) is list for part in batch)):
        return False
    if any(_holds_mappings(part) for part in batch):
        return False
    lengths = {tuple(getattr(leaf, "shape", ()))[:1] for leaf in _leaves([batch[0], beside or list(batch)])}
    return len(lengths) == 1 and () not in lengths


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and not hasattr(value, "_fields")


def _holds_mappings(value: Any) -> bool:
    return _is_list(value) and any(isinstance(one, Mapping) for one in value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


def _unwrap(rest: Any) -> Any:
    """Return one value alone, several as they are, none as None."""
    if len(rest) == 1:
        return next(iter(rest.values() if isinstance(rest, Mapping) else rest))
    return rest or None
