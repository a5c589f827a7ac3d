"""The real torchvision, beside a torch without CUDA.

The published wheel's operators are linked to CUDA, so they do not load, and torchvision fails at its import. Here their
signatures are declared first; then the installed package takes this module's place. Transforms, data sets and networks
work; an operator (`nms`, `roi_align`) that is called says that it has no implementation.
"""

import sys
from pathlib import Path

import torch

_SIGNATURES = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared = torch.library.Library("torchvision", "DEF")
for _signature in _SIGNATURES:
    _declared.define(_signature)

_here = Path(__file__).resolve().parent
_real = next(
    folder
    for folder in (Path(entry) / "torchvision" for entry in sys.path)
    if (folder / "extension.py").is_file() and folder.resolve() != _here
)
__path__ = [str(_real)]
__file__ = str(_real / "__init__.py")
exec(compile(Path(__file__).read_text(encoding="utf-8"), __file__, "exec"))
