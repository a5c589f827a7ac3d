"""AOTInductor: the model compiled ahead of time to a package of machine code."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._inductor import aoti_compile_and_package, aoti_load_package
from torch._inductor.utils import fresh_cache

from boxwright.core import catalogue
from boxwright.core.errors import CheckpointError, ConversionError, UsageError
from boxwright.core.signature import Signature
from boxwright.core.types import Precision
from boxwright.devices.chosen import CPU
from boxwright.runtimes.base import Choice, Graph, Tuning, check_offer, first_line
from boxwright.runtimes.buckets import in_buckets
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.device_graph import DeviceGraph, open_place
from boxwright.runtimes.program import ModuleGraph, export_program, prepare
from boxwright.runtimes.quantized import quantize
from boxwright.runtimes.source import Source
from boxwright.runtimes.trust import MACHINE_CODE

_MODES = {Precision.FP32: ("",), Precision.BF16: ("",), Precision.INT8: ("",)}
_MODES_ELSEWHERE = {Precision.FP32: ("",), Precision.FP16: ("",), Precision.BF16: ("",)}
_SETTINGS_ELSEWHERE = {"aot_inductor.precompile_headers": False, "compile_threads": 1}  # as below
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
    """Writes a package for this kind of CPU or GPU. Converting needs a C++ compiler, running does not.

    On a GPU the package runs as one graph for each of a few batch sizes.
    """

    name = "compile"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the compiled package."""
        elsewhere = choice.device != CPU
        devices = catalogue.names("device")
        modes = _MODES_ELSEWHERE if elsewhere else _MODES
        check_offer(choice, calibration, modes=modes, channels_last=not elsewhere, devices=devices)
        device, place = open_place(choice.device, 0)
        if not device.packages:
            raise UsageError(
                f"Runtime {choice.runtime!r} does not run on device={choice.device!r}, for which torch writes no "
                "packages. Use the runtime 'graph'."
            )
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
        if elsewhere:
            there = replace(source, example=tuple(tensor.to(place) for tensor in source.example))
            compile_program(export_program(there, module.to(place)), folder, _SETTINGS_ELSEWHERE)
            return recipe | {"device": device.title(place)}
        compile_program(export_program(source, module), folder)
        return recipe | {"cpu": torch.backends.cpu.get_cpu_capability()}

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> Graph:
        """Return a graph over the package's machine code."""
        path = folder / MACHINE_CODE
        if choice.device != CPU:
            device, place = open_place(choice.device, tuning.number)
            # Its own synchronisation between threads can't be captured; `DeviceGraph` lets in one at a time.
            number = -1 if place.index is None else place.index
            compiled = _load(path, run_single_threaded=True, device_index=number)
            graph = DeviceGraph(
                compiled, signature, tuning, device, place, precision=choice.precision, channels_last=False
            )
            return in_buckets(graph, threads=tuning.streams or 2)
        return ModuleGraph(_load(path), signature, tuning)


def _load(path: Path, **how: Any) -> Any:
    """Return the function in a package.

    Raises:
        CheckpointError: it can't be loaded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unused files in the package
            return aoti_load_package(str(path), **how)
    except (RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} can't be loaded: {first_line(error)}") from error


def compile_program(
    program: torch.export.ExportedProgram, folder: Path, settings: dict[str, Any] | None = None
) -> None:
    """Write the package of an exported program, with settings of the compiler; those for a CPU by default.

    Raises:
        ConversionError: the compiler fails.
    """
    try:
        with warnings.catch_warnings(), fresh_cache(), torch.no_grad():
            warnings.simplefilter("ignore")
            aoti_compile_and_package(
                program, package_path=str(folder / MACHINE_CODE), inductor_configs=settings or _SETTINGS
            )
    except Exception as error:  # the compiler raises many kinds
        raise ConversionError(f"TorchInductor can't compile the model: {first_line(error)}") from error
