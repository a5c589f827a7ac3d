"""A user's options for a device. No torch is needed."""

import os
from dataclasses import dataclass, fields
from pathlib import Path

from boxwright.core.errors import UsageError

LAZY_MODE = "PT_HPU_LAZY_MODE"
_LOW_OPS = "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST"
_FP32_OPS = "PT_HPU_AUTOCAST_FP32_OPS_LIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """How a device works; None is the device's default.

    Attributes:
        compile: run the network and the loss as compiled graphs.
        lazy: collect operations and run them at the end of each half step (hpu only).
        bf16_ops: a file with the names of operations that autocast runs in bf16, one per line (hpu only).
        fp32_ops: a file with the names of those that it runs in fp32.

    Example:
        >>> DeviceOptions(lazy=True).variables("hpu")
        {'PT_HPU_LAZY_MODE': '1'}
        >>> DeviceOptions().variables("cpu")
        {}
    """

    compile: bool | None = None
    lazy: bool | None = None
    bf16_ops: Path | None = None
    fp32_ops: Path | None = None

    def refuse_all_but(self, device: str, *known: str) -> None:
        """Reject options that do not apply to a device."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in known:
                raise UsageError(f"{field.name}={value!r} does not apply to device={device!r}. Leave it out.")

    def variables(self, device: str) -> dict[str, str]:
        """Return the environment variables that a process of the device needs before torch is imported."""
        if device != "hpu":
            return {}
        found = {}
        if self.lazy is not None:
            found[LAZY_MODE] = str(int(self.lazy))
        for name, file in ((_LOW_OPS, self.bf16_ops), (_FP32_OPS, self.fp32_ops)):
            if file is not None:
                found[name] = str(file.resolve())
        return found


def set_variables(device: str, options: DeviceOptions) -> None:
    """Set the environment variables that a device reads; call it before torch is imported."""
    os.environ.update(options.variables(device))
