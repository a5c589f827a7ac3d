"""The artifact folder: `artifact.json` beside the files of one runtime, nothing else needed to run the model."""

import json
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.catalogue import find, load
from boxwright.core.errors import CheckpointError, ConversionError, UsageError
from boxwright.core.files import write_whole
from boxwright.core.packages import installed_version
from boxwright.core.signature import Array, Signature
from boxwright.core.spec import Spec
from boxwright.devices.chosen import AUTO, Chosen
from boxwright.runtimes.base import Choice, Graph, Runtime, Tuning, first_line, shorten
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.trust import check_files, describe_code, hash_file, record

FORMAT = 2
GOLDEN = "golden.npz"
DESCRIPTION = "artifact.json"
_DRAFT = re.compile(r"\.artifact\.\d+\.tmp\.json")  # a killed process may leave one
_MOST_BYTES = 64 << 20  # of the description
_MOST_GOLDEN = 2 << 30  # a batch of 64 images at 640 takes 315 MB


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
    return (path / DESCRIPTION).is_file()


def place_artifact(artifact: Artifact, device: str | None) -> Chosen:
    """Return where an artifact runs: on the device that it was converted for, which the user may name.

    Args:
        artifact: its description.
        device: a name, a name with a number, "auto" or None.

    Raises:
        UsageError: it is for another device.
    """
    own = artifact.choice.device
    if device in (None, AUTO):
        return Chosen(own)
    asked = Chosen.parse(device)
    if asked.name != own:
        raise UsageError(
            f"device={device!r} does not apply: the artifact {str(artifact.folder)!r} is for {own!r}. Leave it out, or "
            f"convert the weights for it: boxwright optimize WEIGHTS --device {asked.name}."
        )
    return asked


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
    failure: ConversionError | None = None
    for tried in source.relaxed():
        try:
            recipe, graph = _convert(back_end, tried, choice, folder, calibration, tuning or Tuning())
            break
        except ConversionError as error:
            failure = error
    else:
        assert failure is not None
        raise failure
    notes = [recipe.get("note", ""), *source.notes]
    if failure is not None:
        recipe |= {} if tried.signature.free_batch else {"batch": _rows(tried)}
        notes.append(f"{_describe_axes(tried)}: {shorten(str(failure))}")
    if any(notes):
        recipe["note"] = "; ".join(filter(None, notes))
    inputs = [np.asarray(a) for a in (golden if golden is not None else source.example)]
    try:
        expected = source.run(inputs)
        found = distance(graph.run(tried.signature.check(inputs)), expected)
        arrays = {f"input_{i}": a for i, a in enumerate(inputs)} | {f"output_{i}": a for i, a in enumerate(expected)}
        np.savez_compressed(folder / GOLDEN, **arrays)
        packages = ("boxwright", "numpy", *find("runtime", choice.runtime).packages)
        artifact = Artifact(
            folder=folder,
            choice=choice,
            signature=tried.signature,
            spec=spec,
            files={name: hash_file(folder / name) for name in _list_files(folder)},
            versions={p: installed_version(p) or "unknown" for p in packages},
            recipe=recipe,
            distance=found,
        )
        record(*(digest for name, digest in artifact.files.items() if describe_code(name)))
        _write(artifact)
    except BaseException:
        graph.close()
        raise
    return artifact, graph


def _convert(
    back_end: Runtime, source: Any, choice: Choice, folder: Path, calibration: Calibration | None, tuning: Tuning
) -> tuple[dict[str, Any], Graph]:
    """Convert into the folder, load the result, and compare it with the original on inputs of other sizes."""
    try:
        if calibration is not None:
            calibration = replace(calibration, samples=source.fitting(calibration.samples))
        recipe = back_end.convert(source, choice, folder, calibration)
        graph = back_end.load(folder, choice, source.signature, tuning)
        try:
            for variant in source.variants:
                _compare(graph, source, variant, BOUNDS[choice.precision])
        except BaseException:
            graph.close()
            raise
    except BaseException:
        for path in folder.iterdir():  # leave it empty, so that a corrected call can use it
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
    return recipe, graph


def _compare(graph: Graph, source: Any, variant: Any, bound: float) -> None:
    shapes = ", ".join(str(a.shape) for a in variant.inputs)
    try:
        outputs = graph.run(graph.signature.check(variant.inputs))
    except Exception as error:  # torch's own runtimes raise what the operator raises
        if variant.needed:
            raise ConversionError(f"the converted model fails on the shapes {shapes}: {first_line(error)}") from error
        return
    found = distance(outputs, source.run(variant.inputs))
    if found > bound and found > 3 * distance(graph.run(graph.signature.check(_example(source))), _reference(source)):
        raise ConversionError(f"on the shapes {shapes} the converted model's outputs are {found:.3g} away")


def _example(source: Any) -> list[Array]:
    return [np.asarray(t) for t in source.example]


def _reference(source: Any) -> tuple[Array, ...]:
    outputs: tuple[Array, ...] = source.run(_example(source))
    return outputs


def _rows(source: Any) -> int:
    return int(source.example[0].shape[0]) if source.example[0].ndim else 1


def _describe_axes(source: Any) -> str:
    if source.signature.free_batch:
        return "only the batch may have another size than in the example"
    return f"only the example's shapes run ({', '.join(str(tuple(t.shape)) for t in source.example)})"


def add_measurements(folder: Path, measured: Mapping[str, Any]) -> Artifact:
    """Put figures into an artifact's description and return it."""
    artifact = replace(read_artifact(folder), measured=dict(measured))
    _write(artifact)
    return artifact


def note_changes(folder: Path, **recipe: Any) -> Artifact:
    """Put the hashes of files that were changed on purpose into the description, with what was done; return it."""
    artifact = read_artifact(folder, verify=False)
    files = {name: hash_file(folder / name) for name in artifact.files}
    artifact = replace(artifact, files=files, recipe={**artifact.recipe, **recipe})
    _write(artifact)
    return artifact


def read_artifact(folder: Path, *, verify: bool = True) -> Artifact:
    """Return the description of an artifact folder; nothing of the model is loaded.

    Args:
        folder: the artifact.
        verify: check that its files are those of the description, by their hashes.

    Raises:
        CheckpointError: the description can't be read, is of another format, or a file is missing, changed or added.
    """
    path = folder / DESCRIPTION
    _refuse_outside(folder, DESCRIPTION)
    if not is_artifact(folder):
        raise CheckpointError(f"The folder {str(folder)!r} holds no {DESCRIPTION}: it is not an artifact.")
    try:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise ValueError(f"it has {size} bytes")
        values = json.loads(path.read_text(encoding="utf-8"))
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
            distance=None if values["distance"] is None else float(values["distance"]),
            measured=dict(values["measured"]),
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} can't be read: {error}") from error
    except (KeyError, TypeError, IndexError, AttributeError, ArithmeticError) as error:
        text = f"{str(path)!r} can't be read: a value is missing or of another kind. Convert the model again."
        raise CheckpointError(text) from error
    except RecursionError as error:
        raise CheckpointError(f"{str(path)!r} can't be read: it is nested too deeply.") from error
    if verify:
        _verify(artifact)
    return artifact


def _verify(artifact: Artifact) -> None:
    folder, present = artifact.folder, _list_files(artifact.folder)
    for name in artifact.files:
        if name not in present:
            raise CheckpointError(f"The artifact {str(folder)!r} lacks its file {name!r}. Copy the whole folder again.")
    for name in present:
        if name not in artifact.files:
            raise CheckpointError(
                f"The artifact {str(folder)!r} holds the file {name!r}, which it was not written with. Remove that "
                "file, or copy the whole folder again."
            )
        try:
            found = hash_file(folder / name)
        except OSError as error:
            raise CheckpointError(
                f"The file {name!r} of the artifact {str(folder)!r} can't be read: {error}"
            ) from error
        if found != artifact.files[name]:
            raise CheckpointError(
                f"The file {name!r} of the artifact {str(folder)!r} has changed since it was written. "
                "Copy the whole folder again, or convert the model again."
            )


def _list_files(folder: Path) -> list[str]:
    """Return all files below a folder but the description, as relative paths.

    Raises:
        CheckpointError: the folder holds something that is neither a file nor a folder, or a link that leads out of it.
    """
    found = []
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            relative = str(path.relative_to(folder))
            if name in folders and not path.is_symlink():
                continue
            if relative == DESCRIPTION or _DRAFT.fullmatch(relative):
                continue
            # A pipe or a device could be read forever, and the files behind a link to a folder would not be listed.
            if not path.is_file():
                raise CheckpointError(f"{relative!r} in the artifact {str(folder)!r} is not a regular file. Remove it.")
            _refuse_outside(folder, relative)
            found.append(relative)
    return sorted(found)


def _refuse_outside(folder: Path, name: str) -> None:
    path = folder / name
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(
            f"{name!r} in the artifact {str(folder)!r} is a link to a file outside it. If you trust that file, copy "
            "the artifact without links: cp -rL"
        )


def read_golden(folder: Path) -> tuple[list[Array], list[Array]]:
    """Return the golden inputs and the original model's outputs for them.

    Raises:
        CheckpointError: the file can't be read.
    """
    try:
        with (folder / GOLDEN).open("rb") as file:
            size = sum(part.file_size for part in zipfile.ZipFile(file).infolist())
            if size > _MOST_GOLDEN:
                raise ValueError(f"it would take {size:,} bytes of memory")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return tuple(  # type: ignore[return-value] # two of them
                    [arrays[f"{kind}_{i}"] for i in range(sum(name.startswith(kind) for name in arrays.files))]
                    for kind in ("input", "output")
                )
    except (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{str(folder / GOLDEN)!r} can't be read: {error!r}") from error


def open_graph(artifact: Artifact | Path, tuning: Tuning | None = None, *, trust: bool = False) -> Graph:
    """Return an artifact of any model loaded, in this process or in those that the tuning asks for.

    Args:
        artifact: the description that `read_artifact` returned, or the folder to read it from.
        tuning: how it uses the machine.
        trust: load code that was made elsewhere too.

    Raises:
        CheckpointError: its files can't be loaded, or it holds code of another user or machine.
    """
    tuning = tuning or Tuning()
    artifact = read_artifact(artifact) if isinstance(artifact, Path) else artifact
    if not trust:
        check_files(artifact.folder, artifact.files)
    if tuning.cpus:
        from boxwright.runtimes.instances import MultiInstance  # which opens artifacts itself

        return MultiInstance(artifact, tuning.cpus, replace(tuning, cpus=()))
    back_end: Runtime = load("runtime", artifact.choice.runtime)()
    return back_end.load(artifact.folder, artifact.choice, artifact.signature, tuning)


def _write(artifact: Artifact) -> None:
    parts = {part.name: getattr(artifact, part.name) for part in fields(artifact) if part.name != "folder"}
    values = {"format": FORMAT} | {k: v.to_dict() if hasattr(v, "to_dict") else v for k, v in parts.items()}
    write_whole(artifact.folder / DESCRIPTION, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
