"""Packs functions and values into bytes for another process."""

import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from boxwright.core.errors import UsageError

_reducers: list[Callable[[Any], Any]] = []
_MAIN = ("__main__", "__mp_main__")  # the second is what multiprocessing calls it where it was imported


def pack(value: object, what: str, *, main_by_name: bool = False) -> bytes:
    """Return a value as bytes, functions and classes of scripts and notebooks included.

    What a fresh interpreter can import is sent by name, all else (`__main__`, files that were loaded by their path) as
    code.

    Args:
        value: what to send.
        what: its name in the error message.
        main_by_name: send functions and classes of `__main__` by name: the other side has imported that module.

    Raises:
        UsageError: the value can't be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, main_by_name=main_by_name)
    try:
        pickler.dump(value)
    # Locks and files raise TypeError, shared queues RuntimeError, and so on.
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{what} can't be sent to another process: {error}. Send plain values, arrays or paths, "
            "and open or build the rest inside the job."
        ) from error
    finally:
        pickler.forget()
    return file.getvalue()


def unpack(data: bytes) -> Any:
    """Return the value that `pack` turned into bytes."""
    return pickle.loads(data)


def register_reducer(reduce: Callable[[Any], Any]) -> None:
    """Ask this function for how an object is pickled, as `object.__reduce__` says it, or None for pickle's own way."""
    _reducers.append(reduce)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, *, main_by_name: bool) -> None:
        super().__init__(file)
        self._main_by_name = main_by_name
        self._importable: dict[str, bool] = {"__main__": True}  # cloudpickle handles it
        self._by_value: list[ModuleType] = []

    def reducer_override(self, obj: Any) -> Any:
        for reduce in _reducers:
            reduced = reduce(obj)
            if reduced is not None:
                return reduced
        if isinstance(obj, type | FunctionType):
            name = obj.__module__
            if name in _MAIN and self._main_by_name and _is_reachable(obj):
                return NotImplemented  # pickle's own way: by name
            if name in sys.modules and name not in self._importable:
                self._importable[name] = _can_import(sys.modules[name])
                if not self._importable[name] and name not in cloudpickle.list_registry_pickle_by_value():
                    cloudpickle.register_pickle_by_value(sys.modules[name])
                    self._by_value.append(sys.modules[name])
        return super().reducer_override(obj)

    def forget(self) -> None:
        """Undo the registrations with cloudpickle, which would last as long as the process."""
        for module in self._by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _is_reachable(obj: type | Callable[..., Any]) -> bool:
    """Return whether this object is found by its name; a lambda or a function inside another is not."""
    found: Any = sys.modules.get(obj.__module__)
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is obj


def _can_import(module: ModuleType) -> bool:
    """Return whether a fresh interpreter with our search path finds this module, and not another of its name."""
    file = getattr(module, "__file__", None) or ""
    if not file.endswith(".py"):
        return True  # built-in or compiled: there is no code to send
    if getattr(module.__spec__, "origin", None) == "frozen":  # such as abc: in every interpreter of this version
        return True
    # Not `importlib.util.find_spec`: it looks in `sys.modules`, where pytest and loaders of single files put modules
    # that no other process can find.
    parts = module.__name__.split(".")
    path: Sequence[str] | None = None
    for end in range(1, len(parts) + 1):
        whole = ".".join(parts[:end])
        specs = (finder.find_spec(whole, path) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
        if path is None and end < len(parts):
            return False
    return spec is not None and os.path.realpath(spec.origin or "") == os.path.realpath(file)
