"""PyTorch without a compiler: operators run one by one, in float or int8."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.signature import Port, Signature
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning, check_offer
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.detector import DetectorSession
from boxwright.runtimes.fused import fuse_program
from boxwright.runtimes.onednn import lower_to_onednn
from boxwright.runtimes.program import ModuleGraph, load_program, prepare, save_program
from boxwright.runtimes.quantized import quantize
from boxwright.runtimes.source import Source

_MODES = dict.fromkeys((Precision.FP32, Precision.BF16), ("", "plain"))


def open_network(
    model: nn.Module,
    spec: Spec,
    *,
    device: torch.device | None = None,
    batch: int | None = None,
    threads: int | None = None,
) -> DetectorSession:
    """Return a session over a detector as PyTorch runs it, not converted.

    Args:
        model: the network; it is put in evaluation mode and its weights are laid channels last.
        spec: what it detects.
        device: where it runs (default: the CPU).
        batch: run batches of this size only (default: any size).
        threads: computing threads (default: as many as torch uses in this process).
    """
    place = device or torch.device("cpu")
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    # The images come channels last; weights in the same layout save a copy at every convolution.
    model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in torch's stubs

    def run(images: Tensor) -> tuple[Tensor]:
        return (torch.cat(tuple(model(images.to(place, dtype))), dim=2).float().cpu(),)

    images = Port(name="images", dtype="float32", shape=(batch, 3, None, None))
    output = Port(name="output", dtype="float32", shape=(batch, None, 5 + spec.num_classes))
    call, result = {"tuple": [{"tuple": [{"leaf": 0}]}, {"dict": {}}]}, {"leaf": 0}
    signature = Signature(inputs=(images,), outputs=(output,), call=call, result=result)
    return DetectorSession(ModuleGraph(run, signature, Tuning(threads=threads), keep_layout=True), spec)


class EagerRuntime:
    """Stores operators and weights in one file, and runs them one by one.

    Mode "" folds batch norms into the convolutions before them, and runs activations in the convolutions' kernels;
    "plain" changes nothing.
    """

    name = "eager"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the exported program."""
        check_offer(choice, calibration, modes=_MODES)
        module, recipe = prepare(source, choice, plain=choice.mode == "plain", calibration=calibration)
        return recipe | save_program(source, module, folder)

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> ModuleGraph:
        """Return a graph over the program's operators."""
        change = None if choice.mode == "plain" else fuse_program
        module = load_program(folder, change, channels_last=choice.channels_last)
        return ModuleGraph(module, signature, tuning, keep_layout=choice.channels_last)


class Int8Runtime:
    """Static int8 on oneDNN's kernels, run one by one; loading packs the weights for this machine."""

    name = "int8"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the quantised program."""
        check_offer(choice, calibration, modes={Precision.INT8: ("",)})
        assert calibration is not None
        module, recipe = quantize(source, choice, calibration)
        return recipe | save_program(source, module, folder)

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> ModuleGraph:
        """Return a graph over the program's operators."""
        module = load_program(folder, lower_to_onednn, channels_last=choice.channels_last)
        return ModuleGraph(module, signature, tuning, keep_layout=choice.channels_last)
