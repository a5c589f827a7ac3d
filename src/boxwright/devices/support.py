"""The precisions that a device can train in. It needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a precision can be trained on a device, and what to know about it."""

    ok: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What a plan needs to know about a device.

    Attributes:
        name: what the user types.
        support: whether the wanted precision can be trained on it.
        count: how many of them this machine has.
        near_cpus: for each device the logical cpus near it; empty where that is not known.
        environment: the variables that a process needs before torch is imported there.
    """

    name: str
    support: Support
    count: int = 1
    near_cpus: tuple[tuple[int, ...], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


AUTO = "auto"
"""The precision that stands for the fastest one of a CPU."""


def choose_precision(precision: str, device: str, isa: frozenset[str]) -> str:
    """Return what "auto" means on a CPU with these instruction sets; any other precision as it is.

    Raises:
        UsageError: "auto" for another device.

    Example:
        >>> choose_precision("auto", "cpu", frozenset({"avx512", "bf16"}))
        'bf16'
    """
    if precision.strip().lower() != AUTO:
        return precision
    if device != "cpu":
        raise UsageError(f"precision='auto' chooses for a CPU. Name the precision for device={device!r}: bf16 or 32.")
    return str(Precision.BF16 if isa & {"amx", "bf16"} else Precision.FP32)


NO_INT8 = Support(ok=False, note="int8 is for inference; train in 32 or bf16 and quantise afterwards")


def cpu_support(precision: Precision, isa: frozenset[str]) -> Support:
    """Return whether a CPU with these instruction sets can train in a precision, and how well.

    Example:
        >>> cpu_support(Precision.BF16, frozenset({"avx2"})).note
        'this CPU has no bf16 instructions: bf16 works, but slower than 32'
    """
    if precision in (Precision.FP64, Precision.FP32):
        return Support(ok=True)
    if precision in (Precision.BF16, Precision.BF16_TRUE):
        if "amx" in isa:
            return Support(ok=True, note="bf16 runs on AMX")
        if "bf16" in isa:
            return Support(ok=True, note="bf16 runs on AVX-512 BF16 instructions")
        return Support(ok=True, note="this CPU has no bf16 instructions: bf16 works, but slower than 32")
    if precision is Precision.FP16:
        return Support(ok=True, note="fp16 is emulated on most CPUs and slower than 32; bf16 is the fast choice")
    return NO_INT8
