"""Intel's extension for PyTorch, if a fitting release is installed. 2.8 was its last; torch has its optimisations."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from boxwright.core.log import get_logger
from boxwright.core.types import Precision

_log = get_logger(__name__)


def decide(wanted: bool) -> bool:
    """Return whether to use the extension; if it can't be used, log what happens instead."""
    if not wanted:
        return False
    ours = ".".join(version("torch").split("+")[0].split(".")[:2])
    try:
        theirs = ".".join(version("intel-extension-for-pytorch").split("+")[0].split(".")[:2])
    except PackageNotFoundError:
        theirs = ""
    # Importing a release for another torch kills the interpreter, so compare the versions first.
    if theirs == ours:
        return True
    why = f"is {theirs} and does not fit torch {ours}" if theirs else "is not installed"
    _log.info("use_ipex: Intel's extension %s; stock PyTorch does the same: channels last, oneDNN fusion, bf16.", why)
    return False


def optimize(model: nn.Module, optimizers: list[Optimizer], precision: Precision) -> nn.Module:
    """Return the model as the extension prepares it for training, in place."""
    extension: Any = import_module("intel_extension_for_pytorch")
    dtype = torch.bfloat16 if precision in (Precision.BF16, Precision.BF16_TRUE) else torch.float32
    if not optimizers:
        prepared: nn.Module = extension.optimize(model, dtype=dtype, inplace=True)
        return prepared
    prepared, _ = extension.optimize(model, optimizer=optimizers[0], dtype=dtype, inplace=True)
    return prepared
