"""Writing a torch model as ONNX: standard operators, batch normalisation folded, nodes named after torch modules."""

import ast
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from boxwright.core.errors import ConversionError
from boxwright.runtimes.source import Source

OPSET = 18
"""Read by every runtime in use; below 17 the quantiser has no per-channel form."""

_WRAPPER = "model."  # where `FlatModule` keeps the user's model


def export_onnx(source: Source, path: Path, *, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Write an ONNX file, with a free batch size where the source's is free; return how it was made.

    Raises:
        ConversionError: the exporter fails.
    """
    signature = source.signature
    example = source.example
    axes: list[dict[int, Any]] | None = None
    if signature.free_batch:
        batch = torch.export.Dim("batch")
        axes = [{0: batch} for _ in example]
        # A free axis of size 1 would be taken for fixed.
        example = tuple(torch.cat((t, t)) if t.shape[0] == 1 else t for t in example)
    model = to_onnx(
        source.flat(),
        example,
        axes=None if axes is None else (tuple(axes),),
        inputs=[p.name for p in signature.inputs],
        outputs=[p.name for p in signature.outputs],
    )
    save_onnx(model, path, metadata or {})
    return {"opset": OPSET, "exporter": f"torch {torch.__version__}"}


def to_onnx(
    module: nn.Module,
    example: tuple[Tensor, ...],
    *,
    axes: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> onnx.ModelProto:
    """Return the ONNX form of a module in evaluation mode.

    Args:
        module: takes and gives flat tensors.
        example: its inputs; an axis that shall be free has a size of at least 2.
        axes: `dynamic_shapes` of `torch.export.export`.
        inputs: names of the inputs.
        outputs: names of the outputs.

    Raises:
        ConversionError: the exporter fails.
    """
    noisy = [logging.getLogger(name) for name in ("torch.onnx", "torch.onnx._internal.exporter._registration")]
    levels = [logger.level for logger in noisy]
    try:
        for logger in noisy:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter warns about its own internals
            program = torch.onnx.export(
                module,
                example,
                input_names=list(inputs),
                output_names=list(outputs),
                opset_version=OPSET,
                dynamo=True,
                dynamic_shapes=axes,
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        raise ConversionError(f"The model could not be exported to ONNX: {lines[0] if lines else error!r}") from error
    finally:
        for logger, level in zip(noisy, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    _name_nodes(model.graph)
    return model


def save_onnx(model: onnx.ModelProto, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a model with these texts in it, in one file, or with the weights beside it where they pass 2 GB."""
    del model.metadata_props[:]
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(model, path, save_as_external_data=model.ByteSize() > 2**31 - 1)


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Name each node after the torch module it came from, and drop the exporter's notes.

    The notes hold paths of this machine. The names are what a quantiser finds layers by.
    """
    weights = {tensor.name for tensor in graph.initializer}
    taken: dict[str, int] = {}
    for node in graph.node:
        name = f"{_module_of(node, weights)}/{node.op_type}"
        taken[name] = taken.get(name, 0) + 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"
        del node.metadata_props[:]
    for value in (*graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del value.metadata_props[:]
    del graph.metadata_props[:]


def _module_of(node: onnx.NodeProto, weights: set[str]) -> str:
    for name in node.input:
        # The weight's own name: a convolution that took in its batch norm bears the norm's scope.
        if name in weights and name.startswith(_WRAPPER) and name.endswith(".weight"):
            return str(name).removeprefix(_WRAPPER).removesuffix(".weight")
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = ast.literal_eval(entry.value)
            return str(scopes[-2]).removeprefix(_WRAPPER) if len(scopes) > 1 else ""
    return ""
