"""How a worker loads its model, and how much memory it may take after that."""

import resource
from pathlib import Path
from typing import Any

from boxwright.core.packages import require
from boxwright.core.procfs import read_text
from boxwright.runtimes.artifact import Artifact, is_artifact
from boxwright.runtimes.base import Session, Tuning
from boxwright.serve.answer import Answerer
from boxwright.serve.batching import BatchingSession
from boxwright.tasks.models import ModelOptions, open_model
from boxwright.tasks.predict.selfcheck import choose_artifact


def open_answerer(values: dict[str, Any]) -> tuple[Answerer, dict[str, Any]]:
    """Return the loaded model and what the server tells about it.

    Args:
        values: of the start message: path, name, options, trust, device, tuning, quick.

    Raises:
        CheckpointError: it can't be loaded, or fails its self-check on this machine.
    """
    import cv2

    path, trust = Path(values["path"]), values["trust"]
    options = ModelOptions(**{name: _as_tuple(value) for name, value in values["options"].items()})
    found: Path | Artifact = path
    runtime, precision = "torch", "32"
    if is_artifact(path):
        found = choose_artifact(path, on_mismatch="refuse", trust=trust)
        runtime, precision = found.choice.runtime, str(found.choice.precision)
    elif path.suffix.lower() == ".onnx":
        runtime = "onnxruntime"
    tunings = [Tuning(**one) for one in values["tunings"]]
    cv2.setNumThreads(1 if values["streams"] > 1 else 0)
    sessions: list[Session]
    if runtime == "torch":
        require("torch", "safetensors", extra="train", by=f"{path.name!r}")
        from boxwright.tasks.checkpoint import open_checkpoint

        sessions = [open_checkpoint(path, options, device=values["device"], threads=tunings[0].threads)]
    else:
        sessions = [open_model(found, options, tuning, trust=trust) for tuning in tunings]
    if values["batch"] > 1:
        sessions = [BatchingSession(sessions[0], batch=values["batch"], wait_s=values["batch_wait_ms"] / 1000)]
    spec = sessions[0].spec
    facts = {"runtime": runtime, "precision": precision, "spec": spec.to_dict()}
    return Answerer(values["name"], *sessions), facts


def limit_memory(spare_bytes: int) -> None:
    """Let this process allocate only so much more: a picture's header may promise less than its decoder takes."""
    fields = dict(line.split(":", 1) for line in read_text(Path("/proc/self/status")).splitlines() if ":" in line)
    if "VmData" in fields:
        # Not the address space: runtimes and threads reserve much more of it than they use.
        limit = int(fields["VmData"].split()[0]) * 1024 + spare_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
