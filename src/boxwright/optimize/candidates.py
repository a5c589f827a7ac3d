"""The table of methods: every name that a user may ask for, and how it converts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from boxwright.core.errors import check_choice
from boxwright.core.types import Precision
from boxwright.devices.ways import WAYS, Way
from boxwright.runtimes.base import Choice

SearchMode = Literal["default", "all"]
ORIGINAL = "original"
"""The model as it was given, not converted; every other row is compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to run a model.

    Attributes:
        choice: how it is converted; None for the original.
        accelerator: the name users choose it by ("openvino", "jit", "tensorrt", …; "pytorch" for plain PyTorch).
        usual: whether `search_mode="default"` tries it.
    """

    choice: Choice | None
    accelerator: str = "pytorch"
    usual: bool = True

    @property
    def device(self) -> str:
        """The device that it is for; the original, which runs on any, is none of them."""
        return "" if self.choice is None else self.choice.device

    @property
    def precision(self) -> Precision:
        """The number format of the heavy layers."""
        return Precision.FP32 if self.choice is None else self.choice.precision


def _method(runtime: str, precision: str, *, last: bool = False, mode: str = "", usual: bool = True) -> Method:
    choice = Choice(runtime=runtime, precision=Precision.parse(precision), channels_last=last, mode=mode)
    return Method(choice=choice, accelerator="pytorch" if runtime in ("eager", "int8") else runtime, usual=usual)


def _on(device: str, way: Way) -> Method:
    precision = Precision.parse(way.precision)
    choice = Choice(runtime=way.runtime, precision=precision, mode=way.mode, device=device)
    return Method(choice=choice, accelerator=way.mode or way.runtime)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        ORIGINAL: Method(choice=None),
        # Plain PyTorch, with batch norms folded into the convolutions before them.
        "fp32": _method("eager", "fp32", usual=False),
        "fp32_channels_last": _method("eager", "fp32", last=True),
        "fp32_ipex": _method("ipex", "fp32"),
        "fp32_ipex_channels_last": _method("ipex", "fp32", last=True, usual=False),
        "bf16": _method("eager", "bf16"),
        "bf16_channels_last": _method("eager", "bf16", last=True),
        "bf16_ipex": _method("ipex", "bf16"),
        "bf16_ipex_channels_last": _method("ipex", "bf16", last=True, usual=False),
        "int8": _method("int8", "int8"),
        "static_int8_ipex": _method("ipex", "int8", usual=False),
        "jit_fp32": _method("jit", "fp32"),
        "jit_fp32_channels_last": _method("jit", "fp32", last=True),
        "jit_bf16": _method("jit", "bf16"),
        "jit_bf16_channels_last": _method("jit", "bf16", last=True, usual=False),
        "jit_int8": _method("jit", "int8", usual=False),
        "jit_fp32_ipex": _method("ipex", "fp32", mode="jit"),
        "jit_fp32_ipex_channels_last": _method("ipex", "fp32", mode="jit", last=True),
        "jit_bf16_ipex": _method("ipex", "bf16", mode="jit", usual=False),
        "jit_bf16_ipex_channels_last": _method("ipex", "bf16", mode="jit", last=True, usual=False),
        "compile_fp32": _method("compile", "fp32"),
        "compile_bf16": _method("compile", "bf16"),
        "compile_int8": _method("compile", "int8", usual=False),
        "openvino_fp32": _method("openvino", "fp32"),
        "openvino_bf16": _method("openvino", "bf16"),
        "openvino_fp16": _method("openvino", "fp16"),
        "openvino_int8": _method("openvino", "int8"),
        "openvino_int8_bf16": _method("openvino", "int8", mode="bf16"),
        "openvino_int8_nncf": _method("openvino", "int8", mode="nncf", usual=False),
        "onnxruntime_fp32": _method("onnxruntime", "fp32"),
        "onnxruntime_int8_qlinear": _method("onnxruntime", "int8", mode="qlinear"),
        "onnxruntime_int8_integer": _method("onnxruntime", "int8", mode="integer"),
    }
    | {name: _on(device, way) for device, ways in WAYS.items() for name, way in ways.items()}
)
"""Every method by its name, in the order of the report."""

ALIASES: Mapping[str, str] = MappingProxyType({"static_int8": "int8"})
"""Other spellings of a name."""


def find_method(name: str) -> str:
    """Return the name of a method in the table.

    Raises:
        UsageError: there is no such method; the message suggests the nearest.

    Example:
        >>> find_method("static_int8")
        'int8'
    """
    name = ALIASES.get(name, name)
    check_choice("method", name, (*METHODS, *ALIASES))
    return name


def matches(
    name: str, *, accelerator: str | Iterable[str | None] | None = None, precision: str | Iterable[str] | None = None
) -> bool:
    """Return whether a method is of one of these accelerators and precisions; None allows any.

    Among accelerators, None is plain PyTorch.

    Raises:
        UsageError: an accelerator or a precision is unknown.
    """
    method = METHODS[name]
    given = [accelerator] if isinstance(accelerator, str) else accelerator or ()
    accelerators = [word or "pytorch" for word in given]
    known = sorted({m.accelerator for m in METHODS.values()})
    for word in accelerators:
        check_choice("accelerator", word, known)
    precisions = [Precision.parse(word) for word in to_list(precision)]
    return (accelerator is None or method.accelerator in accelerators) and (
        precision is None or method.precision in precisions
    )


def to_list(given: str | Iterable[str] | None) -> list[str]:
    """Return what was given as a list: one name, several, or none."""
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)
