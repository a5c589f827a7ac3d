"""Graphs on a device: the program as plain data, captured when it runs. Loading compiles nothing on CUDA."""

from pathlib import Path
from typing import Any

from boxwright.core import catalogue
from boxwright.core.signature import Signature
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Graph, Tuning, check_offer
from boxwright.runtimes.buckets import in_buckets
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.device_graph import DeviceGraph, move_program, open_place
from boxwright.runtimes.program import load_program, prepare, save_program
from boxwright.runtimes.source import Source

_MODES = dict.fromkeys((Precision.FP32, Precision.FP16, Precision.BF16), ("",))


class GraphRuntime:
    """Stores operators and weights in one file, and runs them on a device as one graph for each of a few batch sizes.

    A CUDA device replays a CUDA graph; a Gaudi compiles. On the CPU the operators run one by one, for tests.
    """

    name = "graph"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the exported program."""
        devices = catalogue.names("device")
        check_offer(choice, calibration, modes=_MODES, channels_last=False, devices=devices)
        open_place(choice.device, 0)  # before the work
        module, recipe = prepare(source, choice, calibration=calibration)
        return recipe | save_program(source, module, folder)

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> Graph:
        """Return a graph over the program's operators on the device."""
        device, place = open_place(choice.device, tuning.number)
        module = move_program(load_program(folder), place)
        graph = DeviceGraph(module, signature, tuning, device, place, precision=choice.precision)
        return in_buckets(graph, threads=tuning.streams or 2)
