"""Checkpoints: written atomically, verified when read, the previous one kept.

A file is a torch archive followed by a footer: a mark and the SHA-256 of everything before it. A truncated or corrupted
file is detected, and the previous one is used.
"""

import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from boxwright.accel.places import previous_of
from boxwright.core.errors import CheckpointError
from boxwright.core.files import whole_file
from boxwright.core.log import get_logger
from boxwright.core.torch_files import UNREADABLE, why_unreadable

_log = get_logger(__name__)
_MARK = b"BXWCKPT1"
_FOOTER = len(_MARK) + 32
_NONE_YET = "It is the first one, so there is nothing to resume from. Free some space and start again."


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state of tensors and plain values; the old file becomes the previous one.

    Raises:
        CheckpointError: it could not be written (for example, the disk is full); the old file is untouched.
    """
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    data = buffer.getbuffer()
    try:
        with whole_file(path) as draft:
            with draft.open("wb") as file:
                file.write(data)
                file.write(_MARK + hashlib.sha256(data).digest())
                file.flush()
                os.fsync(file.fileno())  # before the old file gives way: a full disk shows here at the latest
            if path.exists():
                path.replace(previous_of(path))
        _sync_folder(path.parent)
    except OSError as error:
        kept = path.exists() or previous_of(path).exists()
        raise CheckpointError(
            f"The checkpoint {str(path)!r} could not be written: {error.strerror or error}. "
            + ("The one before it is still there. Free some space and resume with --resume." if kept else _NONE_YET)
        ) from error


def is_checkpoint(path: Path) -> bool:
    """Return whether a file ends with the footer of `save_checkpoint`; only loading verifies it."""
    try:
        with path.open("rb") as file:
            file.seek(-_FOOTER, os.SEEK_END)
            return file.read(len(_MARK)) == _MARK
    except OSError:
        return False


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the newest intact state: the file's, or else the previous one's.

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
            _log.warning("%s Using the previous one: %s", reasons[0], candidate)
        return state
    raise CheckpointError(" ".join(reasons))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"The checkpoint {str(path)!r} can't be read: {error.strerror or error}.") from error
    body, footer = memoryview(data)[:-_FOOTER], data[-_FOOTER:]
    if footer[: len(_MARK)] != _MARK or footer[len(_MARK) :] != hashlib.sha256(body).digest():
        raise CheckpointError(f"The checkpoint {str(path)!r} is damaged: its checksum does not match.")
    try:
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise CheckpointError(f"The checkpoint {str(path)!r} can't be read: {why_unreadable(error)}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint {str(path)!r} holds a {type(state).__name__}, not a run's state.")
    return state


def _sync_folder(folder: Path) -> None:
    """Make the renames survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
