"""Loads the device, or refuses as the real plugin does."""

import os
import sys

import torch

from habana_frameworks.torch import record

# The real plugin compares torch's minor version with the one it was built for.
built_for = os.environ.get("BOXWRIGHT_SIMULATED_HPU_TORCH", torch.__version__)
if built_for.split(".")[:2] != torch.__version__.split(".")[:2]:
    raise AssertionError(
        f"Error: Compile-time major/minor PyTorch version {built_for} differs from {torch.__version__}."
    )

LAZY = os.environ.get("PT_HPU_LAZY_MODE", "0") == "1"

torch.ops.load_library(os.environ["BOXWRIGHT_SIMULATED_HPU_LIBRARY"])

from habana_frameworks.torch import hpu  # noqa: E402 - it needs the library

torch._register_device_module("hpu", hpu)
sys.modules.setdefault("torch.hpu", hpu)

from habana_frameworks.torch import compiling  # noqa: E402, F401 - registers the back end

record.start(lazy=LAZY)
