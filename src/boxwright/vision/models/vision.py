"""The networks under BigDL-Nano's names and arguments: by default without their last layers.

`vision.resnet18(include_top=False, freeze=True)` returns a frozen `Backbone` with `get_output_size()`; with
`include_top=True` and `freeze=True` only the last layers are trained.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from boxwright.vision.models import mobilenet, resnet
from boxwright.vision.models.backbone import remove_top


def _without_top(make: Callable[..., nn.Module], last: str) -> Callable[..., nn.Module]:
    def build(pretrained: bool = False, include_top: bool = False, freeze: bool = False) -> Any:
        model = make(pretrained=pretrained)
        if not include_top:
            return remove_top(model, freeze=freeze)
        if freeze:
            for name, parameter in model.named_parameters():
                parameter.requires_grad = name.startswith(last)
        return model

    build.__name__ = build.__qualname__ = make.__name__
    build.__doc__ = f"Return an untrained {make.__name__}, without its last layers unless `include_top`."
    return build


resnet18 = _without_top(resnet.resnet18, "fc.")
resnet34 = _without_top(resnet.resnet34, "fc.")
resnet50 = _without_top(resnet.resnet50, "fc.")
mobilenet_v2 = _without_top(mobilenet.mobilenet_v2, "classifier.")
mobilenet_v3_large = _without_top(mobilenet.mobilenet_v3_large, "classifier.")
mobilenet_v3_small = _without_top(mobilenet.mobilenet_v3_small, "classifier.")
