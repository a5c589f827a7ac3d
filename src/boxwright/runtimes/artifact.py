"""The artifact folder: `artifact.json` beside the files of one runtime, nothing else needed to run the model."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.catalogue import find, load
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.files import write_whole
from boxwright.core.packages import installed_version
from boxwright.core.signature import Array, Signature
from boxwright.core.spec import Spec
from boxwright.runtimes.base import Choice, Graph, Runtime, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.parity import distance

FORMAT = 2
GOLDEN = "golden.npz"
_FILE = "artifact.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """The contents of `artifact.json`.

    Attributes:
        folder: where it is.
        choice: runtime, precision and layout.
        signature: what the model takes and returns.
        spec: what a detector detects; None for any other model.
        files: SHA-256 of every file.
        versions: packages that wrote it.
        recipe: how it was converted, in the runtime's own words.
        distance: how far its outputs were from the original's on the golden inputs when it was written.
        measured: figures of an optimiser's report (latency, accuracy, machine).
    """

    folder: Path
    choice: Choice
    signature: Signature
    spec: Spec | None
    files: Mapping[str, str]
    versions: Mapping[str, str]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    distance: float | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)


def is_artifact(path: Path) -> bool:
    """Return whether a path is an artifact folder."""
    return (path / _FILE).is_file()


def write_artifact(
    source: Any,
    choice: Choice,
    folder: Path,
    *,
    spec: Spec | None = None,
    calibration: Calibration | None = None,
    golden: Sequence[Array] | None = None,
) -> Artifact:
    """Convert a model into a new artifact folder and return its description; see `convert_and_open`."""
    artifact, graph = convert_and_open(source, choice, folder, spec=spec, calibration=calibration, golden=golden)
    graph.close()
    return artifact


def convert_and_open(
    source: Any,
    choice: Choice,
    folder: Path,
    *,
    spec: Spec | None = None,
    calibration: Calibration | None = None,
    golden: Sequence[Array] | None = None,
    tuning: Tuning | None = None,
) -> tuple[Artifact, Graph]:
    """Convert a model into a new artifact folder, and return its description and the loaded graph.

    Args:
        source: a `runtimes.source.Source`.
        choice: the runtime and its settings.
        folder: where to write; must be empty or not exist.
        spec: what the model detects, if it is a detector.
        calibration: inputs for an int8 conversion; layers that stay in float, also in a bf16 one.
        golden: flat inputs of one request, stored with the original's outputs for the check on other machines
            (default: the source's example).
        tuning: how the loaded graph uses the machine.

    Raises:
        UsageError: the folder exists and is not empty, or there is no such runtime or choice.
        ConversionError: the model can't be converted.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} is not an empty folder. Choose a new folder for the artifact.")
    back_end: Runtime = load("runtime", choice.runtime)()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        recipe = back_end.convert(source, choice, folder, calibration)
    except BaseException:
        for path in folder.iterdir():  # leave it empty, so that a corrected call can use it
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
    inputs = [np.asarray(a) for a in (golden if golden is not None else source.example)]
    expected = source.run(inputs)
    signature = source.signature if "batch" not in recipe else source.signature.with_batch(recipe["batch"])
    graph = back_end.load(folder, choice, signature, tuning or Tuning())
    try:
        found = distance(graph.run(signature.check(inputs)), expected)
        arrays = {f"input_{i}": a for i, a in enumerate(inputs)} | {f"output_{i}": a for i, a in enumerate(expected)}
        np.savez_compressed(folder / GOLDEN, **arrays)
        packages = ("boxwright", "numpy", *find("runtime", choice.runtime).packages)
        artifact = Artifact(
            folder=folder,
            choice=choice,
            signature=signature,
            spec=spec,
            files={str(p.relative_to(folder)): _sha256(p) for p in sorted(folder.rglob("*")) if p.is_file()},
            versions={p: installed_version(p) or "unknown" for p in packages},
            recipe=recipe,
            distance=found,
        )
        _write(artifact)
    except BaseException:
        graph.close()
        raise
    return artifact, graph


def add_measurements(folder: Path, measured: Mapping[str, Any]) -> Artifact:
    """Put figures into an artifact's description and return it."""
    artifact = replace(read_artifact(folder), measured=dict(measured))
    _write(artifact)
    return artifact


def read_artifact(folder: Path, *, verify: bool = True) -> Artifact:
    """Return the description of an artifact folder.

    Args:
        folder: the artifact.
        verify: check its files against their hashes.

    Raises:
        CheckpointError: the description can't be read, is of another format, or a file is missing or changed.
    """
    try:
        values = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        if (form := values["format"]) != FORMAT:
            age, advice = ("a newer", "Run: pip install -U boxwright")
            if form < FORMAT:
                age, advice = "an older", "Convert the model again."
            text = f"{str(folder)!r} was written by {age} Boxwright (format {form}, not {FORMAT}). {advice}"
            raise CheckpointError(text)
        artifact = Artifact(
            folder=folder,
            choice=Choice.from_dict(values["choice"]),
            signature=Signature.from_dict(values["signature"]),
            spec=None if values["spec"] is None else Spec.from_dict(values["spec"]),
            files=dict(values["files"]),
            versions=dict(values["versions"]),
            recipe=dict(values["recipe"]),
            distance=values["distance"],
            measured=dict(values["measured"]),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{str(folder / _FILE)!r} can't be read: {error!r}") from error
    for name, expected in artifact.files.items() if verify else ():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"The artifact {str(folder)!r} lacks its file {name!r}. Copy the whole folder again.")
        if _sha256(path) != expected:
            raise CheckpointError(
                f"The file {name!r} of the artifact {str(folder)!r} has changed since it was written. "
                "Copy the whole folder again, or convert the model again."
            )
    return artifact


def read_golden(folder: Path) -> tuple[list[Array], list[Array]]:
    """Return the golden inputs and the original model's outputs for them.

    Raises:
        CheckpointError: the file can't be read.
    """
    try:
        with np.load(folder / GOLDEN) as arrays:
            return tuple(  # type: ignore[return-value] # two of them
                [arrays[f"{kind}_{i}"] for i in range(sum(name.startswith(kind) for name in arrays.files))]
                for kind in ("input", "output")
            )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{str(folder / GOLDEN)!r} can't be read: {error!r}") from error


def open_graph(artifact: Artifact | Path, tuning: Tuning | None = None) -> Graph:
    """Return an artifact of any model loaded, in this process or in those that the tuning asks for.

    Args:
        artifact: the description that `read_artifact` returned, or the folder to read it from.
        tuning: how it uses the machine.
    """
    tuning = tuning or Tuning()
    artifact = read_artifact(artifact) if isinstance(artifact, Path) else artifact
    if tuning.cpus:
        from boxwright.runtimes.instances import MultiInstance  # which opens artifacts itself

        return MultiInstance(artifact, tuning.cpus, replace(tuning, cpus=()))
    back_end: Runtime = load("runtime", artifact.choice.runtime)()
    return back_end.load(artifact.folder, artifact.choice, artifact.signature, tuning)


def _write(artifact: Artifact) -> None:
    parts = {part.name: getattr(artifact, part.name) for part in fields(artifact) if part.name != "folder"}
    values = {"format": FORMAT} | {k: v.to_dict() if hasattr(v, "to_dict") else v for k, v in parts.items()}
    write_whole(artifact.folder / _FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
