"""Converting and loading a model for a caller: threads, streams or a hint, and temporary folders."""

import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from boxwright.core.batches import Call
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.optimize.model import OptimizedModel
from boxwright.runtimes.artifact import open_graph, read_artifact, write_artifact
from boxwright.runtimes.autopilot import check_hint, choose
from boxwright.runtimes.base import Choice, Hint, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a loaded model uses the machine: by numbers, or by a hint from which the numbers are chosen."""

    threads: int | None
    hint: Hint | None
    streams: int | None

    def __post_init__(self) -> None:
        given = {"thread_num": self.threads, "streams": self.streams}
        for name, value in given.items():
            if value is not None and value < 1:
                raise UsageError(f"{name}={value!r} is not possible. Use 1 or more, or None.")
            if value is not None and self.hint is not None:
                raise UsageError(f"hint={self.hint!r} chooses {name} itself. Leave out the hint or {name}={value!r}.")
        if self.hint is not None:
            check_hint(self.hint)

    def open(self, folder: Path, method: str = "") -> OptimizedModel:
        """Load an artifact."""
        artifact, arrangement = read_artifact(folder), None
        tuning = Tuning(threads=self.threads, streams=self.streams)
        if self.hint is not None:
            arrangement = choose(read_cpu(), hint=self.hint, runtime=artifact.choice.runtime)
            tuning = arrangement.tuning
        return OptimizedModel(open_graph(artifact, tuning), method=method, folder=folder, arrangement=arrangement)


def convert(
    model: nn.Module,
    call: Call,
    choice: Choice,
    calibration: Calibration | None,
    options: LoadOptions,
    folder: str | Path | None,
) -> OptimizedModel:
    """Convert a model and load it; without a folder, its files are removed with it."""
    target = Path(tempfile.mkdtemp(prefix="boxwright-artifact-")) if folder is None else Path(folder)
    try:
        write_artifact(Source.of(model, *call), choice, target, calibration=calibration)
        made = options.open(target)
    except BaseException:
        if folder is None:
            shutil.rmtree(target, ignore_errors=True)
        raise
    if folder is None:
        remove_with(made, target)
    return made


def remove_with(owner: object, folder: Path) -> "weakref.finalize[..., Any]":
    """Remove a folder when its owner is collected or the program ends; calling the result removes it now."""
    return weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
