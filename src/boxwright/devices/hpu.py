"""Habana Gaudi (HPU): eager with compiled graphs, or lazy.

Written against the plugin's public interface and tested on a simulated device, not on a real Gaudi.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.optim import Optimizer

from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.types import Precision
from boxwright.devices.base import Device
from boxwright.devices.detect import PLUGIN, find_plugins
from boxwright.devices.group import find_others
from boxwright.devices.options import LAZY_MODE, DeviceOptions
from boxwright.devices.support import NO_INT8, Support


class HpuDevice(Device):
    """The Gaudi cards that the plugin sees; each process has one.

    Eager mode with graphs compiled by `hpu_backend` is the default. Lazy mode, on request or by PT_HPU_LAZY_MODE=1,
    marks the end of a graph after the backward pass and after the optimizer's step.
    """

    name = "hpu"
    collective = "hccl"
    memory_errors = ("PT_DEVMEM Allocation failed",)
    most_sizes = 4  # times two phases make eight graphs of the loss, the most that the compiler keeps
    copies_buffers = False
    reduces_int64 = False
    gathers_to_one = False
    numbered = False

    def __init__(self, options: DeviceOptions | None = None) -> None:
        self._options = options or DeviceOptions()
        _check_lists(self._options)
        self._lazy = self._options.lazy if self._options.lazy is not None else os.environ.get(LAZY_MODE) == "1"
        if self._lazy and self._options.compile:
            raise UsageError("compile=True and lazy=True: lazy mode makes its own graphs. Give one of them.")
        if not self._lazy and self._options.compile is not False:
            self.compiler = "hpu_backend"
        self._variables = {**self._options.variables(self.name), LAZY_MODE: str(int(self._lazy))}
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
        """Import the plugin in the requested mode, and return its core module."""
        plugins = find_plugins()
        if not plugins:
            raise MissingDependencyError(
                f"device='hpu' needs {PLUGIN}, which is not installed. It comes with Intel's Gaudi software and not "
                "from the package index: install that, with the torch it brings, and Boxwright beside it."
            )
        if f"{PLUGIN}.torch" in sys.modules:
            self._check_loaded()
        os.environ.update(self._variables)
        try:
            return import_module(f"{PLUGIN}.torch.core")
        except (AssertionError, ImportError, OSError) as error:
            raise UsageError(
                f"The Gaudi plugin, version {plugins[0].version}, can't be used with torch {torch.__version__}: "
                f"{error} Install the torch that came with it."
            ) from error

    def _check_loaded(self) -> None:
        """Compare with the variables that the plugin read when it was loaded."""
        if (os.environ.get(LAZY_MODE) == "1") != self._lazy:
            raise UsageError(
                f"The Gaudi plugin is already loaded with {LAZY_MODE}={os.environ.get(LAZY_MODE, '0')}, and can't "
                f"change its mode. Set {LAZY_MODE}={int(self._lazy)} in the environment and restart the program."
            )
        for name, file in self._variables.items():
            if name != LAZY_MODE and Path(os.environ.get(name, "")).resolve() != Path(file):
                raise UsageError(
                    f"The Gaudi plugin is already loaded, too late for the list of operations {file!r}. "
                    f"Set {name}={file} in the environment and restart the program."
                )

    # What there is.

    def count(self) -> int:
        """Return how many Gaudi cards there are."""
        return int(torch.hpu.device_count())  # type: ignore[attr-defined]

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here."""
        lists = self._options.bf16_ops or self._options.fp32_ops
        if lists and precision in (Precision.FP32, Precision.BF16_TRUE):
            note = "lists of operations (bf16_ops, fp32_ops) are for autocast; use precision='bf16', or leave them out"
            return Support(ok=False, note=note)
        if precision in (Precision.FP32, Precision.BF16, Precision.BF16_TRUE):
            mode = "lazy mode" if self._lazy else "eager mode, compiled graphs" if self.compiler else "eager mode"
            return Support(ok=True, note=mode)
        if precision is Precision.INT8:
            return NO_INT8
        return Support(ok=False, note="a Gaudi is made for bf16; use precision='bf16' or '32'")

    def free_bytes(self) -> int:
        """Return the card's free memory."""
        return int(torch.hpu.mem_get_info()[0])  # type: ignore[attr-defined]

    def held_bytes(self, place: torch.device) -> int:  # noqa: ARG002 - a process has one card
        """Return the card's memory in use."""
        free, total = torch.hpu.mem_get_info()  # type: ignore[attr-defined]
        return int(total - free)

    # A process of a run.

    def environment(self) -> dict[str, str]:
        """Return the plugin's variables: it reads them when torch is imported."""
        return dict(self._variables)

    def place(self, local_rank: int) -> torch.device:  # noqa: ARG002 - the plugin takes the card by LOCAL_RANK
        """Return this process's one card."""
        return torch.device("hpu", 0)

    def join_group(self, place: torch.device, timeout: timedelta) -> None:  # noqa: ARG002
        """Join over HCCL."""
        import_module(f"{PLUGIN}.torch.distributed.hccl")
        distributed.init_process_group(self.collective, timeout=timeout, **find_others(timeout))

    # Its parts.

    def make_sgd(self, groups: Iterable[Any], *, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        """Return the plugin's fused SGD, or torch's if it has none."""
        fused = getattr(_try_import(f"{PLUGIN}.torch.hpex.optimizers"), "FusedSGD", None)
        if fused is None:
            return super().make_sgd(groups, lr=lr, momentum=momentum, nesterov=nesterov)
        made: Optimizer = fused(groups, lr=lr, momentum=momentum, nesterov=nesterov)
        return made

    # Its steps.

    def end_of_step(self) -> None:
        """Run what was collected, in lazy mode."""
        if self._lazy:
            self._core.mark_step()

    def average(self, ours: Sequence[Tensor], theirs: Sequence[Tensor], decay: float) -> None:
        """Move our tensors towards theirs by one operator of the plugin, or by torch's if it has none."""
        # The operator behind the plugin's FusedEMA. That class has its own ramp and marks two more steps.
        fused = getattr(torch.ops.hpu, "optimizer_ema", None)
        if fused is None:
            super().average(ours, theirs, decay)
            return
        # As a tensor: a changing number would be a constant of the graph and need a new one at every step.
        fused(list(theirs), list(ours), torch.tensor([decay]).to(ours[0].device, non_blocking=True))

    def synchronize(self) -> None:
        """Wait for the card."""
        torch.hpu.synchronize()  # type: ignore[attr-defined]


def _check_lists(options: DeviceOptions) -> None:
    """Reject lists of operations that can't be read or contradict each other."""
    low, full = (set() if file is None else _read_ops(file) for file in (options.bf16_ops, options.fp32_ops))
    both = ", ".join(repr(name) for name in sorted(low & full))
    if both:
        raise UsageError(f"In both lists of operations, bf16_ops and fp32_ops: {both}. Keep each in one of them.")


def _read_ops(file: Path) -> set[str]:
    """Return the names of a list of operations."""
    try:
        names = file.read_text(encoding="utf-8").split()
    except OSError as error:
        raise UsageError(f"The list of operations {str(file)!r} can't be read: {error.strerror or error}.") from error
    except UnicodeError as error:
        raise UsageError(
            f"The list of operations {str(file)!r} can't be read as text. Write one name per line, such as conv2d."
        ) from error
    if not names:
        raise UsageError(f"The list of operations {str(file)!r} is empty. Write one name per line, such as conv2d.")
    return set(names)


def _try_import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        return None
