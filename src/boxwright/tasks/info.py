"""Size, cost and classes of a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.core import catalogue
from boxwright.core.coco_classes import COCO_NAMES
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.packages import missing_packages
from boxwright.core.spec import Spec
from boxwright.detector.sizes import SIZES
from boxwright.runtimes.artifact import is_artifact, read_artifact
from boxwright.tasks.models import ModelOptions, describe_artifact, find_model, normalise_name, open_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Parameters and operations of a network; None where unknown."""

    parameters: int | None = None
    gflops: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The facts about a model; None where the file does not have them."""

    source: str
    kind: str
    spec: Spec
    cost: Cost
    file_mb: float | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {
            "source": self.source,
            "kind": self.kind,
            "parameters": self.cost.parameters,
            "gflops": None if self.cost.gflops is None else round(self.cost.gflops, 3),
            "file_mb": None if self.file_mb is None else round(self.file_mb, 2),
            "num_classes": self.spec.num_classes,
            **self.spec.to_dict(),
            "note": self.note,
        }

    def lines(self) -> list[str]:
        """Return the facts as lines of text."""
        height, width = self.spec.size_hw
        cost, names = self.cost, self.spec.names
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return [
            f"model        {self.spec.model or 'not stated'} ({self.kind}: {self.source})",
            f"parameters   {'not available' if cost.parameters is None else f'{cost.parameters:,}'}",
            f"GFLOPs       {'not available' if cost.gflops is None else f'{cost.gflops:.2f}'} at {height}x{width}",
            f"file         {'none' if self.file_mb is None else f'{self.file_mb:.2f} MB'}",
            f"classes      {len(names)}: {shown}",
            f"input        {self.spec.preprocessing}, {height}x{width} (height x width)",
            f"output       {self.spec.output}, {self.spec.num_anchors} rows",
            *([f"note         {self.note}"] if self.note else []),
        ]


def describe(model: str | Path, options: ModelOptions | None = None) -> ModelInfo:
    """Return the facts about MODEL; for a name without weights, those of the architecture.

    Raises:
        CheckpointError: there is no such model, or its file can't be used.
        UsageError: an option contradicts the file.
    """
    options = options or ModelOptions()
    name = normalise_name(str(model))
    try:
        path = find_model(model)
    except CheckpointError:
        if name not in catalogue.names("model"):
            raise
        return _describe_name(name, options)
    if is_artifact(path):
        spec = describe_artifact(read_artifact(path), options)  # reads the description and the hashes, loads nothing
    else:
        session = open_model(path, options)
        spec = session.spec
        session.close()
    files = [path] if path.is_file() else [p for p in path.iterdir() if p.is_file()]
    kind = "artifact" if path.is_dir() else "onnx" if path.suffix.lower() == ".onnx" else "checkpoint"
    cost = _network_cost(spec) if spec.model in SIZES else Cost()  # a file may name any network
    onnx_files = [p for p in files if p.suffix.lower() == ".onnx"]
    if cost.parameters is None and onnx_files:
        cost = _onnx_cost(onnx_files[0])
    note = "" if cost.gflops is not None else "GFLOPs are counted on the network: that needs torch and the weights file"
    size = sum(p.stat().st_size for p in files)
    return ModelInfo(source=str(path), kind=kind, spec=spec, cost=cost, file_mb=size / 1e6, note=note)


def _describe_name(name: str, options: ModelOptions) -> ModelInfo:
    if options.output is not None:
        raise UsageError(f"--output-form {options.output!r} does not apply to the name {name!r}. Leave it out.")
    size = SIZES[name]
    names = options.names or COCO_NAMES
    spec = options.apply(Spec(model=name, names=names, size_hw=size.input_hw, activation=size.act))
    return ModelInfo(
        source=name,
        kind="name",
        spec=spec,
        cost=_network_cost(spec),
        file_mb=None,
        note="no weights: the architecture alone",
    )


def _network_cost(spec: Spec) -> Cost:
    if missing_packages(["torch"]):
        return Cost()
    from boxwright.tasks.checkpoint import measure_cost

    return measure_cost(spec)


def _onnx_cost(path: Path) -> Cost:
    if missing_packages(["onnx"]):
        return Cost()
    from boxwright.tasks.onnx_file import measure_cost

    return measure_cost(path)
