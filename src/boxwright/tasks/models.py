"""MODEL on the command line to a session: a name, a `.pth`, a safetensors file, an `.onnx` or an artifact folder.

Torch is imported only for files that need it.
"""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from boxwright.core import catalogue
from boxwright.core.coco_classes import COCO_CATEGORY_IDS, COCO_NAMES
from boxwright.core.cpu import read_cpu
from boxwright.core.environment import cache_folder
from boxwright.core.errors import CheckpointError, UsageError, suggest
from boxwright.core.files import require_file
from boxwright.core.log import get_logger
from boxwright.core.packages import require
from boxwright.core.spec import OutputForm, Preprocessing, Spec
from boxwright.devices.chosen import AUTO, Chosen, find_device, list_shown
from boxwright.runtimes.artifact import Artifact, is_artifact, open_graph, place_artifact, read_artifact
from boxwright.runtimes.autopilot import Arrangement, choose, choose_beside
from boxwright.runtimes.base import Hint, Tuning
from boxwright.runtimes.detector import DetectorSession
from boxwright.runtimes.trust import check_files, hash_code

_log = get_logger(__name__)
_SUFFIXES = (".safetensors", ".pth", ".onnx")
_INSIDE = (".xml", ".bin", ".ts", ".pt2")  # files that run only as part of their artifact folder
WEIGHTS = (".safetensors", ".pth", ".pt", ".ckpt", ".tar")
"""Suffixes of files that hold weights without a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What a user may add to or change in a model file's description; None leaves it to the file."""

    names: tuple[str, ...] | None = None
    size_hw: tuple[int, int] | None = None
    preprocessing: Preprocessing | None = None
    output: OutputForm | None = None
    activation: str | None = None

    def apply(self, spec: Spec) -> Spec:
        """Return the spec with the user's values in place of the file's.

        Raises:
            UsageError: there are more or fewer names than classes.
        """
        if self.names is not None and len(self.names) != spec.num_classes:
            raise UsageError(f"{len(self.names)} class names were given, but the model has {spec.num_classes} classes.")
        changes: dict[str, Any] = {name: value for name, value in asdict(self).items() if value is not None}
        if self.names not in (None, spec.names):
            changes["category_ids"] = ()
        return replace(spec, **changes)


def normalise_name(name: str) -> str:
    """Return the catalogue's spelling of a model name: "yolox-s" is "yolox_s"."""
    return name.lower().replace("-", "_")


def find_model(model: str | Path) -> Path:
    """Return the file or folder of MODEL; a bare name is searched in the usual places.

    Raises:
        CheckpointError: there is none, and the message names these places; or the stored weights have changed.
    """
    path = Path(os.path.expanduser(model))
    name = normalise_name(str(model))
    known = catalogue.names("model")
    # A name means the model, never a file or folder of that name in the current folder; a `Path` is a path. A folder of
    # weights may have the model's name too: it is a place to search.
    named = name in known and (isinstance(model, str) or not (path.is_file() or is_artifact(path)))
    if os.path.exists(path) and not named:
        try:
            require_file(path)
        except OSError as error:
            raise CheckpointError(f"{str(path)!r} can't be a model: {error.strerror}. Check the path.") from error
        return path
    if name in known:
        places = [Path(), Path(name), Path("weights"), Path("weights") / name, cache_folder()]
        for place in places:
            for suffix in _SUFFIXES:
                found = place / f"{name}{suffix}"
                if found.is_file():
                    if place == cache_folder():
                        from boxwright.tasks.weights.store import check_stored

                        check_stored(found)
                    return found
        here = f", such as './{model}'" if os.path.exists(path) else ""
        raise CheckpointError(
            f"No weights for {name!r} were found: run `boxwright weights get {name}`, or put {name}.pth, {name}.onnx "
            f"or {name}.safetensors into one of {', '.join(repr(str(p)) for p in places)}, or give the file's path"
            f"{here}."
        )
    if path.suffix:
        raise CheckpointError(f"There is no model file at {str(path)!r}. Check the path.")
    raise CheckpointError(
        f"{str(model)!r} is neither a file, nor an artifact folder, nor a model's name.{suggest(name, known)} "
        f"Names: {', '.join(known)}."
    )


def open_model(
    model: str | Path | Artifact,
    options: ModelOptions | None = None,
    tuning: Tuning | None = None,
    *,
    trust: bool = False,
    device: str | None = None,
) -> DetectorSession:
    """Return a session for MODEL.

    Args:
        model: a name, a file, an artifact folder, or the description of one.
        options: what the user adds or changes.
        tuning: how a converted model uses the machine.
        trust: load code that was made elsewhere too.
        device: see `place_model`.

    Raises:
        CheckpointError: there is no such model, its file can't be used, or it holds code of another user or machine.
        MissingDependencyError: the package that runs it is not installed, or the device of an artifact is not here.
        UsageError: an option contradicts the file.
    """
    options = options or ModelOptions()
    if isinstance(model, Artifact):
        return _open_artifact(model, options, tuning, trust=trust, device=device)
    path = find_model(model)
    if path.suffix.lower() in _INSIDE and is_artifact(path.parent):
        path = path.parent
    if path.is_dir():
        return _open_artifact(read_artifact(path), options, tuning, trust=trust, device=device)
    place = place_model(path, device)
    if path.suffix.lower() == ".onnx":
        refuse(path, act=options.activation)
        if not trust:
            check_files(path.parent, hash_code(path))
        require("onnxruntime", extra="onnx", by=f"{path.name!r}")
        from boxwright.tasks.onnx_file import open_onnx

        return open_onnx(path, options, tuning, place)
    if path.suffix.lower() in WEIGHTS:
        refuse(path, output_form=options.output)
        if place.is_cpu and tuning not in (None, Tuning()):
            raise UsageError(f"{tuning!r} does not apply to {path.name}, which runs in PyTorch. Convert it first.")
        # Weights alone: torch builds the network around them.
        require("torch", "safetensors", extra="train", by=f"{path.name!r}")
        from boxwright.tasks.checkpoint import open_checkpoint, open_checkpoint_on

        return open_checkpoint(path, options) if place.is_cpu else open_checkpoint_on(path, options, place, tuning)
    if path.suffix.lower() in _INSIDE:
        raise CheckpointError(
            f"{str(path)!r} does not say what it detects, and there is no artifact.json beside it. "
            "Give the whole folder that `boxwright export` wrote."
        )
    raise CheckpointError(
        f"{str(path)!r} is not a known kind of model file. Use .pth, .safetensors, .onnx or an artifact folder."
    )


def _open_artifact(
    artifact: Artifact, options: ModelOptions, tuning: Tuning | None, *, trust: bool, device: str | None
) -> DetectorSession:
    spec = describe_artifact(artifact, options)
    tuning = replace(tuning or Tuning(), number=place_model(artifact, device).number)
    return DetectorSession(open_graph(artifact, tuning, trust=trust), spec)


def place_model(model: Path | Artifact, device: str | None) -> Chosen:
    """Return where a model runs.

    Args:
        model: its file, or a converted one.
        device: a name, a name with a number, or "auto" for an accelerator if the model can run on it. None is the
            device that an artifact is for, and the CPU for other files.

    Raises:
        UsageError: there is no such device, or an artifact is for another one.
    """
    if isinstance(model, Path) and is_artifact(model):
        model = read_artifact(model, verify=False)
    if isinstance(model, Path):
        if device is None:
            return Chosen()
        if device != AUTO or model.suffix.lower() in WEIGHTS:
            return find_device(device)
        require("onnxruntime", extra="onnx", by=f"{model.name!r}")
        from boxwright.runtimes.onnxruntime_ import has_provider

        return next((Chosen(name) for name in list_shown() if has_provider(name)), Chosen())
    return place_artifact(model, device)


def describe_artifact(artifact: Artifact, options: ModelOptions) -> Spec:
    """Return what an artifact detects, with the user's values; nothing is loaded.

    Raises:
        CheckpointError: the artifact is not a detector.
        UsageError: an option contradicts the artifact.
    """
    spec, folder = artifact.spec, artifact.folder
    if spec is None:
        raise CheckpointError(
            f"The artifact {str(folder)!r} is not a detector's. Load it with InferenceOptimizer.load(folder)."
        )
    if options.size_hw not in (None, spec.size_hw):
        raise UsageError(f"The artifact's input size is {spec.size_hw!r} and can't be changed.")
    refuse(folder, output_form=options.output, act=options.activation)
    return options.apply(spec)


def is_converted(path: Path) -> bool:
    """Return whether a model is an artifact or an ONNX file, for which threads and streams can be chosen."""
    return is_artifact(path) or path.suffix.lower() == ".onnx"


def arrange(model: Path | Artifact, hint: Hint, place: Chosen | None = None) -> Arrangement:
    """Return how an artifact, an ONNX file, or any model on an accelerator should use this machine."""
    if isinstance(model, Path) and is_artifact(model):
        model = read_artifact(model)
    place = place or place_model(model, None)
    if not place.is_cpu:
        return choose_beside(read_cpu(), hint=hint, device=place)
    if isinstance(model, Artifact):
        return choose(read_cpu(), hint=hint, runtime=model.choice.runtime)
    return choose(read_cpu(), hint=hint, runtime="onnxruntime", movable=False)


def default_names(num_classes: int, source: Path, options: ModelOptions) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return class names and category ids for a file that has none: COCO's for 80 classes, else numbered ones."""
    numbered = tuple(f"class_{i}" for i in range(num_classes))
    if options.names is not None:
        return numbered, ()  # `ModelOptions.apply` counts them and puts the user's in their place
    if num_classes == len(COCO_NAMES):
        _log.info("%s names no classes; it has 80, so COCO's names are used (--names changes that).", source.name)
        return COCO_NAMES, COCO_CATEGORY_IDS
    _log.warning("%s names no classes; they are called class_0 to %s (use --names).", source.name, numbered[-1])
    return numbered, ()


def parse_names(text: str) -> tuple[str, ...]:
    """Return class names given as "a,b,c" or as a file with one name per line.

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
    """Reject options that this kind of file fixes."""
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')} {value!r}"
            raise UsageError(f"{option} does not apply to {path.name}, which fixes it. Leave it out.")
