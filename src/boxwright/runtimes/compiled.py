"""AOTInductor: the model compiled ahead of time to a package of machine code."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._inductor import aoti_compile_and_package, aoti_load_package
from torch._inductor.utils import fresh_cache

from boxwright.core.errors import CheckpointError, ConversionError
from boxwright.core.signature import Signature
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning, check_offer, first_line
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.program import ModuleGraph, export_program, prepare
from boxwright.runtimes.quantized import quantize
from boxwright.runtimes.source import Source
from boxwright.runtimes.trust import MACHINE_CODE

_MODES = {Precision.FP32: ("",), Precision.BF16: ("",), Precision.INT8: ("",)}
_SETTINGS = {
    # Weights become constants, packed for the kernels; without it no int8 kernel is made.
    "freezing": True,
    # The number of threads is that of the call, not that of the conversion.
    "cpp.dynamic_threads": True,
    # Precompiled headers would stay after the temporary cache is gone, and save nothing for one model.
    "aot_inductor.precompile_headers": False,
    # No pool of compiler processes that outlives the conversion.
    "compile_threads": 1,
}


class CompiledRuntime:
    """Writes a package for this kind of CPU. Converting needs a C++ compiler, running does not."""

    name = "compile"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the compiled package."""
        check_offer(choice, calibration, modes=_MODES)
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            raise ConversionError(
                "Compiling a model needs a C++ compiler, and neither g++ nor clang++ was found. "
                "Install one (Debian, Ubuntu: apt install g++), or convert on a machine that has it: "
                "the package runs without."
            )
        if choice.precision is Precision.INT8:
            assert calibration is not None
            module, recipe = quantize(source, choice, calibration)
        else:
            module, recipe = prepare(source, choice, calibration=calibration)
        compile_program(export_program(source, module), folder)
        return recipe | {"cpu": torch.backends.cpu.get_cpu_capability()}

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> ModuleGraph:  # noqa: ARG002
        """Return a graph over the package's machine code; the package holds all of the choice."""
        path = folder / MACHINE_CODE
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about unused files in the package
                compiled = aoti_load_package(str(path))
        except (RuntimeError, OSError, ValueError) as error:
            raise CheckpointError(f"{str(path)!r} can't be loaded: {first_line(error)}") from error
        return ModuleGraph(compiled, signature, tuning)


def compile_program(program: torch.export.ExportedProgram, folder: Path) -> None:
    """Write the package of an exported program.

    Raises:
        ConversionError: the compiler fails.
    """
    try:
        with warnings.catch_warnings(), fresh_cache(), torch.no_grad():
            warnings.simplefilter("ignore")
            aoti_compile_and_package(program, package_path=str(folder / MACHINE_CODE), inductor_configs=_SETTINGS)
    except Exception as error:  # the compiler raises many kinds
        raise ConversionError(f"TorchInductor can't compile the model: {first_line(error)}") from error
