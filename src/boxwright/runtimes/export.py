"""Writing a torch model to other formats. The files carry their `Spec`, so they say what they detect."""

import json
import logging
import warnings
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from boxwright.core.errors import ConversionError
from boxwright.core.spec import OutputForm, Spec

_OPSET = 18


class _OneOutput(nn.Module):
    """The network with its outputs joined to one tensor, in the form that the spec promises."""

    def __init__(self, model: nn.Module, form: OutputForm) -> None:
        super().__init__()
        self.model = model
        self.form = form

    def forward(self, images: Tensor) -> Tensor:
        boxes, objectness, classes = self.model(images)
        if self.form == "scores":
            objectness, classes = objectness.sigmoid(), classes.sigmoid()
        return torch.cat((boxes, objectness, classes), dim=2)


def export_onnx(model: nn.Module, spec: Spec, path: Path) -> None:
    """Write an ONNX file with a free batch size.

    Raises:
        ConversionError: the form is not one that is exported, or the exporter fails.
    """
    if spec.output == "decoded":
        raise ConversionError("output='decoded' is not exported. Use output='raw' or 'scores'.")
    was_training = model.training
    wrapped = _OneOutput(model, spec.output).eval()
    example = torch.zeros(2, 3, *spec.size_hw)
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    try:
        quiet.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter warns about its own internals
            program = torch.onnx.export(
                wrapped,
                (example,),
                input_names=["images"],
                output_names=["output"],
                opset_version=_OPSET,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        raise ConversionError(f"The model could not be exported to ONNX: {error}") from error
    finally:
        quiet.setLevel(level)
        model.train(was_training)
    assert program is not None
    proto = program.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = "boxwright", json.dumps(spec.to_dict())
    onnx.save(proto, path)
