"""What a killed command may leave behind: whole files, and no process."""

import csv
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def wait_for_orphans(known: set[int], within_s: float = 30.0) -> list[str]:
    """Wait for all processes that this one has adopted to end; kill and return those that remain.

    Args:
        known: children that belong to others, such as a cluster's.
        within_s: how long to wait.
    """
    end_s = time.monotonic() + within_s
    while True:
        left = [child for child in psutil.Process().children(recursive=True) if _is_left(child, known)]
        if not left or time.monotonic() > end_s:
            break
        time.sleep(0.1)
    names = []
    for child in left:
        try:
            names.append(" ".join(child.cmdline())[:150])
            child.kill()
        except psutil.Error:
            continue
    return names


def _is_left(child: psutil.Process, known: set[int]) -> bool:
    """Return whether a process runs that does not belong to others; zombies are reaped."""
    try:
        if child.pid in known or any(parent.pid in known for parent in child.parents()):
            return False
        if child.status() != psutil.STATUS_ZOMBIE:
            return child.is_running()
        if child.ppid() == os.getpid():
            os.waitpid(child.pid, os.WNOHANG)
    except psutil.Error:  # it has just ended
        pass
    return False


_LOCKS = (".lock", ".writing")  # the kernel releases them; the files stay


def find_torn(folder: Path, *, drafts: bool) -> list[str]:
    """Return a sentence for each file that is not whole.

    Args:
        folder: everything below it is read.
        drafts: allow hidden files and folders, which a SIGKILL may leave; otherwise they are faults too.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if inside.parts[0] in ("home", "tmp"):  # libraries write there as they like
            continue
        if any(part.startswith(".") for part in inside.parts):
            if not drafts and path.name.startswith(".") and path.name not in _LOCKS:
                found.append(f"{inside} is left")
            continue
        if path.is_file() and path.suffix in _READERS:
            try:
                _READERS[path.suffix](path)
            except Exception as error:  # noqa: BLE001 - any library may read it
                found.append(f"{inside} is torn: {type(error).__name__}: {str(error)[:100]}")
    return found


def _read_lines(path: Path) -> None:
    for line in path.read_text().splitlines():
        json.loads(line)


def _read_csv(path: Path) -> None:
    with path.open(newline="") as file:
        widths = {len(row) for row in csv.reader(file)}
    assert len(widths) <= 1, f"rows of {widths} columns"


def _read_checkpoint(path: Path) -> None:
    import torch

    torch.load(path, weights_only=True)


def _read_weights(path: Path) -> None:
    from safetensors.torch import load_file

    load_file(path)


def _read_onnx(path: Path) -> None:
    import onnx

    onnx.checker.check_model(onnx.load(path))


def _read_picture(path: Path) -> None:
    import cv2

    data = path.read_bytes()
    assert data, "empty"
    assert data.endswith(b"\xff\xd9"), "cut off"
    assert cv2.imread(str(path)) is not None


def _read_arrays(path: Path) -> None:
    import numpy as np

    with np.load(path) as arrays:
        for name in arrays.files:
            arrays[name]


def _read_parquet(path: Path) -> None:
    import pyarrow.parquet

    pyarrow.parquet.read_table(path)


_READERS: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_text()),
    ".jsonl": _read_lines,
    ".npz": _read_arrays,
    ".csv": _read_csv,
    ".pt": _read_checkpoint,
    ".safetensors": _read_weights,
    ".onnx": _read_onnx,
    ".jpg": _read_picture,
    ".parquet": _read_parquet,
}
