"""A user's models and optimizers on their way into a run, through it and back."""

from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from boxwright.accel.late_sync import LateSync
from boxwright.accel.plan import Plan
from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.devices.base import Device

# torch 2.13 has a new name for the option; 2.9 to 2.12 know the old one only.
SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)
_MODEL_DTYPE = {Precision.FP64: torch.float64, Precision.BF16_TRUE: torch.bfloat16}
_LOW = (torch.float16, torch.bfloat16)


def model_dtype(precision: Precision) -> torch.dtype:
    """Return the number format of the weights: float32 except for "64" and "bf16-true"."""
    return _MODEL_DTYPE.get(precision, torch.float32)


def cast_floats(values: Any, dtype: torch.dtype) -> Any:
    """Return nested values with every floating-point tensor in `dtype`."""
    return _map_tensors(values, lambda v: v.is_floating_point() and v.dtype is not dtype, lambda v: v.to(dtype))


def _channels_last(values: Any) -> Any:
    return _map_tensors(values, lambda v: v.ndim == 4, lambda v: v.contiguous(memory_format=torch.channels_last))


def _map_tensors(values: Any, which: Callable[[Tensor], bool], change: Callable[[Tensor], Tensor]) -> Any:
    """Return nested values with these tensors changed; the very same object if there are none."""
    if not any(isinstance(v, Tensor) and which(v) for v in tree_leaves(values)):
        return values
    return tree_map(lambda v: change(v) if isinstance(v, Tensor) and which(v) else v, values)


class NanoModule(nn.Module):
    """A model in its precision, behind DistributedDataParallel where there are several processes.

    Attributes are read from and written to the inner model, and the state dict has its keys. `_module` is what runs:
    the model itself, or the parallel wrapper around it. The inner model's own methods run in the same precision, and
    gradients that come from them are averaged over the processes, too.
    """

    def __init__(self, inner: nn.Module, running: nn.Module, plan: Plan, device: Device) -> None:
        super().__init__()
        self._module = running
        sync = LateSync(running) if isinstance(running, DistributedDataParallel) else None
        # Not as submodules: the inner model is inside `_module` already.
        self.__dict__.update(_inner=inner, _plan=plan, _device=device, _sync=sync)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's outputs, floats in float32 (float64 with precision "64")."""
        if self._sync is not None:
            self._sync.expect()
        return self._call(self._module, *args, **kwargs)

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        precision, dtype = self._plan.precision, model_dtype(self._plan.precision)
        if dtype is not torch.float32:
            args, kwargs = cast_floats(args, dtype), cast_floats(kwargs, dtype)
        if self._plan.channels_last:
            args, kwargs = _channels_last(args), _channels_last(kwargs)
        with self._device.autocast(precision):
            outputs = function(*args, **kwargs)
        return _map_tensors(outputs, lambda v: v.dtype in _LOW, Tensor.float)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__["_inner"]
        value = getattr(inner, name)
        if isinstance(value, MethodType) and value.__self__ is inner and not hasattr(nn.Module, name):
            return wraps(value)(partial(self._call, value))
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_inner")
        if inner is not None and name not in ("training", "_module") and hasattr(inner, name):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    # State dict keys and parameter names are the inner model's: the wrapping stays invisible.
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the inner model's state dict."""
        return self._inner.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load into the inner model."""
        return self._inner.load_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """Return the inner model's parameters by name."""
        return self._inner.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        """Return the inner model's buffers by name."""
        return self._inner.named_buffers(*args, **kwargs)

    def alone(self) -> "NanoModule":
        """Return the same model without the parallel wrapper: processes may call it a different number of times."""
        return NanoModule(self._inner, self._inner, self._plan, self._device)

    def no_sync(self) -> Any:
        """Return a context in which gradients are not shared yet, for accumulating them over several batches."""
        if isinstance(self._module, DistributedDataParallel):
            return self._module.no_sync()
        return torch.enable_grad()


class ScaledOptimizer:
    """An optimizer whose steps go through the loss scaler of fp16; everything else is the optimizer's own.

    Between backward and step the gradients have their true size, so that they can be clipped or logged as without a
    scaler. The scale is a power of two: taking it out and putting it back loses no bits.
    """

    def __init__(self, inner: Optimizer, scaler: torch.amp.GradScaler) -> None:
        self._inner = inner
        self._scaler = scaler

    def scale_gradients(self) -> None:
        """Put the scale back: a backward pass adds to them, or a step takes it out."""
        self._multiply(self._read_scale())

    def unscale_gradients(self) -> None:
        """Take the scale out."""
        self._multiply(self._read_scale().reciprocal())

    def _read_scale(self) -> Tensor:
        place = self._inner.param_groups[0]["params"][0].device
        return self._scaler.scale(torch.ones((), device=place))

    def _multiply(self, factor: Tensor) -> None:
        gradients = [p.grad for group in self._inner.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The inner optimizer's class: learning rate schedulers ask for an `Optimizer`."""
        return type(self._inner)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step with unscaled gradients; skip the step if they overflowed."""
        if closure is not None:
            raise UsageError("precision='16' can't step with a closure. Use precision='bf16' or '32'.")
        self.scale_gradients()
        taken: float | None = self._scaler.step(self._inner)
        self._scaler.update()
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)


def scale_rate(optimizer: Optimizer, factor: float) -> None:
    """Multiply the learning rate."""
    for group in optimizer.param_groups:
        if "initial_lr" in group:  # a scheduler's mark; it would set the rate back
            raise UsageError(
                "auto_lr=True multiplies the rate in setup(), but this optimizer already has a scheduler. Make the "
                "scheduler after setup(), with the optimizer that setup() returns."
            )
        group["lr"] *= factor


def follow(optimizer: Optimizer, device: torch.device, dtype: torch.dtype) -> None:
    """Move an optimizer's state to where its parameters are; those keep their identity when a module moves."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0:
                state[key] = value.to(device=device, dtype=dtype)


def as_list(value: Any) -> list[Any]:
    """Return a list or tuple as a list, None as an empty one, anything else as a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
