"""Sends a caller's objects into the processes of a run, and leaves in them what one process would have left."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, Sampler

from boxwright.accel.loaders import NanoLoader
from boxwright.accel.module import NanoModule, ScaledOptimizer
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.devices.patching import is_patched, patch_torch
from boxwright.launchers.payload import pack, register_reducer

_log = get_logger(__name__)
_CODE = (FunctionType, BuiltinFunctionType, MethodType, type, ModuleType)
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None), np.ndarray, np.generic, torch.dtype, torch.device)
_DATA = (DataLoader, NanoLoader, Dataset, Sampler)  # read, not trained; often large
_ALWAYS = {"_parameters", "_buffers", "_modules", "state", "param_groups"}

# Objects that cross a process boundary as references. Here: those of runs that this process waits for. Away: this
# worker's copies, by their identity.
_here: dict[str, Sequence[Any]] = {}
_away: dict[int, tuple[str, int]] = {}

Changes = list[tuple[int, Any]]


class Parcel:
    """The models and optimizers of a run's arguments, and the objects that hold them.

    It travels with the arguments, so that its objects are theirs in the worker, too. What changed in them comes back by
    their place in `objects`; wherever else one of them appears in the answer, it is the caller's own object again.

    Args:
        roots: where to look.
        holders: objects whose attributes come back although they hold no model, with the names of those that don't.
        references: objects that have a counterpart of their own in the worker; see `bind`.
    """

    def __init__(
        self,
        *roots: Any,
        holders: Sequence[tuple[Any, Collection[str]]] = (),
        references: Sequence[Any] = (),
    ) -> None:
        self._token = uuid4().hex
        self.objects: list[Any] = [*references]
        self._references = len(references)
        self._skipped: dict[int, Collection[str]] = {}
        search = _Search(references)
        for holder, skipped in holders:
            self._skipped[self._references + len(search.found)] = frozenset(skipped)
            search.add(holder)
            for name, value in vars(holder).items():
                if name not in skipped:
                    search.walk(value)
        for root in roots:
            search.walk(root)
        self.objects += search.found
        self._before: list[dict[str, Any]] = []
        self._patched = False

    def __getstate__(self) -> dict[str, Any]:
        others = [None] * self._references + self.objects[self._references :]
        return {**self.__dict__, "objects": others, "_patched": is_patched()}

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Resolve references in what is unpacked within the block."""
        _here[self._token] = self.objects
        try:
            yield
        finally:
            del _here[self._token]

    def bind(self, number: int, counterpart: Any) -> None:
        """Set this process's counterpart of a reference."""
        self.objects[number] = counterpart

    def open(self) -> None:
        """In the worker: note what is there before the run, and patch torch if it is patched for the caller."""
        if self._patched:
            patch_torch()
        self._before = [{} if isinstance(o, Tensor) else dict(vars(o)) for o in self.objects[self._references :]]

    def close(self) -> Changes:
        """In the worker: return what has changed, to be sent with this process's answer."""
        for one in self.objects:
            if isinstance(one, nn.Module):
                one.cpu()
            elif isinstance(one, Optimizer):
                one.state.update({p: tree_map(_to_cpu, state) for p, state in one.state.items()})
        _away.update({id(one): (self._token, i) for i, one in enumerate(self.objects)})
        changes: Changes = []
        for i, one in enumerate(self.objects[self._references :], start=self._references):
            if isinstance(one, Tensor):
                changes.append((i, (one.detach().cpu(), one.requires_grad)))
            else:
                before = self._before[i - self._references]
                changes.append((i, _find_changes(one, before, self._skipped.get(i, ()))))
        return changes

    def apply(self, changes: Changes) -> None:
        """In the caller's process: make the changes in the caller's own objects."""
        for i, change in changes:
            if isinstance(self.objects[i], Tensor):
                _set_tensor(self.objects[i], *change)
            else:
                for name, value in change.items():
                    _set_attribute(vars(self.objects[i]), name, value)


class _Search:
    """Finds models, optimizers and what holds them in nested values, in functions and in the attributes of objects."""

    def __init__(self, references: Sequence[Any]) -> None:
        self.found: list[Any] = []
        self._holds: dict[int, bool] = {id(one): True for one in references}
        self._kept: list[Any] = []  # a temporary object's id could be given to another one

    def add(self, value: Any) -> None:
        """Add an object."""
        self._holds[id(value)] = True
        self.found.append(value)

    def walk(self, value: Any) -> bool:
        """Add what is inside, and return whether there is anything."""
        if isinstance(value, (*_PLAIN, *_DATA, type, ModuleType, Tensor)):
            return False
        if id(value) in self._holds:
            return self._holds[id(value)]
        self._holds[id(value)] = False
        self._kept.append(value)
        if isinstance(value, nn.Module):
            self._add_model(value)
            return True
        if isinstance(value, Optimizer):
            self.add(value)
            self._add_tensors(p for group in value.param_groups for p in group["params"])
            return True
        held = [self.walk(part) for part in _parts_of(value)]
        self._holds[id(value)] = holds = any(held)
        if holds and hasattr(value, "__dict__") and not isinstance(value, (*_CODE, Mapping, list, tuple, set)):
            self.found.append(value)
        return holds

    def _add_model(self, model: nn.Module) -> None:
        for module in model.modules():
            if not self._holds.get(id(module)):
                self.add(module)
        self._add_tensors(model.parameters())
        for module in model.modules():
            for name, value in list(vars(module).items()):
                if name not in _ALWAYS and "hook" not in name:
                    self.walk(value)

    def _add_tensors(self, tensors: Any) -> None:
        for tensor in tensors:
            if id(tensor) not in self._holds:
                self.add(tensor)


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        # Of other modules, the workers have objects of their own.
        names = value.__code__.co_names if value.__module__ == "__main__" else ()
        return [*cells, *(value.__globals__[name] for name in names if name in value.__globals__)]
    slots = [n for kind in type(value).__mro__ for n in _slots_of(kind)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, n) for n in slots if hasattr(value, n))]


def _slots_of(kind: type) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [n for n in names if not n.startswith("__")]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _find_changes(one: Any, before: Mapping[str, Any], skipped: Collection[str]) -> dict[str, Any]:
    changes = {}
    for name, value in vars(one).items():
        if name in skipped or "hook" in name or isinstance(value, (*_CODE, *_DATA)):
            continue
        same = name in before and before[name] is value
        if same and not isinstance(value, list | dict | set | Tensor):  # those may have changed inside
            continue
        if name in _ALWAYS or isinstance(value, _PLAIN) or _can_send(value):
            changes[name] = value
        else:
            _log.info("%s.%s of the first process can't be sent back.", type(one).__name__, name)
    return changes


def _can_send(value: Any) -> bool:
    if isinstance(value, list | tuple) and any(isinstance(part, _DATA) for part in value):
        return False
    try:
        pack(value, "The attribute")
    except UsageError:
        return False
    return True


def _to_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _set_tensor(old: Tensor, new: Tensor, requires_grad: bool) -> None:
    if old.shape == new.shape and old.dtype == new.dtype:
        with torch.no_grad():
            old.copy_(new)
    else:
        old.data = new
        old.grad = None
    if old.is_leaf:
        old.requires_grad_(requires_grad)


def _set_attribute(attributes: dict[str, Any], name: str, value: Any) -> None:
    """Set an attribute; a container that is there already stays the same object."""
    current = attributes.get(name)
    if name == "_buffers" and isinstance(current, dict):
        value = {n: _keep_tensor(current.get(n), new) for n, new in value.items()}
    if type(current) is not type(value) and name not in _ALWAYS:
        attributes[name] = value
    elif isinstance(current, list):
        current[:] = value
    elif isinstance(current, dict | set):
        current.clear()
        current.update(value)
    else:
        attributes[name] = value


def _keep_tensor(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
        return new
    with torch.no_grad():
        return old.copy_(new)


def _recall(token: str, number: int) -> Any:
    return _here[token][number]


def _same(value: Any) -> Any:
    return value


def _new(kind: type) -> Any:
    return object.__new__(kind)


def _reduce(value: Any) -> Any:
    """Return how an object is pickled, if it is not pickled in its own way."""
    if id(value) in _away:
        return _recall, _away[id(value)]
    kind = type(value)
    if kind is NanoModule or kind is ScaledOptimizer:
        return _same, (value._inner,)
    # Torch's optimizers leave out all attributes but three when they are pickled.
    if issubclass(kind, Optimizer) and getattr(kind, "__getstate__", None) is Optimizer.__getstate__:
        state = {k: v for k, v in vars(value).items() if "hook" not in k and not isinstance(v, _CODE)}
        return _new, (kind,), state
    return None


register_reducer(_reduce)
