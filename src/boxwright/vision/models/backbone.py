"""Networks without their last layers."""

from typing import Any

from torch import nn

from boxwright.core.errors import UsageError

# Where the last layers are in torchvision's networks, and in ours.
_TOPS = ("fc", "classifier")


class Backbone(nn.Module):
    """A network without its last layers; `get_output_size()` returns how many features it gives per image.

    Args:
        net: the network, whose last layers have been exchanged for nothing.
        output_size: the features per image.
    """

    def __init__(self, net: nn.Module, output_size: int) -> None:
        super().__init__()
        self.net = net
        self.output_size = output_size

    def forward(self, x: Any) -> Any:
        """Return the features of the images."""
        return self.net(x)

    def get_output_size(self) -> int:
        """Return the number of features per image."""
        return self.output_size


def remove_top(model: nn.Module, *, freeze: bool = False) -> Backbone:
    """Return the network without its last layers, which must be its attribute `fc` or `classifier`.

    The network itself is changed. `freeze` keeps what is left from being trained.

    Raises:
        UsageError: there are no such layers.

    Example:
        >>> from boxwright.vision.models.resnet import resnet18
        >>> remove_top(resnet18()).get_output_size()
        512
    """
    for name in _TOPS:
        top = getattr(model, name, None)
        layers = [] if top is None else [layer for layer in top.modules() if isinstance(layer, nn.Linear)]
        if layers:
            setattr(model, name, nn.Identity())
            if freeze:
                model.requires_grad_(False)
            return Backbone(model, layers[0].in_features)
    raise UsageError(
        f"{type(model).__name__} has no linear layers in an attribute {' or '.join(_TOPS)}. Give a network without its "
        "last layer that has a method get_output_size()."
    )
