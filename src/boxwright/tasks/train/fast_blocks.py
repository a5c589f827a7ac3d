"""The network with faster operators for training on a CPU; weights, names and results stay what they are."""

from torch import nn

from boxwright.accel.kernels import NormSilu, StridedDepthwise
from boxwright.detector.blocks import ConvBlock


def fuse_blocks(network: nn.Module) -> None:
    """Give the blocks of a network the operators that train faster on a CPU; elsewhere they run as before.

    State dictionaries keep their keys. Copies made for exporting are built anew and never see this.
    """
    for block in network.modules():
        if not isinstance(block, ConvBlock):
            continue
        if isinstance(block.act, nn.SiLU) and type(block.bn) is nn.BatchNorm2d:
            block.bn, block.act = NormSilu.of(block.bn), nn.Identity()
        conv = block.conv
        if conv.groups == conv.in_channels and conv.groups > 1 and conv.stride != (1, 1):
            block.conv = StridedDepthwise.of(conv)
