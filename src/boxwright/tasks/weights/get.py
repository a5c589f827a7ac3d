"""Official weights by name: fetch them, take them from a folder or an archive, and check what is stored."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from boxwright.core.coco_classes import COCO_NAMES
from boxwright.core.environment import cache_folder
from boxwright.core.errors import CheckpointError, DataError, UsageError, shorten
from boxwright.core.files import locked, require_file, walk_once
from boxwright.core.log import get_logger
from boxwright.core.packages import missing_packages, require
from boxwright.detector.sizes import SIZES
from boxwright.tasks.weights.download import check_url, fetch, forget
from boxwright.tasks.weights.releases import RELEASES, URL, Format, Release, find_file, find_release
from boxwright.tasks.weights.store import Progress, hash_file, make_record, read_records, store, write_record

MIRROR = "BOXWRIGHT_WEIGHTS_URL"
"""The variable that names a mirror: the address of a folder with the files of the release."""

_log = get_logger(__name__)
_DRAFTS = ".weights"  # in the cache folder: what is being fetched, under the names that messages show
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_CLASSES = len(COCO_NAMES)
# An ONNX file is its weights in float32 and a graph of at most a few percent of them.
_LEAST, _MOST = 0.98, 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One file of the release, and what is stored of it.

    Attributes:
        model: the model's name.
        format: the file's format.
        path: where the file is, or would be.
        state: `stored`, `missing`, `changed` (not what was recorded), or `unknown` (not stored by `boxwright weights`).
        size_bytes: the recorded size, or else the release's if it is known.
        sha256: the recorded digest, or else the release's if it is known.
        official: whether this is known to be the release's digest.
    """

    model: str
    format: Format
    path: str
    state: str
    size_bytes: int | None
    sha256: str | None
    official: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain JSON values."""
        return asdict(self)


def default_format() -> Format:
    """Return `pth` if this Python has PyTorch, which trains and converts such a file, else `onnx`."""
    return "onnx" if missing_packages(("torch", "safetensors")) else "pth"


def get_weights(
    model: str,
    *,
    format: str | None = None,
    url: str | None = None,
    unofficial: bool = False,
    timeout_s: float = 30.0,
    progress: Progress | None = None,
) -> Path:
    """Return the stored file of official weights, and fetch it first if it is not there.

    A file is stored once its size, its SHA-256 and its architecture are right. What was fetched before an interruption
    is kept: the next call resumes.

    Args:
        model: the model's name, such as "yolox_nano".
        format: "pth" or "onnx"; None for `default_format`.
        url: the address of a mirror's folder, or of the file; None for BOXWRIGHT_WEIGHTS_URL or the official release.
        unofficial: take a file that is not the release's, such as your own training's; the architecture is checked.
        timeout_s: how long to wait for the next bytes.
        progress: called with what is being done, the number of bytes done and of all.

    Raises:
        UsageError: there is no such model or format, or the address is not one.
        MissingDependencyError: the package that checks the file is not installed.
        CheckpointError: the file can't be fetched, or is not the right one.
    """
    release = find_release(model, format or default_format())
    source = _address(url or os.environ.get(MIRROR) or URL, release)
    _require_checker(release)
    path = cache_folder(release.stored_name)
    with _slot(release) as part:
        if path.is_file() and _is_right(release, path, source if unofficial else None, progress):
            return path
        _log.info("Fetching %s into %s", source, path.parent)
        size_bytes = None if unofficial else release.size_bytes
        fetch(source, part, size_bytes=size_bytes, timeout_s=timeout_s, progress=progress)
        try:
            digest = _check(release, part, source, unofficial=unofficial, progress=progress)
        except CheckpointError:
            forget(part)
            raise
        stored = store(release, part, digest, source)
        forget(part)
        return stored


def add_weights(source: str | Path, *, unofficial: bool = False, progress: Progress | None = None) -> list[Path]:
    """Store the files of official weights that a folder or an archive holds, or one file; return where they are.

    They are found by their names in the release, such as yolox_nano.pth, and checked as `get_weights` does.

    Args:
        source: the folder, a tar or zip file, or one file of weights.
        unofficial: take files that are not the release's; the architecture is checked.
        progress: called with what is being done, the number of bytes done and of all.

    Raises:
        DataError: there are no such files, or the archive can't be unpacked.
        MissingDependencyError: the package that checks a file is not installed.
        CheckpointError: a file is not the right one; those before it are stored.
    """
    place = Path(os.path.expanduser(source))
    if place.is_file() and place.name.lower().endswith(_ARCHIVES):
        from boxwright.tasks.train.remote_data import unpack

        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".weights-") as folder:
            unpack(place, Path(folder))
            return _add(place, Path(folder), unofficial, progress)
    return _add(place, place, unofficial, progress)


def _add(named: Path, place: Path, unofficial: bool, progress: Progress | None) -> list[Path]:
    found = sorted(_find(named, place))
    if not found:
        raise DataError(
            f"{str(named)!r} holds no official weights. Their files are called "
            f"{shorten([one.file for one in RELEASES], 4)} (boxwright weights list)."
        )
    stored = []
    for file, release in found:
        _require_checker(release)
        path, origin = cache_folder(release.stored_name), str(named if named == file else f"{named}: {file.name}")
        with _slot(release) as part:
            if path.is_file() and _is_right(release, path, origin if unofficial else None, progress):
                stored.append(path)
                continue
            try:
                shutil.copyfile(file, part)
                digest = _check(release, part, origin, unofficial=unofficial, progress=progress)
                stored.append(store(release, part, digest, origin))
            finally:
                forget(part)
    return stored


def _find(named: Path, place: Path) -> Iterator[tuple[Path, Release]]:
    """Yield the files of weights below a place."""
    try:
        if not place.is_dir():
            require_file(place)
    except OSError as error:
        raise DataError(f"{str(named)!r} can't be read: {error.strerror}. Check the path.") from error
    files = [place] if place.is_file() else [Path(top, name) for top, _, names in walk_once(place) for name in names]
    seen: dict[Release, Path] = {}
    for file in sorted(files):
        release = find_file(file.name)
        if release is None or not file.is_file():
            continue
        if release in seen:
            raise DataError(f"{str(named)!r} holds {file.name!r} twice. Name the folder of the one that you want.")
        seen[release] = file
        yield file, release


def verify_weights(models: tuple[str, ...] = (), *, progress: Progress | None = None) -> list[Stored]:
    """Read the stored files again and return what they are: each `stored`, `changed` or `unknown`, or `missing`.

    Args:
        models: only these; none for all that are stored or recorded.
        progress: called with what is being done, the number of bytes done and of all.

    Raises:
        UsageError: there is no such model.
        CheckpointError: the record can't be read.
    """
    names = {find_release(model, "pth").model for model in models}
    return [
        _describe(release, read=True, progress=progress)
        for release in RELEASES
        if release.model in names or (not names and _is_there(release))
    ]


def list_weights() -> list[Stored]:
    """Return all files of the release, and which of them are stored; nothing large is read.

    Example:
        >>> [one.model for one in list_weights()][:2]
        ['yolox_nano', 'yolox_nano']
    """
    return [_describe(release, read=False) for release in RELEASES]


def _is_there(release: Release) -> bool:
    return cache_folder(release.stored_name).is_file() or release.stored_name in read_records()


def _describe(release: Release, *, read: bool, progress: Progress | None = None) -> Stored:
    path, record = cache_folder(release.stored_name), read_records().get(release.stored_name)
    sha256 = record.sha256 if record else release.sha256
    if not path.is_file():
        state = "missing"
    elif read:
        digest = hash_file(path, progress)
        state = "stored" if digest == sha256 else "changed" if record else "unknown"
    elif record is None:
        state = "unknown"
    else:
        state = "stored" if path.stat().st_size == record.size_bytes else "changed"
    return Stored(
        model=release.model,
        format=release.format,
        path=str(path),
        state=state,
        size_bytes=record.size_bytes if record else release.size_bytes,
        sha256=sha256,
        official=release.sha256 is not None and sha256 == release.sha256,
    )


def _address(base: str, release: Release) -> str:
    url = base if base.endswith(f".{release.format}") else f"{base.rstrip('/')}/{release.file}"
    return check_url(url)


@contextmanager
def _slot(release: Release) -> Iterator[Path]:
    """Yield the draft of a file while no other process writes it."""
    folder = cache_folder(_DRAFTS)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f"{release.stored_name}.lock"):
        yield folder / release.stored_name


def _is_right(release: Release, path: Path, source: str | None, progress: Progress | None) -> bool:
    """Return whether a file that is there can stay; one that was damaged is fetched again.

    Args:
        release: what it must be.
        path: the file.
        source: where it must be from; None for anywhere.
        progress: as for `get_weights`.

    Raises:
        CheckpointError: it is a file that someone else put there.
    """
    record, digest = read_records().get(path.name), hash_file(path, progress)
    if record is not None:
        return digest == record.sha256 and source in (None, record.source)
    if digest != release.sha256:
        raise CheckpointError(
            f"{str(path)!r} is there already, and was not stored by `boxwright weights`. Move it away to store "
            f"{release.file}, or use it as it is."
        )
    write_record(path.name, make_record(path, digest, str(path)))
    return True


def _require_checker(release: Release) -> None:
    what = f"The check of {release.file!r}"
    if release.format == "pth":
        require("torch", "safetensors", extra="train", by=f"{what} (--format onnx does without)")
    else:
        require("onnxruntime", extra="onnx", by=what)


def _check(release: Release, file: Path, source: str, *, unofficial: bool, progress: Progress | None) -> str:
    """Return the digest of a file that is right.

    Raises:
        CheckpointError: it is not the release's, not the one of the first download, or of another architecture.
    """
    digest = hash_file(file, progress)
    record = read_records().get(release.stored_name)
    expected = release.sha256 or (record.sha256 if record else None)
    if not unofficial and expected is not None and digest != expected:
        whose = "the official release has" if release.sha256 else "the first download had"
        raise CheckpointError(
            f"{source!r} was not stored: its SHA-256 is {digest}, and {whose} {expected}. Name another mirror with "
            "--url; add --unofficial if you know this file and want it."
        )
    try:
        model, classes = _identify_onnx(release, file) if release.format == "onnx" else _identify_pth(file)
    except (CheckpointError, UsageError) as error:
        raise CheckpointError(f"{source!r} was not stored: {error}") from error
    if (model, classes) != (release.model, _CLASSES):
        raise CheckpointError(
            f"{source!r} was not stored: it holds {model} with {classes} classes, not {release.model} with {_CLASSES}."
        )
    return digest


def _identify_pth(file: Path) -> tuple[str, int]:
    """Return the model and the number of classes by the table of keys."""
    from boxwright.detector.weights import check_finite, identify, read_state

    state, _ = read_state(file)
    check_finite(state, file)
    return identify(state)


def _identify_onnx(release: Release, file: Path) -> tuple[str, int]:
    """Return the model and the number of classes by the input, the output and the amount of weights."""
    from boxwright.tasks.models import ModelOptions, open_model

    size = SIZES[release.model].input_hw
    session = open_model(file, ModelOptions(names=COCO_NAMES))  # an error if it has another number of classes
    spec = session.spec
    session.close()
    weights = file.stat().st_size / 4
    near = [
        one.model
        for one in RELEASES
        if one.format == "onnx"
        and _LEAST < weights / one.parameters < _MOST
        and SIZES[one.model].input_hw == spec.size_hw
    ]
    if spec.size_hw != size or not near:
        raise CheckpointError(
            f"{file.name!r} takes images of {spec.size_hw!r} and holds {weights / 1e6:.2f} million numbers; "
            f"{release.model} takes {size!r} and has {release.parameters / 1e6:.2f}."
        )
    return near[0], spec.num_classes
