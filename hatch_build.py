"""Puts the compiled training kernels into a wheel, if BOXWRIGHT_KERNELS=1 asks for a platform wheel (`make dist`)."""

import importlib.util
import os
import platform
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src/boxwright/accel/kernels")
OLDEST_GLIBC = 17  # the oldest that a manylinux tag of today names


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernels for every variant of x86-64 and marks the wheel as one for Linux."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to a wheel; an editable installation and a pure wheel compile at first use."""
        if self.target_name != "wheel" or version != "standard" or os.environ.get("BOXWRIGHT_KERNELS") != "1":
            return
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise SystemExit("BOXWRIGHT_KERNELS=1 makes a wheel for Linux on x86-64, and only there.")
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise SystemExit("BOXWRIGHT_KERNELS=1 needs a C compiler (cc, gcc, clang), and there is none.")
        sources = Path(self.root) / KERNELS
        # By its path: importing the package would need torch.
        spec = importlib.util.spec_from_file_location("compiler", sources / "compiler.py")
        assert spec is not None
        assert spec.loader is not None
        recipe = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(recipe)
        self.folder = Path(tempfile.mkdtemp(prefix="boxwright-wheel-"))
        newest = OLDEST_GLIBC
        for name, (target, _) in recipe.VARIANTS.items():
            library = self.folder / f"{name}.so"
            recipe.compile_library(compiler, sources, library, target, timeout_s=None)  # nobody waits for a training
            versions = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
            newest = max([newest, *map(int, versions)])
            build_data["force_include"][str(library)] = f"boxwright/accel/kernels/prebuilt/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{newest}_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the libraries, which are in the wheel."""
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)
