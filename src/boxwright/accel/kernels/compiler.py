"""How the C kernels are compiled: for the machine at hand, or for a wheel. The standard library alone is needed."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCES = ("kernels.c", "vectors.inc", "norm_silu.inc", "depthwise.inc", "patches.inc")
"""The files that the library is made from; the first is compiled and includes the others."""

# -fno-math-errno and -fno-trapping-math change no value; they let the compiler use vectors.
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-fopenmp")
"""The compiler's flags besides those that choose the instruction set."""

TIMEOUT_S = 120

_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

VARIANTS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "x86-64-v4-bf16": (("-march=x86-64-v4", "-mavx512bf16"), _V4 | {"avx512_bf16"}),
    "x86-64-v4": (("-march=x86-64-v4",), _V4),
    "x86-64-v3": (("-march=x86-64-v3",), _V3),
}
"""What a wheel carries, the fastest first: the flags that choose the instruction set, and Linux's names for what the
processor must have."""


def compile_library(
    compiler: str, sources: Path, library: Path, target: Sequence[str], *, timeout_s: float | None = TIMEOUT_S
) -> None:
    """Compile the kernels into a shared library.

    Args:
        compiler: GCC or Clang.
        sources: the folder of the sources.
        library: the file to write; an object file is left beside it.
        target: the flags that choose the instruction set.
        timeout_s: how long the compiler may take; None for as long as it needs.

    Raises:
        subprocess.SubprocessError: the compiler fails or takes too long.
        OSError: the compiler can't be started.
    """
    objects = library.with_suffix(".o")
    compile_ = [compiler, *FLAGS, *target, "-c", str(sources / SOURCES[0]), "-o", str(objects)]
    # Linked without -fopenmp, so that OpenMP's functions and threads are those of the library that torch has loaded. A
    # second OpenMP in the process would compete for the cores.
    link = [compiler, "-shared", str(objects), "-o", str(library), "-lm"]
    for command in (compile_, link):
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout_s)
