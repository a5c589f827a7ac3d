"""Training operators that stock PyTorch runs slowly on a CPU. Without a C compiler the plain operators are used."""

from boxwright.accel.kernels.depthwise import StridedDepthwise
from boxwright.accel.kernels.norm_silu import NormSilu
from boxwright.accel.kernels.patches import pack_patches

__all__ = ["NormSilu", "StridedDepthwise", "pack_patches"]
