"""Builds the simulated device's library once and keeps it: `library()` returns its path."""

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

import torch

_SOURCE = Path(__file__).with_name("device.cpp")
_FOLDER = Path(__file__).resolve().parents[3] / "build" / "simulated_hpu"  # git-ignored


def library() -> Path:
    """Return the shared library for this torch, building it (20 to 40 s) where it is not there yet."""
    packed = f"{torch.__version__} {torch.version.git_version}".encode() + _SOURCE.read_bytes()
    path = _FOLDER / f"{hashlib.sha256(packed).hexdigest()[:16]}.so"
    if path.exists():
        return path
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes may come at once
        if not path.exists():
            _compile(path)
    return path


def _compile(path: Path) -> None:
    root = Path(torch.__file__).parent
    part = path.with_suffix(f".{os.getpid()}.part")
    command = [
        os.environ.get("CXX", "g++"), "-O0", "-shared", "-fPIC", "-std=c++20", "-w",
        f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}", str(_SOURCE), "-o", str(part),
        f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The simulated HPU can't be built:\n{done.stderr[-4000:]}")
    part.replace(path)
