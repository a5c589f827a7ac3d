"""Packages of others that are installed beside the environment (`make test-thirdparty`), so that it stays without them.

timm and segmentation-models-pytorch require torchvision, whose published wheel requires a torch with CUDA. `make
thirdparty` installs all of them without their dependencies into a folder, and `offer` puts it at the end of the path.
"""

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(sys.prefix) / "thirdparty"
STAND_IN = Path(__file__).parent / "stand_in"


def find_paths() -> list[str]:
    """Return the folders to import the packages from: none where they are not installed."""
    if not FOLDER.is_dir():
        return []
    return [*([str(STAND_IN)] if torch.version.cuda is None else []), str(FOLDER)]


def offer() -> None:
    """Let this process import the packages."""
    sys.path += [path for path in find_paths() if path not in sys.path]


def offer_to_children(patch: pytest.MonkeyPatch) -> None:
    """Let the processes that a test starts import the packages too."""
    patch.setenv("PYTHONPATH", os.pathsep.join(find_paths()))


def import_or_skip(name: str) -> ModuleType:
    """Return a package, or skip the test or module that needs it."""
    offer()
    module = None if find_spec(name) is None else importlib.import_module(name)
    if module is None or hasattr(module, "NAMES_ONLY"):
        pytest.skip(f"{name} is not installed (make thirdparty)", allow_module_level=True)
    return module
