"""Writes a torch model as ONNX: standard operators, batch norms folded, nodes named after torch modules."""

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
from boxwright.core.spec import OutputForm
from boxwright.runtimes.base import Choice, first_line
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import fold_copy
from boxwright.runtimes.program import TRACE_INSTEAD, dynamic_shapes, prepare
from boxwright.runtimes.source import PREFIX, Source

OPSET = 18
"""All runtimes in use read it; below 17 there is no per-channel quantisation."""


class OneOutput(nn.Module):
    """A detector with its three outputs joined to one (B, A, 5 + C), as far decoded as `form` says."""

    def __init__(self, model: nn.Module, form: OutputForm, strides: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.form = form
        self.strides = tuple(strides)

    def forward(self, images: Tensor) -> Tensor:
        """Return the joined output of (B, 3, H, W) images."""
        boxes, objectness, classes = self.model(images)
        if self.form != "raw":
            objectness, classes = objectness.sigmoid(), classes.sigmoid()
        if self.form == "decoded":
            cells, steps = self._grid(images)
            boxes = torch.cat((boxes[..., :2] + cells, boxes[..., 2:].exp()), dim=2) * steps
        return torch.cat((boxes, objectness, classes), dim=2)

    def _grid(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return column and row (A, 2) and stride (A, 1) of every place."""
        cells, steps = [], []
        for stride in self.strides:
            rows, columns = images.shape[2] // stride, images.shape[3] // stride
            y = torch.arange(rows, dtype=images.dtype, device=images.device).view(-1, 1).expand(rows, columns)
            x = torch.arange(columns, dtype=images.dtype, device=images.device).view(1, -1).expand(rows, columns)
            cells.append(torch.stack((x, y), dim=2).flatten(0, 1))
            steps.append(torch.full_like(cells[-1][:, :1], stride))
        return torch.cat(cells), torch.cat(steps)


def export_onnx(
    source: Source,
    path: Path,
    *,
    size_step: int | None = None,
    metadata: Mapping[str, str] | None = None,
    choice: Choice | None = None,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Write an ONNX file, with a free batch size where the source's is free; return how it was made.

    Args:
        source: the model.
        path: the file to write.
        size_step: let height and width (axes 2 and 3) of every input be any multiple of this.
        metadata: texts to keep in the file.
        choice: write the model in this number format (fp16 or bf16), with float32 inputs and outputs.
        calibration: its `keep_float` stays in float32.

    Raises:
        ConversionError: the exporter fails.
    """
    shapes, example = dynamic_shapes(source), source.roomy()
    if size_step is not None:
        rows, columns = size_step * torch.export.Dim("rows", min=1), size_step * torch.export.Dim("columns", min=1)
        first = shapes[0] if shapes else tuple({} for _ in example)
        shapes = (tuple({**axes, 2: rows, 3: columns} for axes in first),)
    # The exporter would fold too, after tracing twice as many operators.
    module, recipe = (fold_copy(source), {}) if choice is None else prepare(source, choice, calibration=calibration)
    model = _to_onnx(source, module, example, shapes)
    _name_nodes(model.graph)
    save_onnx(model, path, metadata or {})
    return recipe | {"opset": OPSET, "exporter": f"torch {torch.__version__}"}


def _to_onnx(source: Source, module: nn.Module, example: tuple[Tensor, ...], axes: Any) -> onnx.ModelProto:
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
                input_names=[p.name for p in source.signature.inputs],
                output_names=[p.name for p in source.signature.outputs],
                opset_version=OPSET,
                dynamo=True,
                dynamic_shapes=axes,
                verbose=False,
            )
    except Exception as error:  # a user's model may raise anything
        reason = error.__cause__ if isinstance(error, torch.onnx.OnnxExporterError) and error.__cause__ else error
        raise ConversionError(
            f"The model could not be exported to ONNX: {first_line(reason)} {TRACE_INSTEAD}"
        ) from error
    finally:
        for logger, level in zip(noisy, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    return model


def save_onnx(model: onnx.ModelProto, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a model with these texts in one file, or with external weights where they exceed 2 GB."""
    del model.metadata_props[:]
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(model, path, save_as_external_data=model.ByteSize() > 2**31 - 1)


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Name each node after the torch module it came from, and drop the exporter's notes.

    The notes hold paths of this machine. Quantisers find layers by these names.
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
        # The weight's own name: a convolution with a folded batch norm has the norm's scope.
        if name in weights and name.startswith(PREFIX) and name.endswith(".weight"):
            return str(name).removeprefix(PREFIX).removesuffix(".weight")
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = ast.literal_eval(entry.value)
            return str(scopes[-2]).removeprefix(PREFIX) if len(scopes) > 1 else ""
    return ""
