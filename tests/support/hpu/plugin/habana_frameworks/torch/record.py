"""What happened on the simulated device, written as JSON at the end of the process for the tests to read."""

import atexit
import json
import os
from pathlib import Path
from typing import Any

import torch

seen: dict[str, Any] = {
    "lazy": False,
    "mark_steps": 0,
    "optimizer_steps": 0,
    "averages": 0,  # calls of the fused operator
    "reads_at_step": [],  # how often the host had read from the device when each optimizer step ended
    "waits_at_step": [],  # and how often it had waited for it, by synchronize()
    "marks_at_step": [],
    "graphs": [],  # the input shapes of each compiled graph
    "graph_breaks": [],
    "collectives": {},
    "variables": {},
}


def start(*, lazy: bool) -> None:
    seen["lazy"] = lazy
    seen["variables"] = {name: value for name, value in os.environ.items() if name.startswith("PT_HPU")}
    folder = os.environ.get("BOXWRIGHT_SIMULATED_HPU_RECORDS")
    if folder:
        atexit.register(_write, Path(folder) / f"{os.getpid()}.json")


def end_step() -> None:
    """Note how things stand at the end of an optimizer step."""
    seen["optimizer_steps"] += 1
    seen["reads_at_step"].append(torch.ops.simulated_hpu.host_reads())
    seen["waits_at_step"].append(torch.ops.simulated_hpu.waits())
    seen["marks_at_step"].append(seen["mark_steps"])


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    seen["averages"] = torch.ops.simulated_hpu.averages()
    seen["rank"] = int(os.environ.get("RANK", "0"))
    path.write_text(json.dumps(seen))
