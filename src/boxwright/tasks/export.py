"""`boxwright export`: write a detector in another format, compared with the original before it is put in place."""

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from boxwright.core import catalogue
from boxwright.core.errors import ConversionError, UsageError, check_choice
from boxwright.core.packages import require
from boxwright.core.spec import OutputForm, Spec
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration, describe_int8
from boxwright.runtimes.export import OneOutput
from boxwright.runtimes.parity import BOUNDS
from boxwright.runtimes.source import Source
from boxwright.tasks.checkpoint import read_checkpoint
from boxwright.tasks.export_check import STEP, Comparison, Suppression, compare, compare_suppression, tried_sizes
from boxwright.tasks.images import ImageInputs, find_images
from boxwright.tasks.models import WEIGHTS, ModelOptions, find_model

FORMATS = {"onnx": "", "openvino": "openvino", "torchscript": "jit", "aotinductor": "compile", "tensorrt": ""}
"""Each format and the runtime that writes its artifact folder; "" for a single ONNX file."""

_SUFFIXES = {"onnx": ".onnx", "tensorrt": ".trt.onnx"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """What is written.

    Attributes:
        format: a name out of `FORMATS`.
        decode: boxes in pixels and scores from 0 to 1 instead of raw outputs.
        suppression: end with non-maximum suppression (ONNX only).
        dynamic: let height and width be any multiple of 32 (ONNX only).
        batch: a fixed batch size; None for any.
        precision: the number format.
        mode: the kind of int8 in ONNX: "qlinear" (static, needs calibration images) or "integer" (dynamic).
        calibration: a folder of images or a labelled set, for int8.
        options: what the user says about the weights.
    """

    format: str = "onnx"
    decode: bool = False
    suppression: Suppression | None = None
    dynamic: bool = False
    batch: int | None = None
    precision: Precision = Precision.FP32
    mode: str = ""
    calibration: Path | None = None
    options: ModelOptions = field(default_factory=ModelOptions)

    def __post_init__(self) -> None:
        check_choice("format", self.format, FORMATS)
        for name, given in (("--nms", self.suppression is not None), ("--dynamic", self.dynamic)):
            if given and self.format != "onnx":
                raise UsageError(f"{name} applies only to format 'onnx', not to {self.format!r}. Leave it out.")
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"batch={self.batch!r} must be at least 1.")
        if self.calibration is not None and self.precision is not Precision.INT8:
            raise UsageError("Calibration images are for precision 'int8'. Leave them out, or choose int8.")
        if self.mode and (self.format != "onnx" or self.precision is not Precision.INT8):
            raise UsageError(f"mode={self.mode!r} applies only to format 'onnx' with precision 'int8'. Leave it out.")
        offered = {"onnx": (Precision.FP32, Precision.INT8), "tensorrt": (Precision.FP32, Precision.FP16)}
        if self.precision not in offered.get(self.format, tuple(Precision)):
            raise UsageError(
                f"Format {self.format!r} is not written with precision {str(self.precision)!r}. "
                f"Use {' or '.join(offered[self.format])}."
            )
        if self.mode:
            check_choice("mode", self.mode, ("qlinear", "integer"))
        needs_images = self.precision is Precision.INT8 and self.mode != "integer"
        if needs_images and self.calibration is None:
            raise UsageError("Precision 'int8' needs images of your own data. Give them with --calibration PATH.")

    @property
    def form(self) -> OutputForm:
        """How far the outputs are decoded."""
        return "decoded" if self.decode or self.suppression is not None else "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The written file or folder, and its comparison with the original."""

    path: Path
    format: str
    precision: Precision
    spec: Spec
    size_mb: float
    checks: tuple[Comparison, ...]
    bound: float
    recipe: dict[str, Any]

    @property
    def form(self) -> str:
        """How far the outputs are decoded: "raw", "decoded" or "suppressed"."""
        return "suppressed" if "suppression" in self.recipe else self.spec.output

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "path": str(self.path),
            "format": self.format,
            "precision": str(self.precision),
            "size_mb": round(self.size_mb, 3),
            "output": self.form,
            "distance": max(c.distance for c in self.checks),
            "bound": self.bound,
            "checks": [asdict(c) for c in self.checks],
            "recipe": self.recipe,
        }

    def lines(self) -> list[str]:
        """Return lines to print."""
        compared = [f"{c.batch}x{c.size_hw[0]}x{c.size_hw[1]}: {c.distance:.2g}" for c in self.checks]
        quantised = [f"int8       {describe_int8(self.recipe)}"] if self.precision is Precision.INT8 else []
        return [
            f"written    {self.path} ({self.size_mb:.2f} MB)",
            f"format     {self.format}, precision {self.precision}, output {self.form}",
            f"compared   {', '.join(compared)} away from the original (allowed: {self.bound:g})",
            *quantised,
        ]


def export(model: str | Path, out: Path | None = None, config: ExportConfig | None = None) -> Exported:
    """Write a detector in another format, compare it with the original, and return what was written.

    The file is written beside its target and renamed at the end: a failure leaves nothing behind.

    Raises:
        UsageError: the target exists, or the options don't go together.
        CheckpointError: the model is not a weights file, or is broken.
        ConversionError: it can't be converted, or what was written does not agree with the original.
    """
    config = config or ExportConfig()
    path = find_model(model)
    if path.is_dir() or path.suffix.lower() not in WEIGHTS:
        raise UsageError(f"{str(path)!r} is converted already. Export the weights it came from (.pth or .safetensors).")
    precision = "" if config.precision is Precision.FP32 else f"_{config.precision}"
    target = out or Path(f"{path.stem}{precision}{_SUFFIXES.get(config.format, f'_{config.format}')}")
    if target.exists():
        raise UsageError(f"{str(target)!r} exists already. Choose another --out, or move it away.")
    if not target.name.lower().endswith(_SUFFIXES.get(config.format, "")):
        raise UsageError(f"--out {str(target)!r} must end in {_SUFFIXES[config.format]}.")
    network, spec = read_checkpoint(path, config.options)
    spec = replace(spec, output=config.form)
    whole = OneOutput(network, config.form, spec.strides)
    batch = config.batch or 1
    images = ImageInputs(find_images(config.calibration) if config.calibration else [], spec, batch=batch)
    example = np.zeros((batch, 3, *spec.size_hw), np.float32)
    source = Source.of(whole, (example,), free_batch=config.batch is None and config.format != "tensorrt")
    calibration = Calibration(samples=images) if images.paths else None
    specs = tried_sizes(spec, dynamic=config.dynamic)
    parent = next(folder for folder in target.absolute().parents if folder.is_dir())
    # On the target's disk, so that the draft can be renamed.
    with TemporaryDirectory(prefix=f".{target.name}.", dir=parent) as folder:
        scratch = Path(folder)
        draft = scratch / target.name
        if config.format == "onnx":
            recipe = _write_onnx(source, spec, draft, config, calibration)
        elif config.format == "tensorrt":
            recipe = _write_onnx(source, spec, scratch / "plain.onnx", config, None)
            half = config.precision is Precision.FP16
            recipe |= catalogue.load("exporter", "tensorrt")(scratch / "plain.onnx", draft, half=half)
        else:
            choice = Choice(runtime=FORMATS[config.format], precision=config.precision)
            golden = [images.stack(0, batch)]
            artifact = write_artifact(source, choice, draft, spec=spec, calibration=calibration, golden=golden)
            recipe = dict(artifact.recipe)
        checks = compare(draft, source, specs, images, config.batch)
        bound = BOUNDS[config.precision]
        worst = max(checks, key=lambda c: c.distance)
        if not worst.distance <= bound:
            raise ConversionError(
                f"The {config.format} file is {worst.distance:.3g} away from the original for a batch of {worst.batch} "
                f"at {worst.size_hw!r} (allowed: {bound:g}). Nothing was written."
            )
        if config.suppression is not None:
            decoded = draft.rename(scratch / f"decoded-{draft.name}")
            recipe["suppression"] = asdict(config.suppression)
            require("onnx", extra="export", by="--nms")
            from boxwright.runtimes.onnx_nms import suppress_file

            suppress_file(decoded, draft, **recipe["suppression"])
            compare_suppression(decoded, draft, specs, config.suppression, images)
            decoded.unlink()
        size_mb = sum(p.stat().st_size for p in scratch.rglob("*") if p.is_file()) / 1e6
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(draft, target)
    return Exported(
        path=target,
        format=config.format,
        precision=config.precision,
        spec=spec,
        size_mb=size_mb,
        checks=tuple(checks),
        bound=bound,
        recipe=recipe,
    )


def _write_onnx(
    source: Source, spec: Spec, path: Path, config: ExportConfig, calibration: Calibration | None
) -> dict[str, Any]:
    recipe: dict[str, Any] = catalogue.load("exporter", "onnx")(
        source, path, size_step=STEP if config.dynamic else None, metadata={"boxwright": json.dumps(spec.to_dict())}
    )
    if config.precision is Precision.INT8:
        quantize = catalogue.load("quantizer", f"onnx_{config.mode or 'qlinear'}")
        recipe["quantisation"] = quantize(path, path, source, calibration)
    return recipe
