"""From what a user calls MODEL to a session: a name, a `.pth`, a safetensors file, an `.onnx`, an artifact folder.

Nothing here imports torch; files that need it are opened by something the catalogue names.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from boxwright.core import catalogue
from boxwright.core.coco_classes import COCO_CATEGORY_IDS, COCO_NAMES
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, UsageError, suggest
from boxwright.core.log import get_logger
from boxwright.core.packages import require
from boxwright.core.spec import OutputForm, Preprocessing, Spec
from boxwright.detector.postprocess import anchor_grid
from boxwright.runtimes.artifact import Artifact, is_artifact, open_graph, read_artifact
from boxwright.runtimes.autopilot import Arrangement, choose
from boxwright.runtimes.base import Hint, Tuning
from boxwright.runtimes.detector import DetectorSession

_log = get_logger(__name__)
_SUFFIXES = (".safetensors", ".pth", ".onnx")
_INSIDE = (".xml", ".bin", ".ts", ".pt2")  # files that run as part of their artifact folder alone
_CHECKPOINTS = (".safetensors", ".pth", ".pt", ".ckpt", ".tar")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What a user may say about a model file that does not say it itself; None leaves it to the file."""

    names: tuple[str, ...] | None = None
    size_hw: tuple[int, int] | None = None
    preprocessing: Preprocessing | None = None
    output: OutputForm | None = None
    activation: str | None = None

    def apply(self, spec: Spec) -> Spec:
        """Return the spec with the user's words in place of the file's.

        Raises:
            UsageError: there are more or fewer names than classes.
        """
        if self.names is not None and len(self.names) != spec.num_classes:
            raise UsageError(f"{len(self.names)} class names were given, but the model has {spec.num_classes} classes.")
        category_ids = spec.category_ids
        if self.names is not None and self.names != spec.names:
            category_ids = ()
        return replace(
            spec,
            names=self.names or spec.names,
            size_hw=self.size_hw or spec.size_hw,
            preprocessing=self.preprocessing or spec.preprocessing,
            output=self.output or spec.output,
            activation=self.activation or spec.activation,
            category_ids=category_ids,
        )


def normalise_name(name: str) -> str:
    """Return the catalogue's spelling of a model name: "yolox-s" is "yolox_s"."""
    return name.lower().replace("-", "_")


def find_model(model: str | Path) -> Path:
    """Return the file or folder that MODEL means; a bare name is looked for in the usual places.

    Raises:
        CheckpointError: there is nothing there; the message says where was looked.
    """
    path = Path(os.path.expanduser(model))
    name = normalise_name(str(model))
    known = catalogue.names("model")
    # A folder of weights may bear the model's name; it is a place to look in then, not the model.
    if os.path.exists(path) and (name not in known or path.is_file() or is_artifact(path)):
        return path
    if name in known:
        places = [Path(), Path(name), Path("weights"), Path("weights") / name, Path("~/.cache/boxwright").expanduser()]
        for place in places:
            for suffix in _SUFFIXES:
                if (place / f"{name}{suffix}").is_file():
                    return place / f"{name}{suffix}"
        raise CheckpointError(
            f"No weights for {name!r} were found. Put {name}.pth, {name}.onnx or {name}.safetensors into one of "
            f"{', '.join(repr(str(p)) for p in places)}, or give the file's path. Nothing is downloaded."
        )
    if path.suffix:
        raise CheckpointError(f"There is no model file at {str(path)!r}. Check the path.")
    raise CheckpointError(
        f"{str(model)!r} is neither a file, nor an artifact folder, nor a model's name.{suggest(name, known)} "
        f"Names: {', '.join(known)}."
    )


def open_model(
    model: str | Path | Artifact, options: ModelOptions | None = None, tuning: Tuning | None = None
) -> DetectorSession:
    """Return a session for MODEL.

    Args:
        model: a name, a file, an artifact folder, or the description of one.
        options: what the user says about it.
        tuning: how a converted model shall use the machine.

    Raises:
        CheckpointError: there is no such model, or its file can't be used.
        MissingDependencyError: the package that runs it is not installed.
        UsageError: an option contradicts the file.
    """
    options = options or ModelOptions()
    if isinstance(model, Artifact):
        return _open_artifact(model, options, tuning)
    path = find_model(model)
    if path.suffix.lower() in _INSIDE and is_artifact(path.parent):
        path = path.parent
    if path.is_dir():
        if not is_artifact(path):
            raise CheckpointError(f"The folder {str(path)!r} holds no artifact.json: it is not an artifact.")
        return _open_artifact(read_artifact(path), options, tuning)
    if path.suffix.lower() == ".onnx":
        refuse(path, act=options.activation)
        require("onnxruntime", extra="onnx", by=f"{path.name!r}")
        from boxwright.tasks.onnx_file import open_onnx

        return open_onnx(path, options, tuning)
    if path.suffix.lower() in _CHECKPOINTS:
        refuse(path, output_form=options.output)
        if tuning not in (None, Tuning()):
            raise UsageError(f"{tuning!r} does not apply to {path.name}, which runs in PyTorch. Convert it first.")
        # Weights alone: torch builds the network around them.
        require("torch", "safetensors", extra="train", by=f"{path.name!r}")
        from boxwright.tasks.checkpoint import open_checkpoint

        return open_checkpoint(path, options)
    if path.suffix.lower() in _INSIDE:
        raise CheckpointError(
            f"{str(path)!r} does not say what it detects, and there is no artifact.json beside it. "
            "Give the whole folder that `boxwright export` wrote."
        )
    raise CheckpointError(
        f"{str(path)!r} is no known kind of model file. Use .pth, .safetensors, .onnx or an artifact folder."
    )


def _open_artifact(artifact: Artifact, options: ModelOptions, tuning: Tuning | None) -> DetectorSession:
    spec, folder = artifact.spec, artifact.folder
    if spec is None:
        raise CheckpointError(
            f"The artifact {str(folder)!r} is not a detector's. Load it with InferenceOptimizer.load(folder)."
        )
    if options.size_hw not in (None, spec.size_hw):
        raise UsageError(f"The artifact's input size is {spec.size_hw!r} and can't be changed.")
    refuse(folder, output_form=options.output, act=options.activation)
    spec = options.apply(spec)
    return DetectorSession(open_graph(artifact, tuning), spec)


def is_converted(path: Path) -> bool:
    """Return whether a model is an artifact or an ONNX file: something that threads and streams can be chosen for."""
    return is_artifact(path) or path.suffix.lower() == ".onnx"


def arrange(model: Path | Artifact, hint: Hint) -> Arrangement:
    """Return how an artifact or an ONNX file should use this machine."""
    if isinstance(model, Path) and is_artifact(model):
        model = read_artifact(model)
    if isinstance(model, Artifact):
        return choose(read_cpu(), hint=hint, runtime=model.choice.runtime)
    return choose(read_cpu(), hint=hint, runtime="onnxruntime", movable=False)


def default_names(num_classes: int, source: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return class names and category ids for a file that has none: COCO's for 80 classes, else numbered ones."""
    if num_classes == len(COCO_NAMES):
        _log.info("%s names no classes; it has 80, so COCO's names are used (--names changes that).", source.name)
        return COCO_NAMES, COCO_CATEGORY_IDS
    _log.warning(
        "%s names no classes; they are called class_0 to class_%d (use --names).", source.name, num_classes - 1
    )
    return tuple(f"class_{i}" for i in range(num_classes)), ()


def parse_names(text: str) -> tuple[str, ...]:
    """Return class names given as "a,b,c" or as a file with one name a line.

    Raises:
        UsageError: there is no name, or one twice, or the file can't be read as text.
    """
    path = os.path.expanduser(text)
    if os.path.isfile(path):
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--names {text!r} can't be read as a text file: {error}") from error
    elif text.endswith((".txt", ".names")):
        raise UsageError(f"--names {text!r}: there is no such file. Check the path, or give the names as a,b,c.")
    else:
        lines = text.split(",")
    names = tuple(line.strip() for line in lines if line.strip())
    doubled = sorted({n for n in names if names.count(n) > 1})
    if not names or doubled:
        raise UsageError(f"--names {text!r} gives {f'{doubled[0]!r} twice' if doubled else 'no name'}.")
    return names


def refuse(path: Path, **options: str | None) -> None:
    """Refuse options that this kind of file leaves no room for."""
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')} {value!r}"
            raise UsageError(f"{option} does not apply to {path.name}, where that is settled. Leave it out.")


def guess_form(output: "np.ndarray[tuple[int, int], np.dtype[np.float32]]", size_hw: Sequence[int]) -> OutputForm:
    """Return the form of an output (A, 5 + C), told by its values.

    Raw objectness is a logit and mostly below 0. Decoded centres lie near their cells, hundreds of pixels apart;
    raw ones are offsets of a few cells at most.
    """
    grid, step = anchor_grid((int(size_hw[0]), int(size_hw[1])), (8, 16, 32))
    scores = output[:, 4:]
    if scores.min() < 0 or scores.max() > 1:
        return "raw"
    off_by = np.abs(output[:, :2] - (grid + 0.5) * step)
    as_offset = np.abs(output[:, :2]) * step
    return "decoded" if np.median(off_by) < np.median(as_offset) else "scores"
