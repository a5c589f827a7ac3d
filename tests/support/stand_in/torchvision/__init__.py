"""The real torchvision, beside a torch without CUDA; or only its names, where it is not installed.

The published wheel's operators are linked to CUDA, so they do not load, and torchvision fails at its import. Here their
signatures are declared first; then the installed package takes this module's place. Transforms, data sets and networks
work; an operator (`nms`, `roi_align`) that is called says that it has no implementation.

timm and segmentation-models-pytorch import names of torchvision that the networks in our tests do not use. Without the
package, any name can be imported and derived from, and nothing can be called.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from boxwright.vision.transforms import InterpolationMode

_SIGNATURES = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _Names(ModuleType):
    """A module in which every name is a class that can't be made."""

    __path__: list[str] = []  # noqa: RUF012 what the import system reads

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(self: object, *_: object, **__: object) -> None:
            raise ImportError(f"torchvision is not installed, so {name!r} can't be used (make thirdparty)")

        made = type(name, (), {"__init__": refuse, "__class_getitem__": classmethod(lambda cls, _: cls)})
        if name == "InterpolationMode":  # timm makes tables of its members
            made = InterpolationMode
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name.startswith("torchvision.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


_here = Path(__file__).resolve().parent
_real = next(
    (
        folder
        for folder in (Path(entry) / "torchvision" for entry in sys.path)
        if (folder / "extension.py").is_file() and folder.resolve() != _here
    ),
    None,
)
if _real is None:
    sys.meta_path.append(_Finder())
    __version__ = "0.0"
    NAMES_ONLY = True
else:
    _declared = torch.library.Library("torchvision", "DEF")
    for _signature in _SIGNATURES:
        _declared.define(_signature)
    __path__ = [str(_real)]
    __file__ = str(_real / "__init__.py")
    exec(compile(Path(__file__).read_text(encoding="utf-8"), __file__, "exec"))
