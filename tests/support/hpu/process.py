"""Runs programs on the simulated HPU, each in a process of its own: torch keeps a device for good once it is loaded."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.hpu.build import library

_HERE = Path(__file__).parent
_TESTS = _HERE.parents[1]
_WAIT_S = 300


@dataclass(frozen=True)
class Finished:
    """How a program ended: its exit code, what it said, and what happened on the device, one record a process."""

    code: int
    out: str
    err: str
    records: tuple[dict[str, Any], ...]

    @property
    def workers(self) -> list[dict[str, Any]]:
        """The records of the processes that trained, by rank."""
        return sorted((r for r in self.records if r["optimizer_steps"]), key=lambda r: int(r["rank"]))


def run_on_hpu(
    *arguments: object, folder: Path, cards: int = 8, variables: Mapping[str, str] | None = None
) -> Finished:
    """Run `python ARGUMENTS` in a folder, on a machine with so many simulated cards."""
    records = folder / ".records"
    more = {
        "PYTHONPATH": os.pathsep.join([str(_HERE / "plugin"), str(_TESTS), os.environ.get("PYTHONPATH", "")]),
        "BOXWRIGHT_SIMULATED_HPUS": str(cards),
        "BOXWRIGHT_SIMULATED_HPU_LIBRARY": str(library()),
        "BOXWRIGHT_SIMULATED_HPU_RECORDS": str(records),
    }
    code, out, err = _run(arguments, folder, {**more, **(variables or {})})
    found = [json.loads(file.read_text()) for file in sorted(records.glob("*.json"))] if records.exists() else []
    return Finished(code, out, err, tuple(found))


def run_on_cpu(*arguments: object, folder: Path) -> Finished:
    """Run `python ARGUMENTS` with PyTorch's own operators only, to compare with."""
    # Without a C compiler on the path, training does without our own kernels, which round a little differently.
    return Finished(*_run(arguments, folder, {"PATH": ""}), records=())


def _run(arguments: Sequence[object], folder: Path, variables: Mapping[str, str]) -> tuple[int, str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=env, capture_output=True, text=True, timeout=_WAIT_S
    )
    return done.returncode, done.stdout, done.stderr
