"""The artifact folder: `artifact.json` beside the files of one runtime, nothing else needed to run the model."""

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from boxwright.core.catalogue import find, load
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.runtimes.base import Runtime, Session

FORMAT = 1
_FILE = "artifact.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What `artifact.json` says."""

    runtime: str
    precision: Precision
    spec: Spec
    files: dict[str, str]
    versions: dict[str, str]


def is_artifact(path: Path) -> bool:
    """Return whether a path is an artifact folder."""
    return (path / _FILE).is_file()


def write_artifact(model: Any, spec: Spec, folder: Path, *, runtime: str) -> Artifact:
    """Convert a model into a new artifact folder and return its description.

    Raises:
        UsageError: the folder exists and is not empty, or there is no such runtime.
        ConversionError: the model can't be converted.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} is no empty folder. Choose a new folder for the artifact.")
    back_end: Runtime = load("runtime", runtime)()
    folder.mkdir(parents=True, exist_ok=True)
    back_end.convert(model, spec, folder)
    packages = ("boxwright", "numpy", *find("runtime", runtime).packages)
    artifact = Artifact(
        runtime=runtime,
        precision=Precision.FP32,
        spec=spec,
        files={p.name: _sha256(p) for p in sorted(folder.iterdir()) if p.is_file()},
        versions={p: _version(p) for p in packages},
    )
    text = json.dumps(
        {
            "format": FORMAT,
            "runtime": artifact.runtime,
            "precision": str(artifact.precision),
            "spec": spec.to_dict(),
            "files": artifact.files,
            "versions": artifact.versions,
        },
        indent=1,
        ensure_ascii=False,
    )
    (folder / _FILE).write_text(text + "\n", encoding="utf-8")
    return artifact


def read_artifact(folder: Path) -> Artifact:
    """Return the description of an artifact folder, its files checked against their hashes.

    Raises:
        CheckpointError: the description can't be read, is of a newer format, or a file is missing or changed.
    """
    try:
        values = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        if values["format"] > FORMAT:
            raise CheckpointError(
                f"{str(folder)!r} was written by a newer Boxwright (format {values['format']}, not {FORMAT}). "
                "Run: pip install -U boxwright"
            )
        artifact = Artifact(
            runtime=values["runtime"],
            precision=Precision.parse(values["precision"]),
            spec=Spec.from_dict(values["spec"]),
            files=dict(values["files"]),
            versions=dict(values["versions"]),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{str(folder / _FILE)!r} can't be read: {error!r}") from error
    for name, expected in artifact.files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"The artifact {str(folder)!r} lacks its file {name!r}. Copy the whole folder again.")
        if _sha256(path) != expected:
            raise CheckpointError(
                f"The file {name!r} of the artifact {str(folder)!r} has changed since it was written. "
                "Copy the whole folder again, or convert the model again."
            )
    return artifact


def open_artifact(folder: Path) -> Session:
    """Return a session over an artifact folder."""
    artifact = read_artifact(folder)
    back_end: Runtime = load("runtime", artifact.runtime)()
    return back_end.load(folder, artifact.spec)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
