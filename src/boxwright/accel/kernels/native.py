"""The C kernels: those of the wheel, or compiled for this machine on first use and kept in the user's cache folder."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boxwright.accel.kernels.compiler import FLAGS, SOURCES, TIMEOUT_S, VARIANTS, compile_library
from boxwright.core.cpu import cpu_flags
from boxwright.core.environment import cache_folder
from boxwright.core.files import is_private
from boxwright.core.log import get_logger

_log = get_logger(__name__)
TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""The types of values that the kernels have, and their names there."""

_TARGET = ("-march=native",)

PREBUILT = Path(__file__).parent / "prebuilt"
"""The folder with the libraries that a platform wheel carries; it is missing elsewhere."""


@cache
def load_kernels() -> ctypes.CDLL | None:
    """Return the kernels of the wheel, or else compile them; None where neither works, and the log says why."""
    carried = find_prebuilt(PREBUILT, cpu_flags())
    if carried is not None:
        try:
            return ctypes.CDLL(str(carried))
        except OSError as error:
            _log.info("The wheel's training kernels do not load here, so they are compiled: %s", error)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        _log.info("No C compiler (cc, gcc, clang) was found: training uses PyTorch's own, slower operators.")
        return None
    try:
        return _compile_and_load(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        _log.warning("The training kernels could not be built (PyTorch's own operators run instead): %s", reason)
        return None


def find_prebuilt(folder: Path, flags: frozenset[str]) -> Path | None:
    """Return the fastest library in a folder that runs on a processor with these flags, or None."""
    for name, (_, needed) in VARIANTS.items():
        library = folder / f"{name}.so"
        if needed <= flags and library.is_file():
            return library
    return None


def _compile_and_load(compiler: str) -> ctypes.CDLL:
    folder = cache_folder("kernels")
    try:
        return ctypes.CDLL(str(_build(compiler, folder)))
    except OSError as error:
        _log.info("The training kernels can't be kept, so they are compiled for this process alone: %s", error)
    with tempfile.TemporaryDirectory(prefix="boxwright-kernels-") as scratch:  # once loaded, the file is not needed
        return ctypes.CDLL(str(_build(compiler, Path(scratch))))


def find_kernel(kernels: ctypes.CDLL, name: str, x: Tensor) -> Any:
    """Return a kernel for the type of a tensor and its number of channels."""
    lanes = 16 if x.shape[1] % 16 == 0 else 8
    return getattr(kernels, f"{name}_{TYPES[x.dtype]}x{lanes}")


def at(tensor: Tensor | None) -> ctypes.c_void_p:
    """Return the address of a tensor's values."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def fits(x: Tensor) -> bool:
    """Return whether the kernels take a tensor: on the CPU, channels last, in a type and a width that they have."""
    return (
        x.is_cpu
        and type(x) is Tensor  # tracing tensors have no storage
        and x.dtype in TYPES
        and x.numel() > 0
        and x.shape[1] % 8 == 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
    )


def _build(compiler: str, folder: Path) -> Path:
    """Return the library for these sources, this compiler and this CPU, building it on first use."""
    here = Path(__file__).parent
    # The compiler's macros include its version and the instruction sets of this CPU.
    defined = subprocess.run(
        [compiler, *_TARGET, "-dM", "-E", "-x", "c", "/dev/null"],
        capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    ).stdout  # fmt: skip
    digest = hashlib.sha256(repr((FLAGS, _TARGET, defined)).encode())
    for name in SOURCES:
        digest.update((here / name).read_bytes())
    library = folder / f"kernels-{digest.hexdigest()[:16]}.so"
    if is_private(library):  # others may be able to write to the folder, and it is code
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / library.name
        compile_library(compiler, here, built, _TARGET)
        built.chmod(0o700)
        built.replace(library)  # several processes may build at once; the results are equal
    return library
