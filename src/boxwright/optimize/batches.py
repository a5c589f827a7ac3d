"""A user's batches taken apart: what goes into the model, and what it is compared with."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from boxwright.core.errors import UsageError
from boxwright.core.signature import Array, refuse_bfloat16
from boxwright.core.structure import flatten

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword inputs of one call."""


class BatchForm:
    """How a batch is split, told by the parameters of the model's `forward`.

    A mapping is split by name: what `forward` takes goes in, the rest is the target. Of a tuple or list, the first
    elements go in, as many as `forward` takes, and at least the last one is the target, unless `forward` needs it.
    Anything else is the one input, without a target.

    Raises:
        UsageError: the model has no `forward`.

    Example:
        >>> class Model:
        ...     def forward(self, x, mask=None): ...
        >>> form = BatchForm(Model())
        >>> form.split(["x", "y"]), form.split(["x", "mask", "y"]), form.split("x")
        (((('x',), {}), 'y'), ((('x', 'mask'), {}), 'y'), ((('x',), {}), None))
    """

    def __init__(self, model: Any) -> None:
        if not callable(getattr(model, "forward", None)):
            raise UsageError(
                f"model={model!r} has no forward(…). Give a torch.nn.Module; a function can be the forward of one."
            )
        parameters = list(inspect.signature(model.forward).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._most = 10**6 if self._any_number else len(positional)
        self._least = sum(p.default is p.empty for p in positional)
        self._names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def split(self, batch: Any) -> tuple[Call, Any]:
        """Return the call, and the target or None.

        Raises:
            UsageError: the batch holds fewer inputs than the model needs.
        """
        if isinstance(batch, Mapping):
            inputs = {k: v for k, v in batch.items() if self._any_name or k in self._names}
            rest = {k: v for k, v in batch.items() if k not in inputs}
            return ((), inputs), next(iter(rest.values())) if len(rest) == 1 else rest or None
        if not isinstance(batch, list | tuple):
            return ((batch,), {}), None
        parts = list(batch)
        if len(parts) == 2 and self._least > 1 and isinstance(parts[0], list | tuple):
            return (tuple(parts[0]), {}), parts[1]  # ((a, b), target)
        if len(parts) < self._least:
            raise UsageError(
                f"A batch holds {len(parts)} parts, but the model's forward needs {self._least} inputs. "
                "Give batches of (input, …, target)."
            )
        count = min(len(parts) - 1, self._most) if len(parts) - 1 >= max(self._least, 1) else len(parts)
        rest_parts = parts[count:]
        target = None if not rest_parts else rest_parts[0] if len(rest_parts) == 1 else tuple(rest_parts)
        return (tuple(parts[:count]), {}), target


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


def take_inputs(data: Any, form: BatchForm, count: int) -> list[tuple[Array, ...]]:
    """Return the flat inputs of the first batches."""
    return [flat_inputs(form.split(batch)[0]) for batch in islice(iterate(data), count)]
