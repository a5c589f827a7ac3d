"""`boxwright export`: write a detector in another format, compared with the original before it is put in place."""

import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core import catalogue
from boxwright.core.errors import ConversionError, UsageError, check_choice
from boxwright.core.files import writing
from boxwright.core.packages import require
from boxwright.core.spec import OutputForm, Spec
from boxwright.core.types import Precision
from boxwright.detector.postprocess import postprocess
from boxwright.devices.chosen import CPU, check_device, find_device
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice, Session
from boxwright.runtimes.calibrate import Calibration, describe_int8
from boxwright.runtimes.onnx_export import OneOutput
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.source import Source
from boxwright.runtimes.trust import hash_file, record
from boxwright.tasks.checkpoint import read_checkpoint
from boxwright.tasks.images import ImageInputs, find_images
from boxwright.tasks.models import WEIGHTS, ModelOptions, find_model, open_model

FORMATS = {"onnx": "", "openvino": "openvino", "torchscript": "jit", "aotinductor": "compile", "tensorrt": ""}
"""Each format and the runtime that writes its artifact folder; "" for a single ONNX file."""

_SUFFIXES = {"onnx": ".onnx", "tensorrt": ".trt.onnx"}
_STEP = 32  # the input size is a multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One comparison with the original: the distance of boxes, objectness and classes (see `parity.distance`)."""

    batch: int
    size_hw: tuple[int, int]
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Non-maximum suppression inside the file, with the maximum number of boxes."""

    conf: float = 0.25
    nms: float = 0.45
    max_boxes: int = 300

    def __post_init__(self) -> None:
        for name, value in (("conf", self.conf), ("nms", self.nms)):
            if not 0 <= value <= 1:
                raise UsageError(f"{name}={value!r} must lie between 0 and 1.")
        if self.max_boxes < 1:
            raise UsageError(f"max_boxes={self.max_boxes!r} must be at least 1.")


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
        allow_outside: also read files that the set names outside of its folder.
        options: what the user says about the weights.
        device: what a compiled package is for: "cpu", another device, or "auto".
    """

    format: str = "onnx"
    decode: bool = False
    suppression: Suppression | None = None
    dynamic: bool = False
    batch: int | None = None
    precision: Precision = Precision.FP32
    mode: str = ""
    calibration: Path | None = None
    allow_outside: bool = False
    options: ModelOptions = field(default_factory=ModelOptions)
    device: str = CPU

    def __post_init__(self) -> None:
        check_device(self.device)
        if self.device != CPU and self.format != "aotinductor":
            raise UsageError(
                f"device={self.device!r} is for format 'aotinductor'. An ONNX file runs anywhere (predict --device); "
                "`boxwright optimize --device` tries the others."
            )
        check_choice("format", self.format, FORMATS)
        for name, given in (("--nms", self.suppression is not None), ("--dynamic", self.dynamic)):
            if given and self.format != "onnx":
                raise UsageError(f"{name} applies only to format 'onnx', not to {self.format!r}. Leave it out.")
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"batch={self.batch!r} must be at least 1.")
        if self.calibration is not None and self.precision is not Precision.INT8:
            raise UsageError("Calibration images are for precision 'int8'. Leave them out, or choose int8.")
        if self.allow_outside and self.calibration is None:
            raise UsageError("--allow-outside is about the set of calibration images. Leave it out.")
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
    paths = find_images(config.calibration, allow_outside=config.allow_outside) if config.calibration else []
    images = ImageInputs(paths, spec, batch=batch)
    example = np.zeros((batch, 3, *spec.size_hw), np.float32)
    source = Source.of(whole, (example,), free_batch=config.batch is None and config.format != "tensorrt")
    calibration = Calibration(samples=images) if images.paths else None
    specs = tried_sizes(spec, dynamic=config.dynamic)
    parent = next(folder for folder in target.absolute().parents if folder.is_dir())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"Nothing can be written to {str(parent)!r}: permission denied. Name another place with --out."
        )
    # On the target's disk, so that the draft can be renamed.
    with TemporaryDirectory(prefix=f".{target.name}.", dir=parent) as folder, writing(target):
        scratch = Path(folder)
        draft = scratch / target.name
        if config.format == "onnx":
            recipe = _write_onnx(source, spec, draft, config, calibration)
        elif config.format == "tensorrt":
            recipe = _write_onnx(source, spec, scratch / "plain.onnx", config, None)
            half = config.precision is Precision.FP16
            recipe |= catalogue.load("exporter", "tensorrt")(scratch / "plain.onnx", draft, half=half)
            record(hash_file(draft))
        else:
            runtime, place = FORMATS[config.format], find_device(config.device)
            choice = Choice(runtime=runtime, precision=config.precision, device=place.name)
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
        source, path, size_step=_STEP if config.dynamic else None, metadata={"boxwright": json.dumps(spec.to_dict())}
    )
    if config.precision is Precision.INT8:
        quantize = catalogue.load("quantizer", f"onnx_{config.mode or 'qlinear'}")
        recipe["quantisation"] = quantize(path, path, source, calibration)
    return recipe


def tried_sizes(spec: Spec, *, dynamic: bool) -> list[Spec]:
    """Return the spec at each size to compare: the usual one, and others where the file takes any."""
    if not dynamic:
        return [spec]
    height, width = spec.size_hw
    others = [(height + _STEP, width + 2 * _STEP), (max(_STEP, height // 2 // _STEP * _STEP), width)]
    return [spec, *(replace(spec, size_hw=size_hw) for size_hw in others)]


def compare(
    path: Path, source: Source, specs: Sequence[Spec], images: ImageInputs, batch: int | None
) -> list[Comparison]:
    """Return how far a written file or folder is from the original, at each size, for one image and for several."""
    found = []
    for spec in specs:
        with closing(_open(path, spec)) as session:
            for count in sorted({1, batch or 3}):
                given = images.stack(0, count, spec)
                wanted = np.concatenate([source.run([given[i : i + 1]])[0] for i in range(count)])
                away = distance(_parts(session(given)), _parts(wanted))
                found.append(Comparison(batch=count, size_hw=spec.size_hw, distance=away))
    return found


def compare_suppression(
    decoded: Path, suppressed: Path, specs: Sequence[Spec], keep: Suppression, images: ImageInputs
) -> None:
    """Compare the boxes that the suppression inside a file leaves with those that our own leaves.

    Raises:
        ConversionError: they differ.
    """
    for spec in specs:
        form: dict[str, Any] = {"size_hw": spec.size_hw, "strides": spec.strides, "form": "decoded", "conf": keep.conf}
        with closing(_open(decoded, spec)) as before, closing(_open(suppressed, spec)) as after:
            given = images.stack(0, 2, spec)
            for all_boxes, left in zip(before(given), after(given), strict=True):
                boxes, scores, classes = postprocess(all_boxes, nms=keep.nms, **form)
                above = min(keep.max_boxes, int((scores > 0).sum()))  # the file pads with scores of 0
                expected = [a[:above] for a in (boxes, scores, classes)]
                found = postprocess(left, nms=1.0, **form)
                if not _agree(expected, found):
                    raise ConversionError(
                        f"The suppression in the file leaves {len(found[1])} boxes at {spec.size_hw!r}, which are not "
                        f"the {len(expected[1])} expected. Nothing was written."
                    )


def _agree(expected: Sequence[NDArray[Any]], found: Sequence[NDArray[Any]]) -> bool:
    """Return whether boxes, scores and classes agree, except for one in a hundred.

    Two boxes whose overlap equals the threshold may go either way.
    """
    boxes, scores, classes = (
        np.abs(a[:, None].astype(np.float64) - b[None].astype(np.float64)) for a, b in zip(expected, found, strict=True)
    )
    same = (boxes.max(axis=2, initial=0) < 0.1) & (scores < 1e-3) & (classes == 0)
    alone = int((~same.any(axis=1)).sum() + (~same.any(axis=0)).sum())
    return alone <= (len(expected[1]) + len(found[1])) // 100


def _open(path: Path, spec: Spec) -> Session:
    return open_model(path, ModelOptions(size_hw=spec.size_hw), trust=True)  # it was made just now


def _parts(output: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return boxes, objectness and classes separately: boxes in pixels would hide any error of the scores."""
    return [output[..., :4], output[..., 4:5], output[..., 5:]]
