"""PyTorch's own static int8: oneDNN's int8 kernels run one by one, no compiler anywhere."""

from pathlib import Path
from typing import Any

from boxwright.core.signature import Signature
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.onednn import lower_to_onednn
from boxwright.runtimes.program import ModuleGraph, check_offer, load_program, save_program
from boxwright.runtimes.quantized import quantize
from boxwright.runtimes.source import Source


class Int8Runtime:
    """Keeps the quantised program in one file; the weights are packed for this machine when it is loaded."""

    name = "int8"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the quantised program."""
        check_offer(choice, calibration, precisions=(Precision.INT8,))
        assert calibration is not None
        module, recipe = quantize(source, choice, calibration)
        return recipe | save_program(source, module, folder)

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> ModuleGraph:
        """Return a graph over the program's operators."""
        module = load_program(folder, channels_last=choice.channels_last)
        lower_to_onednn(module)
        return ModuleGraph(module, signature, tuning, keep_layout=choice.channels_last)
