"""Converts a torch model to OpenVINO with OpenVINO's own readers of torch programs."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.core.affinity import unbound
from boxwright.core.errors import ConversionError
from boxwright.runtimes.base import first_line
from boxwright.runtimes.fold import fold_copy
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.program import dynamic_shapes
from boxwright.runtimes.source import PREFIX, Source, Variant
from boxwright.runtimes.telemetry import no_telemetry
from boxwright.runtimes.tracing import quiet_tracing

with no_telemetry():
    import openvino

PATH = "__module.model."
"""The prefix of node names: the tracer's mark, and where `FlatModule` holds the user's model."""


def convert(source: Source) -> tuple[Any, dict[str, Any]]:
    """Return the OpenVINO model, with the signature's port names and shapes, and how it was read.

    Tracing is three times faster; `torch.export` reads models that tracing can't, or reads wrongly.

    Raises:
        ConversionError: neither way produces the original's outputs.
    """
    example = source.roomy()  # tracing may take an axis of size 1 for one that broadcasts
    if source.signature.free_batch:
        example = tuple(t[:2] for t in example)  # more rows only take longer
    reasons = []
    for way, read in (("traced", _trace), ("exported", _export)):
        try:
            model, notes = _attempt(read, source, example)
            return model, {"read": way, **notes}
        except ConversionError as error:
            reasons.append(f"{way}: {error}")
    raise ConversionError(f"OpenVINO can't read the model ({'; '.join(reasons)}).")


def find_module(name: str) -> str:
    """Return the module of the flat model that a node's name refers to; the whole model if it names none.

    Example:
        >>> find_module("__module.model.head.conv/aten::_convolution/Convolution"), find_module("images")
        ('model.head.conv', 'model')
    """
    inner = name.removeprefix(PATH).partition("/")[0] if name.startswith(PATH) else ""
    return f"{PREFIX}{inner}".removesuffix(".")


def _attempt(read: Callable[..., Any], source: Source, example: tuple[Tensor, ...]) -> tuple[Any, dict[str, Any]]:
    root = logging.getLogger()
    level = root.level
    try:
        with quiet_tracing() as notes:  # the readers warn about everything they are unsure of
            # OpenVINO folds too, but then the convolutions lose the names by which they can be kept in float.
            model = read(fold_copy(source), example, dynamic_shapes(source))
        _name_ports(model, source)
        _verify(model, source, example)
    except Exception as error:  # the readers run the user's model, which may raise anything
        raise ConversionError(first_line(error)) from error
    finally:
        root.setLevel(level)  # convert_model sets it to ERROR, for the whole program
    return model, notes


def _trace(module: nn.Module, example: tuple[Tensor, ...], shapes: Any) -> Any:  # noqa: ARG001 a trace is always free
    return openvino.convert_model(module, example_input=example)


def _export(module: nn.Module, example: tuple[Tensor, ...], shapes: Any) -> Any:
    program = torch.export.export(module, example, dynamic_shapes=shapes, strict=False)
    program = program.run_decompositions()
    model = openvino.convert_model(program)
    modules = {}
    for node in program.graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        if stack:
            modules[node.name] = stack[-1][0].removeprefix("model.")
    for op in model.get_ops():
        first, slash, rest = op.get_friendly_name().partition("/")
        if first in modules:
            op.set_friendly_name(f"{PATH}{modules[first]}/{first}{slash}{rest}")
    return model


def _name_ports(model: Any, source: Source) -> None:
    signature = source.signature
    ports = list(zip(model.inputs, signature.inputs, strict=True))
    model.reshape({have: [-1 if n is None else n for n in port.shape] for have, port in ports})
    for have, port in [*ports, *zip(model.outputs, signature.outputs, strict=True)]:
        have.get_tensor().set_names({port.name})


def _verify(model: Any, source: Source, example: Sequence[Tensor]) -> None:
    """Check that the outputs equal the original's, also for other sizes than the example's."""
    with unbound():
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    tried = [Variant(tuple(t.numpy() for t in example)), *source.variants]
    if source.signature.free_batch:
        tried.append(Variant(tuple(t[:1].numpy() for t in example)))
    for variant in tried:
        inputs = [np.ascontiguousarray(a).reshape(a.shape) for a in variant.inputs]
        expected = source.run(inputs)
        try:
            outputs = [np.array(a) for a in compiled(inputs).values()]
        except RuntimeError:
            if variant.needed:
                raise
            continue
        found = distance(outputs, expected)
        if not found <= max(BOUNDS.values()):  # coarse: rounding is judged elsewhere
            raise ConversionError(
                f"outputs for the shapes {[a.shape for a in inputs]} are {found:.3g} away from the model's"
            )
