"""Checkpoints that survive: whole or not at all, checked when read, the previous one kept.

A file is a torch archive followed by a footer: a mark and the SHA-256 of all before it. A torn or flipped file is
noticed, and the one before it is used.
"""

import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from boxwright.accel.previous import previous_of
from boxwright.core.errors import CheckpointError
from boxwright.core.log import get_logger

_log = get_logger(__name__)
_MARK = b"BXWCKPT1"
_FOOTER = len(_MARK) + 32


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state of tensors and plain values; the file that was there becomes the previous one.

    Raises:
        CheckpointError: it could not be written (a full disk, say); the old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    data = buffer.getbuffer()
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.write(_MARK + hashlib.sha256(data).digest())
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            path.replace(previous_of(path))
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {str(path)!r} could not be written: {error.strerror or error}. "
            "The one before it is still there. Make room and go on with --resume."
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def is_checkpoint(path: Path) -> bool:
    """Return whether a file ends as `save_checkpoint` ends one; whether it is whole is seen when it is loaded."""
    try:
        with path.open("rb") as file:
            file.seek(-_FOOTER, os.SEEK_END)
            return file.read(len(_MARK)) == _MARK
    except OSError:
        return False


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the newest state that is whole: the file's, or else the previous one's.

    Raises:
        CheckpointError: there is none, or both are damaged.
    """
    reasons = []
    for candidate in (path, previous_of(path)):
        try:
            state = _read(candidate)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if candidate != path:
            _log.warning("%s The one before it is used: %s", reasons[0], candidate)
        return state
    raise CheckpointError(" ".join(reasons))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"The checkpoint {str(path)!r} can't be read: {error.strerror or error}.") from error
    body, footer = memoryview(data)[:-_FOOTER], data[-_FOOTER:]
    if footer[: len(_MARK)] != _MARK or footer[len(_MARK) :] != hashlib.sha256(body).digest():
        raise CheckpointError(f"The checkpoint {str(path)!r} is damaged: its checksum does not fit.")
    state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint {str(path)!r} holds a {type(state).__name__}, not a run's state.")
    return state


def _sync_folder(folder: Path) -> None:
    """Make the renames last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
