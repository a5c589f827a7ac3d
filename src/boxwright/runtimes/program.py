"""What the torch-based runtimes share: a model prepared for a choice, exported, saved, and run as a graph."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.core.errors import BoxwrightError, CheckpointError, ConversionError, UsageError
from boxwright.core.signature import Array, Signature
from boxwright.core.types import Precision
from boxwright.devices.chosen import Chosen
from boxwright.runtimes.base import Choice, Graph, Tuning, first_line, one_by_one
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import fold_batch_norms, set_module
from boxwright.runtimes.fused import can_fuse, fuse_activations
from boxwright.runtimes.plain_program import PROGRAM, read_program, write_program
from boxwright.runtimes.rounding import FloatLayer, correct_biases, find_last_layers
from boxwright.runtimes.source import PREFIX, FlatModule, Source, check_names

_OLD = "program.pt2"
_LOW = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
TRACE_INSTEAD = "The accelerator 'jit' traces the model instead."
"""What to try where `torch.export` fails."""


class BorderModule(nn.Module):
    """A flat model in another number format or memory layout, with the original's inputs and outputs."""

    def __init__(self, module: nn.Module, *, dtype: torch.dtype | None = None, channels_last: bool = False) -> None:
        super().__init__()
        self.inner = module
        self.dtype = dtype
        self.channels_last = channels_last

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the inner model's outputs, those in the inner format as float32."""
        outputs = self.inner(*(self._enter(t) for t in tensors))
        return tuple(t.float() if self.dtype is not None and t.dtype == self.dtype else t for t in outputs)

    def _enter(self, tensor: Tensor) -> Tensor:
        if self.dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        if self.channels_last and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor


def prepare(
    source: Source,
    choice: Choice,
    *,
    plain: bool = False,
    fuse: bool = False,
    calibration: Calibration | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """Return a copy of the source's model in the choice's number format and layout, and what was done to it.

    Args:
        source: the model.
        choice: the number format and layout.
        plain: change only the number format.
        fuse: put activations into the convolutions before them (`fused.FusedConv`), where this machine can.
        calibration: in bf16 and fp16, its `keep_float` stays in float32; in bf16 the last layers do too.

    Raises:
        UsageError: `keep_float` names a module that is not there.
    """
    module: nn.Module = source.flat()
    recipe: dict[str, Any] = {}
    dtype = _LOW.get(choice.precision, torch.float32)
    if not plain:
        recipe["folded"] = len(fold_batch_norms(module, source.example))
    if dtype is not torch.float32:
        kept = {}
        if not plain:
            # float16 has digits enough for the last layers, and rounding it does not shift outputs.
            last = find_last_layers(module, source.example) if dtype is torch.bfloat16 else []
            kept = _keep(module, source, last, () if calibration is None else calibration.keep_float)
            recipe["float32"] = [name.removeprefix(PREFIX) for name in kept]
            if dtype is torch.bfloat16:
                recipe["biases_corrected"] = correct_biases(module, source.example, dtype, leave=kept)
        module.to(dtype)
        for name, layer in kept.items():
            set_module(module, name, layer)
    if fuse and can_fuse(dtype):
        rows = [t.to(dtype) if t.is_floating_point() else t for t in source.example]
        recipe["fused"] = fuse_activations(module, rows)
    return settle(module, choice), recipe


def _keep(module: nn.Module, source: Source, last: Sequence[str], more: Sequence[str]) -> dict[str, FloatLayer]:
    """Return copies of the layers that stay in float32: the last ones, whose outputs are not rounded, and others."""
    check_names(more, [name for name, _ in source.model.named_modules()])
    others = [PREFIX + name for name in more if PREFIX + name not in last]
    return {
        **{name: FloatLayer(deepcopy(module.get_submodule(name))) for name in last},
        **{name: FloatLayer(deepcopy(module.get_submodule(name)), rounded=True) for name in others},
    }


def settle(module: nn.Module, choice: Choice) -> nn.Module:
    """Return a flat model in the choice's number format and layout, with the original's inputs and outputs."""
    dtype = _LOW.get(choice.precision)
    if dtype is None and not choice.channels_last:
        return module.eval()
    return BorderModule(module, dtype=dtype, channels_last=choice.channels_last).eval()


def lay_channels_last(module: nn.Module) -> None:
    """Lay the weights of image layers channels last, in place; saved programs do not keep layouts."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def dynamic_shapes(source: Source) -> Any:
    """Return the free axes of a flat module's inputs as `torch.export` takes them; None if all are fixed.

    Only the batch has a name: where sizes must be equal or multiples, the exporter finds that out itself.
    """
    batch = torch.export.Dim("batch") if source.signature.free_batch else torch.export.Dim.AUTO
    shapes = tuple({axis: torch.export.Dim.AUTO if axis else batch for axis in axes} for axes in source.free)
    return (shapes,) if any(shapes) else None


def export_program(source: Source, module: nn.Module) -> torch.export.ExportedProgram:
    """Return the exported program of a flat module, with the axes free that are free in the source.

    Raises:
        ConversionError: the model's code can't be exported.
    """
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    shapes = dynamic_shapes(source)
    try:
        return torch.export.export(
            module, source.roomy() if shapes else source.example, dynamic_shapes=shapes, strict=False
        )
    except Exception as error:  # a user's model may raise anything
        raise ConversionError(
            f"torch.export can't follow the model's code: {first_line(error)} "
            "Control flow that depends on values of tensors, and changes of Python objects, are what it can't keep. "
            f"{TRACE_INSTEAD}"
        ) from error


def save_program(source: Source, module: nn.Module, folder: Path) -> dict[str, Any]:
    """Write the exported program of a flat module, and return an empty recipe."""
    guarded = export_program(source, module).module()
    for node in list(guarded.graph.nodes):
        # The signature checks inputs with better messages; these checks cost time in every call.
        if node.op == "call_module" and node.target == "_guards_fn":
            guarded.graph.erase_node(node)
    write_program(guarded, folder)
    return {}


def load_program(
    folder: Path, change: Callable[[torch.fx.GraphModule], Any] | None = None, *, channels_last: bool = False
) -> torch.fx.GraphModule:
    """Return the operators of a saved program, after `change` has changed them in place; it may fail on a broken file.

    Raises:
        CheckpointError: the file is missing or broken.
    """
    try:
        module = read_program(folder)
        if channels_last:
            lay_channels_last(module)
        if change is not None:
            change(module)
    except BoxwrightError:
        raise
    except Exception as error:  # broken files make the reader raise many kinds
        if (folder / _OLD).is_file():
            raise CheckpointError(
                f"{str(folder / _OLD)!r} is of an older Boxwright, and reading it could run code. "
                "Convert the model again."
            ) from error
        raise CheckpointError(f"{str(folder / PROGRAM)!r} can't be loaded: {first_line(error)}") from error
    return module


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Compute with this number of threads inside a block; None changes nothing."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ModuleGraph:
    """A `Graph` over anything that takes and returns flat tensors."""

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        signature: Signature,
        tuning: Tuning,
        *,
        keep_layout: bool = False,
    ) -> None:
        if tuning.streams not in (None, 1):
            raise UsageError(
                f"streams={tuning.streams!r} does not apply: PyTorch computes one request at a time. "
                "Run several instances instead."
            )
        self.signature = signature
        self._threads = tuning.threads
        self._process = os.getpid()
        self._keep_layout = keep_layout
        self._function: Callable[..., Sequence[Tensor]] | None = function

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for flat inputs."""
        if self._function is None:
            raise CheckpointError("This session is closed. Load the model again.")
        tensors = [as_tensor(a, keep_layout=self._keep_layout) for a in inputs]
        taken = {t.data_ptr() for t in tensors}
        # In a forked child OpenMP would wait forever for threads that only its parent has.
        threads = self._threads if os.getpid() == self._process else 1
        with torch.inference_mode(), torch_threads(threads):
            outputs = [t.float() if t.dtype == torch.bfloat16 else t for t in self._function(*tensors)]
        # The caller owns the outputs: none may share memory with an input.
        return tuple(t.numpy().copy() if t.data_ptr() in taken else t.numpy() for t in outputs)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests, one after the other."""
        return one_by_one(self, requests)

    def close(self) -> None:
        """Release the model."""
        self._function = None


def open_original(source: Source, place: Chosen = Chosen()) -> Graph:  # noqa: B008  it is frozen
    """Return a graph over the source's own model, not converted, as PyTorch runs it on a device."""
    if not place.is_cpu:
        from boxwright.runtimes.device_graph import open_original_on  # which is built on this module

        return open_original_on(source, place)
    return ModuleGraph(FlatModule(source.model, source.signature.call).eval(), source.signature, Tuning())


def as_tensor(array: Array, *, keep_layout: bool) -> Tensor:
    """Return a tensor over an array, or over a copy of one that torch or the model can't take as it is."""
    usable = array.flags.writeable and all(step >= 0 for step in array.strides)
    if not usable or not (keep_layout or array.flags.c_contiguous):
        array = np.array(array, order="C")
    return torch.from_numpy(array)
