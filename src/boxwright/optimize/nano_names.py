"""The arguments of `trace`, `quantize` and `optimize` under the names that BigDL-Nano gave them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from boxwright.core import catalogue
from boxwright.core.errors import UsageError, check_choice
from boxwright.core.log import get_logger
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice

_log = get_logger(__name__)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_NAMES = {
    "calib_dataloader": "calib_data",
    "dynamic_axes": "dynamic",
    "eval_func": "metric",
    "example_kwarg_inputs": "input_sample",
    "onnxruntime_session_options": "session_options",
    "sample_size": "calibration_samples",
}
# What a conversion does anyway, and what to do for anything else.
_NEEDLESS: dict[str, tuple[tuple[Any, ...], str]] = {
    "logging": ((True, False), ""),  # nothing is printed
    "inplace": ((True, False), ""),  # the original is never changed
    "jit_strict": ((True, False), ""),  # dictionaries come back as such
    "jit_method": ((None, "trace"), "Models are traced. For a script, call torch.jit.script(model)."),
    "simplification": ((True,), "ONNX files are always optimised."),
    "strict_check": ((True,), "Give a torch.nn.Module."),
    "enable_onednn": ((None, True, False), ""),  # oneDNN computes the layers anyway
    "weights_prepack": ((None, True), "Weights are always packed."),
    "no_cache": ((False,), "Latencies are measured on one input."),
    **dict.fromkeys(
        ("conf", "q_config", "tuning_strategy", "timeout", "max_trials"),
        ((None,), "With metric and accuracy_criterion, layers are put back into float until the accuracy holds."),
    ),
}


def takes_nano_names(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function that takes its arguments under BigDL-Nano's names too.

    Example:
        >>> show = takes_nano_names(lambda **given: given)
        >>> show(dynamic_axes={"x": [0]}, logging=False)
        {'dynamic': {'x': [0]}}
    """
    names = list(signature(function).parameters)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        given = dict(zip(names, args, strict=False))
        if isinstance(given.get("calib_data"), str):  # quantize(model, "int8", "openvino", calib_data=…)
            given["precision"] = given.pop("calib_data")
        if not given.keys().isdisjoint(kwargs):
            return function(*args, **kwargs)  # raises the usual error
        return function(**_rename(given | kwargs))  # type: ignore[call-arg]

    return call


def _rename(given: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {name: value for name, value in given.items() if name not in _NAMES and name not in _NEEDLESS}
    for name, value in given.items():
        if name in _NAMES and value is not None:
            if renamed.get(_NAMES[name]) is not None:
                raise UsageError(f"{name} and {_NAMES[name]} mean the same thing. Give one of them.")
            # True was the batch alone, which is free by default.
            renamed[_NAMES[name]] = None if name == "dynamic_axes" and value is True else value
        if name in _NEEDLESS:
            accepted, advice = _NEEDLESS[name]
            if value not in accepted:
                raise UsageError(f"{name}={value!r} is not possible. {advice} Leave it out.")
    if renamed.get("device", "") in (None, "CPU"):  # its name for the default
        del renamed["device"]
    if "approach" in renamed:
        approach = renamed.pop("approach")
        check_choice("approach", approach, ("static", "dynamic"))
        if approach == "dynamic":
            if (renamed.get("accelerator") or "onnxruntime") != "onnxruntime":
                raise UsageError(
                    f"approach='dynamic' is for accelerator='onnxruntime', not {renamed['accelerator']!r}. Leave one "
                    "of them out."
                )
            renamed |= {"accelerator": "onnxruntime", "method": "integer"}
    return renamed


def choose_ipex(choice: Choice) -> Choice:
    """Return a choice with Intel's extension; where it is not installed, with PyTorch's kernels, channels last.

    Raises:
        UsageError: the runtime does not run in PyTorch.
    """
    if choice.runtime not in ("eager", "jit"):
        raise UsageError(f"use_ipex=True does not apply to accelerator={choice.runtime!r}. Leave one of them out.")
    missing = catalogue.find("runtime", "ipex").missing()
    if missing:
        _log.info("use_ipex: %s is not installed; PyTorch's own kernels, channels last.", ", ".join(missing))
        return replace(choice, channels_last=True)
    return replace(choice, runtime="ipex", mode="jit" if choice.runtime == "jit" else "")


def choose_int8(accelerator: str | None, method: str | None, *, use_ipex: bool, channels_last: bool) -> Choice:
    """Return how `quantize` converts in int8.

    Raises:
        UsageError: the settings contradict each other.
    """
    if method in ("fx", "eager", "ipex"):
        if accelerator not in (None, "", "int8"):
            raise UsageError(
                f"method={method!r} is for PyTorch, not accelerator={accelerator!r}. Leave one of them out."
            )
        accelerator, use_ipex, method = "int8", use_ipex or method == "ipex", ""
    runtime = accelerator or ("int8" if use_ipex or accelerator is None else "openvino")
    if use_ipex and runtime != "int8":
        raise UsageError(f"use_ipex=True does not apply to accelerator={accelerator!r}. Leave one of them out.")
    if use_ipex and not catalogue.find("runtime", "ipex").missing():
        runtime = "ipex"
    mode = method or ("qlinear" if runtime == "onnxruntime" else "")
    return Choice(runtime=runtime, precision=Precision.INT8, mode=mode, channels_last=channels_last)
