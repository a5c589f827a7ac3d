"""Habana Gaudi (HPU): eager with compiled graphs, or lazy.

Written to the plugin's public interface and tested on a simulated device; no Gaudi was at hand.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.types import Precision
from boxwright.devices.base import Device, Part
from boxwright.devices.options import LAZY_MODE, DeviceOptions
from boxwright.devices.support import Support

_PLUGIN = "habana_frameworks"


class HpuDevice(Device):
    """The Gaudi cards that the plugin sees; each process has one.

    Eager mode with graphs compiled by `hpu_backend` is the default. Lazy mode, on request or by PT_HPU_LAZY_MODE=1,
    marks the end of a graph after the backward pass and after the optimizer's step.
    """

    name = "hpu"
    collective = "hccl"
    static_shapes = True
    most_sizes = 4  # times two phases are eight graphs of the loss, which is as many as the compiler keeps
    copies_buffers = False
    reduces_int64 = False

    def __init__(self, options: DeviceOptions | None = None) -> None:
        self._options = options or DeviceOptions()
        for file in (self._options.bf16_ops, self._options.fp32_ops):
            if file is not None:
                _check_ops(file)
        self._lazy = self._options.lazy if self._options.lazy is not None else os.environ.get(LAZY_MODE) == "1"
        if self._lazy and self._options.compile:
            raise UsageError("compile=True and lazy=True: lazy mode makes its own graphs. Give one of them.")
        self._compiles = not self._lazy and self._options.compile is not False
        self._core = self._load()
        if not torch.hpu.is_available():  # type: ignore[attr-defined]
            raise UsageError("device='hpu' was asked for, but the plugin sees no Gaudi here. Use device='cpu'.")

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_core"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the plugin in the process where this object arrives."""
        self.__dict__.update(state)
        self._core = self._load()

    def _load(self) -> Any:
        """Import the plugin in the mode that was asked for, and return its core module.

        Raises:
            MissingDependencyError: it is not installed.
            UsageError: it does not fit this torch, or was loaded in the other mode before.
        """
        if find_spec(_PLUGIN) is None:
            raise MissingDependencyError(
                f"device='hpu' needs {_PLUGIN}, which is not installed. It comes with Intel's Gaudi software and not "
                "from the package index: install that, with the torch it brings, and Boxwright beside it."
            )
        loaded = f"{_PLUGIN}.torch" in sys.modules
        if loaded and (os.environ.get(LAZY_MODE) == "1") != self._lazy:
            raise UsageError(
                f"The Gaudi plugin was loaded with {LAZY_MODE}={os.environ.get(LAZY_MODE, '0')} before, and can't "
                f"change its mode. Set {LAZY_MODE}={int(self._lazy)} in the environment and start again."
            )
        os.environ.update({LAZY_MODE: str(int(self._lazy))} | self._options.variables(self.name))
        try:
            return import_module(f"{_PLUGIN}.torch.core")
        except (AssertionError, ImportError, OSError) as error:
            raise UsageError(
                f"The Gaudi plugin{_plugin_version()} can't be used with torch {torch.__version__}: {error} "
                "Install the torch that came with it."
            ) from error

    # What there is.

    def count(self) -> int:
        """Return how many Gaudi cards there are."""
        return int(torch.hpu.device_count())  # type: ignore[attr-defined]

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here."""
        if precision in (Precision.FP32, Precision.BF16, Precision.BF16_TRUE):
            return Support(ok=True, note=self._describe())
        if precision is Precision.INT8:
            return Support(ok=False, note="int8 is for inference; train in 32 or bf16 and quantise afterwards")
        return Support(ok=False, note="a Gaudi is made for bf16; use precision='bf16' or '32'")

    def _describe(self) -> str:
        return "lazy mode" if self._lazy else "eager mode, compiled graphs" if self._compiles else "eager mode"

    def free_bytes(self) -> int:
        """Return the card's free memory."""
        return int(torch.hpu.mem_get_info()[0])  # type: ignore[attr-defined]

    # A process of a run.

    def environment(self) -> dict[str, str]:
        """Return the plugin's variables: it reads them when torch is imported."""
        return {LAZY_MODE: str(int(self._lazy))} | self._options.variables(self.name)

    def place(self, local_rank: int) -> torch.device:  # noqa: ARG002 - the plugin takes the card by LOCAL_RANK
        """Return this process's one card."""
        return torch.device("hpu", 0)

    def join_group(self, place: torch.device, timeout: timedelta) -> None:  # noqa: ARG002
        """Join over HCCL."""
        import_module(f"{_PLUGIN}.torch.distributed.hccl")
        distributed.init_process_group(self.collective, timeout=timeout)

    # Its parts.

    def compile(self, part: Part) -> Part:
        """Return a network or a function as one graph for each shape."""
        if not self._compiles:
            return part
        if isinstance(part, nn.Module):
            part.compile(backend="hpu_backend", dynamic=False)  # in place: the state dict's keys stay
            return part
        compiled: Any = torch.compile(part, backend="hpu_backend", dynamic=False)
        return compiled  # type: ignore[no-any-return]

    def make_sgd(self, groups: Iterable[Any], *, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        """Return the plugin's fused SGD, or torch's where it has none."""
        fused = getattr(_try_import(f"{_PLUGIN}.torch.hpex.optimizers"), "FusedSGD", None)
        if fused is None:
            return super().make_sgd(groups, lr=lr, momentum=momentum, nesterov=nesterov)
        made: Optimizer = fused(groups, lr=lr, momentum=momentum, nesterov=nesterov)
        return made

    # Its steps.

    def autocast(self, precision: Precision) -> AbstractContextManager[None]:
        """Return the context of the forward pass."""
        return torch.autocast("hpu", dtype=torch.bfloat16) if precision is Precision.BF16 else nullcontext()

    def end_of_step(self) -> None:
        """Have what was collected run, in lazy mode."""
        if self._lazy:
            self._core.mark_step()

    def average(self, ours: Sequence[Tensor], theirs: Sequence[Tensor], decay: float) -> None:
        """Move our tensors towards theirs by one operator of the plugin, or by torch's where it has none."""
        # The operator behind the plugin's FusedEMA. That class has a ramp of its own and marks two steps more.
        fused = getattr(torch.ops.hpu, "optimizer_ema", None)
        if fused is None:
            super().average(ours, theirs, decay)
            return
        # As a tensor: a number that changes at every step would be part of the graph.
        fused(list(theirs), list(ours), torch.tensor([decay]).to(ours[0].device, non_blocking=True))

    def synchronize(self) -> None:
        """Wait for the card."""
        torch.hpu.synchronize()  # type: ignore[attr-defined]


def _check_ops(file: Path) -> None:
    """Refuse a list of operations that is not there or says nothing.

    Raises:
        UsageError: it is such a file.
    """
    try:
        names = file.read_text(encoding="utf-8").split()
    except OSError as error:
        raise UsageError(f"The list of operations {str(file)!r} can't be read: {error.strerror or error}.") from error
    if not names:
        raise UsageError(f"The list of operations {str(file)!r} is empty. Write one name a line, such as conv2d.")


def _try_import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        return None


def _plugin_version() -> str:
    for package in ("habana-torch-plugin", "habana_torch_plugin"):
        try:
            return f" {version(package)}"
        except PackageNotFoundError:
            continue
    return ""
