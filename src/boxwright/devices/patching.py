"""Runs code that was written for CUDA on a CPU: the one place where torch itself is changed, and only on request."""

import copyreg
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils._device import _device_constructors

from boxwright.core.errors import UsageError
from boxwright.core.memory import read_memory

_MISSING = object()
_changed: list[tuple[Any, str, Any]] = []
_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "boxwright")


class _Patched:
    """What `patch_torch` returns: as a context manager, it restores torch at the end of the block."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        unpatch_torch()


def patch_torch(cuda_to_cpu: bool = True) -> _Patched:
    """Let code that was written for CUDA run on the CPU, until `unpatch_torch`, or to the end of a `with` block.

    "cuda" then means the CPU, wherever torch takes a device: in `.to()`, `torch.device()`, `map_location`, autocast,
    GradScaler and the functions that make tensors; `.cuda()` changes nothing. `torch.cuda` answers like one device.
    It is so in the processes of TorchNano and Trainer, too.
    CUDA graphs and kernels of your own stay impossible.

    Raises:
        UsageError: `cuda_to_cpu` is False: there is nothing else to change.

    Example:
        >>> with patch_torch(cuda_to_cpu=True):
        ...     torch.ones(2).cuda().to("cuda:0").device, torch.device("cuda")
        (device(type='cpu'), device(type='cpu'))
    """
    if not cuda_to_cpu:
        raise UsageError("patch_torch(cuda_to_cpu=False) has nothing to change. Leave the call out.")
    if not _changed:
        copyreg.pickle(torch.device, _reduce_device)  # pickle finds another class under its name
        for owner, name, value in _list_changes():
            _changed.append((owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, value)
    return _Patched()


def unpatch_torch() -> None:
    """Restore everything that `patch_torch` has changed."""
    if not _changed:
        return
    while _changed:
        owner, name, value = _changed.pop()
        if value is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    del copyreg.dispatch_table[torch.device]


def is_patched() -> bool:
    """Return whether torch is changed now."""
    return bool(_changed)


def _list_changes() -> Iterator[tuple[Any, str, Any]]:
    """Yield owner, name and new value of everything that changes."""
    yield torch, "device", _stand_in(torch.device, _make_device)
    yield torch, "Generator", _stand_in(torch.Generator, lambda kind, *_device, **_named: kind())
    constructors = _device_constructors()
    functions = {name: value for name, value in vars(torch).items() if callable(value) and not isinstance(value, type)}
    for name, function in functions.items():
        if function in constructors or name.endswith("_like"):
            yield torch, name, _mapped(function)
    for name in ("to", "type", "new_tensor", "new_empty", "new_empty_strided", "new_full", "new_zeros", "new_ones"):
        yield Tensor, name, _mapped(getattr(Tensor, name))
    yield nn.Module, "to", _mapped(nn.Module.to)
    yield nn.Module, "to_empty", _mapped(nn.Module.to_empty)
    for kind in (Tensor, nn.Module, torch.UntypedStorage, torch.TypedStorage):
        yield kind, "cuda", lambda self, *_args, **_named: self
    yield Tensor, "pin_memory", lambda self, *_args, **_named: self
    yield Tensor, "record_stream", lambda _self, _stream: None
    for owner, name in (
        (torch, "set_default_device"), (torch, "set_default_tensor_type"), (torch.amp, "custom_fwd"),
        (torch.amp, "custom_bwd"), (torch.amp.autocast_mode.autocast, "__init__"),
    ):  # fmt: skip
        yield owner, name, _mapped(getattr(owner, name))
    yield torch.amp.grad_scaler.GradScaler, "__init__", _scaler_init(torch.amp.grad_scaler.GradScaler.__init__)
    yield torch, "load", _load(torch.load)
    if distributed.is_available():
        yield distributed, "init_process_group", _on_gloo(distributed.init_process_group)
        yield distributed, "new_group", _on_gloo(distributed.new_group)
        parallel = nn.parallel.DistributedDataParallel
        yield parallel, "__init__", _without_devices(parallel.__init__)
    for name, value in _cuda_names().items():
        yield torch.cuda, name, value


def _reduce_device(device: Any) -> tuple[Any, tuple[str]]:
    return torch.device, (str(device),)


def _make_device(kind: Any, *args: Any, **named: Any) -> Any:
    first = args[0] if args else named.get("type", "cuda")
    cuda = isinstance(first, int) or _to_cpu(first) != first
    return kind("cpu") if cuda else kind(*args, **named)


def _to_cpu(value: Any) -> Any:
    """Return nested arguments with the CPU in place of CUDA devices."""
    if isinstance(value, str):
        if value == "cuda" or (value.startswith("cuda:") and value[5:].isdigit()):
            return "cpu"
        return value.replace("torch.cuda.", "torch.") if value.startswith("torch.cuda.") else value
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if type(value) in (tuple, list):
        return type(value)(_to_cpu(part) for part in value) if any(isinstance(p, str) for p in value) else value
    return value


def _mapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if isinstance(named.get("device"), int) and not isinstance(named["device"], bool):
            named["device"] = "cpu"  # the number of a CUDA device
        return function(*map(_to_cpu, args), **{name: _to_cpu(value) for name, value in named.items()})

    return call


def _stand_in(kind: type, make: Callable[..., Any]) -> type:
    """Return a class in whose place objects of `kind` are made, and which they are instances of."""

    class Meta(type):
        def __call__(cls, *args: Any, **named: Any) -> Any:
            return make(kind, *args, **named)

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, kind)

        def __getattr__(cls, name: str) -> Any:
            return getattr(kind, name)

    return Meta(kind.__name__, (), {"__doc__": kind.__doc__, "__module__": kind.__module__})


def _scaler_init(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def call(self: Any, device: str = "cuda", *args: Any, **named: Any) -> None:
        init(self, _to_cpu(device), *args, **named)

    return call


def _load(load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def call(f: Any, map_location: Any = None, *args: Any, **named: Any) -> Any:
        if isinstance(map_location, Mapping):
            map_location = {str(_to_cpu(k)): _to_cpu(v) for k, v in map_location.items()} | {
                str(k): _to_cpu(v) for k, v in map_location.items()
            }
        return load(f, "cpu" if map_location is None else _to_cpu(map_location), *args, **named)

    return call


def _on_gloo(join: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(join)
    def call(*args: Any, **named: Any) -> Any:
        named.pop("device_id", None)  # a CUDA device
        swap = {"nccl": "gloo", "cuda:nccl": "gloo", "cpu:gloo,cuda:nccl": "gloo"}
        found = [swap.get(a, a) if isinstance(a, str) else a for a in args]
        return join(*found, **{k: swap.get(v, v) if isinstance(v, str) else v for k, v in named.items()})

    return call


def _without_devices(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def call(self: Any, module: nn.Module, _device_ids: Any = None, _output_device: Any = None, **named: Any) -> None:
        for name in ("device_ids", "output_device"):
            named.pop(name, None)
        init(self, module, **named)

    return call


class _Stream:
    """A stream of the CPU: all work in it is done already."""

    def __init__(self, *_args: Any, **_named: Any) -> None: ...

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event or _Event()
        event.record()
        return event

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...


class _Event:
    """A moment on the CPU's clock."""

    def __init__(self, *_args: Any, **_named: Any) -> None:
        self._time_s = time.perf_counter()

    def elapsed_time(self, end: "_Event") -> float:
        return 1e3 * (end._time_s - self._time_s)

    def query(self) -> bool:
        return True

    def record(self, stream: Any = None) -> None:
        del stream
        self._time_s = time.perf_counter()

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = None) -> None: ...


def _cuda_names() -> dict[str, Any]:
    """Return what `torch.cuda` holds for a machine whose one device is the CPU."""
    nothing = {
        "empty_cache", "init", "ipc_collect", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
        "reset_max_memory_cached", "reset_peak_memory_stats", "set_device", "set_per_process_memory_fraction",
        "set_stream", "set_sync_debug_mode", "synchronize", "seed", "seed_all",
    }  # fmt: skip
    zero = {
        "current_device", "get_sync_debug_mode", "max_memory_allocated", "max_memory_cached", "max_memory_reserved",
        "memory_allocated", "memory_cached", "memory_reserved", "memory_usage", "utilization",
    }  # fmt: skip
    # Each name gets a function of its own: torch.compile keeps a table of rules by function.
    values: dict[str, Any] = {name: _answer(lambda: None) for name in nothing}
    values |= {name: _answer(lambda: 0) for name in zero}
    values |= {name: _answer(nullcontext) for name in ("stream", "device", "device_of", "StreamContext")}
    values |= {name: _answer(_Stream) for name in ("current_stream", "default_stream")}
    types = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
    values |= {f"{name}Tensor": getattr(torch, f"{name}Tensor") for name in types}
    return values | {
        "Event": _Event,
        "Stream": _Stream,
        "is_available": _for_users(torch.cuda.is_available, True),
        "device_count": _for_users(torch.cuda.device_count, 1),
        "is_initialized": _for_users(torch.cuda.is_initialized, True),
        "is_bf16_supported": lambda *_args, **_named: True,
        "is_current_stream_capturing": lambda: False,
        "get_device_name": lambda *_args: "cpu",
        "get_device_capability": lambda *_args: (0, 0),
        "get_device_properties": lambda *_args: _describe(),
        "mem_get_info": lambda *_args: (read_memory().usable_bytes, _describe().total_memory),
        "memory_stats": lambda *_args, **_named: {},
        "memory_summary": lambda *_args, **_named: "",
        "manual_seed": _for_users(torch.cuda.manual_seed, torch.manual_seed),
        "manual_seed_all": _for_users(torch.cuda.manual_seed_all, torch.manual_seed),
        "get_rng_state": lambda *_args: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": lambda state, *_args: torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
    }


def _answer(make: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that takes any arguments."""
    return lambda *_args, **_named: make()


def _for_users(real: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    """Return a function that gives libraries, which would use CUDA themselves, the true answer."""

    @wraps(real)
    def call(*args: Any, **named: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        if caller in _LIBRARIES:
            return real(*args, **named)
        return answer(*args, **named) if callable(answer) else answer

    return call


def _describe() -> SimpleNamespace:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return SimpleNamespace(name="cpu", major=0, minor=0, total_memory=total, multi_processor_count=os.cpu_count() or 1)
