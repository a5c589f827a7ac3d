"""Python imports this file when it starts, if its folder is in PYTHONPATH: `boxwright run --cuda-to-cpu` puts it there.

It calls `patch_torch` once the program has imported torch.
"""

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


class PatchTorch(MetaPathFinder):
    """Finds torch as Python would, and patches it when it has been imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return torch's spec; for every other module None."""
        del path, target
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        load = loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            importlib.import_module("boxwright.devices.patching").patch_torch(cuda_to_cpu=True)

        loader.exec_module = load_and_patch
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, PatchTorch())
    # The user's own file of this name comes next in the search path.
    here = Path(__file__).parent
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != here.resolve()]
    del sys.modules["sitecustomize"]
    with suppress(ImportError):
        importlib.import_module("sitecustomize")
