"""Model files that run code when loaded: allowed only if this user made them on this machine, or trusts them."""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath

from boxwright.core.environment import data_folder
from boxwright.core.errors import CheckpointError
from boxwright.core.files import is_private

CUSTOM_PROGRAM = "custom_program.json"
MACHINE_CODE = "model.pt2"
SCRIPT = "model.ts"
ENGINE_SUFFIX = ".trt.onnx"
"""The suffix of a file with a TensorRT engine."""

_CODE = {
    CUSTOM_PROGRAM: "calls operators of other packages",
    MACHINE_CODE: "holds machine code",
    SCRIPT: "holds a TorchScript program",
}
_DIGEST = re.compile("[0-9a-f]{64}")
_ADVICE = (
    "It runs only if this user made it on this machine, or says that it is to be trusted: --trust on the command line, "
    "trust=True in Python. Do that only if you know who made it; else convert the model again, from its weights."
)


def describe_code(name: str) -> str:
    """Return what a model's file of this name runs when it is loaded; "" for plain data."""
    name = name.casefold()  # where case does not matter, as on macOS, `Model.PT2` would be loaded too
    if name.endswith(ENGINE_SUFFIX):
        return _CODE[MACHINE_CODE]
    # A folder counts like a file: torch also loads an unpacked package.
    return next((_CODE[part] for part in PurePath(name).parts if part in _CODE), "")


def check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Refuse files with code that was not recorded.

    Args:
        folder: where they are, for the message.
        files: the name and the real SHA-256 of each.

    Raises:
        CheckpointError: one holds code of another user or machine.
    """
    for name, digest in files.items():
        if describe_code(name) and not _is_recorded(digest):
            raise CheckpointError(f"{str(folder / name)!r} {describe_code(name)}. {_ADVICE}")


def hash_code(*paths: Path) -> dict[str, str]:
    """Return the name and the SHA-256 of those files that exist and hold code."""
    return {path.name: hash_file(path) for path in paths if describe_code(path.name) and path.is_file()}


def is_made_here(folder: Path) -> bool:
    """Return whether all code in an artifact folder, if there is any, was recorded."""
    present = [folder / name for name in _CODE if (folder / name).exists()]
    present += folder.glob(f"*{ENGINE_SUFFIX}")
    return all(path.is_file() and _is_recorded(hash_file(path)) for path in present)


def record(*digests: str) -> None:
    """Record files that this program has made; without a writable home folder they will need `--trust`."""
    if not digests:
        return
    with suppress(OSError):
        folder = _store()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for digest in digests:
            (folder / digest).touch(mode=0o600)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_recorded(digest: str) -> bool:
    """Return whether the store holds a digest; a store that others can write to is ignored."""
    return bool(_DIGEST.fullmatch(digest)) and is_private(_store()) and is_private(_store() / digest)


def _store() -> Path:
    """Return the folder with one empty file per digest."""
    return data_folder("made-here")
