"""An artifact checks itself on the machine where it lands: `python -m boxwright.tasks.predict.selfcheck FOLDER`.

The golden input that lies in the artifact is run in a child process, so that a crash costs nothing but the artifact.
"""

import hashlib
import json
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from boxwright.core import catalogue
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, MissingDependencyError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.packages import installed_version
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import Artifact, is_artifact, open_graph, read_artifact, read_golden
from boxwright.runtimes.parity import BOUNDS, distance

_log = get_logger(__name__)
OnMismatch = Literal["fallback", "refuse", "ignore"]
"""What to do with an artifact that fails its check: take the next best, refuse, or run it all the same, unchecked."""

_TIMEOUT_S = 300.0
# Quantised values differ a little from cpu to cpu; this much, or three times what was seen when it was written.
_INT8_LEAST, _INT8_TIMES = 0.05, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How the check of an artifact went.

    Attributes:
        ok: whether it may be used.
        note: why not.
        cached: whether that was known from an earlier check on this machine.
        artifact: its description, if that could be read.
    """

    ok: bool
    note: str = ""
    cached: bool = False
    artifact: Artifact | None = None


def check_artifact(folder: Path, *, timeout_s: float = _TIMEOUT_S, cache: Path | None = None) -> Check:
    """Return whether an artifact gives the golden output on this machine, checked once and then remembered.

    Args:
        folder: the artifact.
        timeout_s: how long the check may take.
        cache: where it is remembered, by cpu, versions and the artifact's content; by default in the user's cache.
    """
    try:
        artifact = read_artifact(folder)
        if catalogue.find("runtime", artifact.choice.runtime).missing():
            catalogue.load("runtime", artifact.choice.runtime)  # answers with the pip command
    except (CheckpointError, MissingDependencyError, UsageError) as error:
        return Check(ok=False, note=str(error))
    memory = (cache or Path.home() / ".cache" / "boxwright" / "checks") / f"{_key(artifact)}.json"
    if memory.is_file():
        return Check(ok=True, cached=True, artifact=artifact)
    check = replace(_run_child(folder, timeout_s), artifact=artifact)
    if check.ok:
        with suppress(OSError):  # a home that can't be written to costs a check each time, no more
            memory.parent.mkdir(parents=True, exist_ok=True)
            memory.write_text(json.dumps({"artifact": str(folder), "cpu": read_cpu().model}), encoding="utf-8")
    return check


def choose_artifact(folder: Path, *, on_mismatch: OnMismatch, fallback: Sequence[str | Path] = ()) -> Artifact:
    """Return the first artifact that passes its check: the folder itself, then those to fall back on.

    Args:
        folder: the artifact that was asked for.
        on_mismatch: see `OnMismatch`.
        fallback: other artifacts, best first; by default those of the same report, fastest first.

    Raises:
        CheckpointError: it fails its check, and nothing else is to be used or passes.
        UsageError: `on_mismatch` is unknown.
    """
    if on_mismatch not in ("fallback", "refuse", "ignore"):
        raise UsageError(f"on_mismatch={on_mismatch!r} is unknown. Choose from: fallback, refuse, ignore.")
    if on_mismatch == "ignore":
        return read_artifact(folder)
    said: list[str] = []
    paths = [folder]
    for path in paths:
        check = check_artifact(path)
        if check.ok and check.artifact is not None:
            if path != folder:
                _log.warning("%s. %r is used instead.", said[0], str(path))
            return check.artifact
        if not said and on_mismatch == "fallback":
            paths += [Path(f) for f in fallback] or find_siblings(folder)
        said.append(f"The artifact {str(path)!r} fails its check on this machine: {check.note.rstrip('.')}")
    tried = f" Neither do the others: {'; '.join(said[1:])}." if said[1:] else ""
    raise CheckpointError(f"{said[0]}.{tried} Convert the model again on this machine (boxwright optimize).")


def find_siblings(folder: Path) -> list[Path]:
    """Return the other usable artifacts of the report that an artifact belongs to, fastest first."""
    folder = folder.resolve()
    for home in (folder.parent, folder.parent.parent):
        try:
            values = json.loads((home / "report.json").read_text(encoding="utf-8"))
            rows = [r for r in values["rows"] if r["status"] == "successful" and r["latency_ms"] is not None]
            rows.sort(key=lambda row: row["latency_ms"])
            own = values["best"] if folder.name == "best" else folder.name
            found = [home / "artifacts" / row["method"] for row in rows if row["method"] != own]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return [path for path in found if is_artifact(path)]
    return []


def _run_child(folder: Path, timeout_s: float) -> Check:
    if not sys.executable:
        return Check(ok=False, note="this program does not know its own Python (sys.executable is empty)")
    command = [sys.executable, "-P", "-m", "boxwright.tasks.predict.selfcheck", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Check(ok=False, note=f"it took more than {timeout_s:g} s")
    if done.returncode < 0:
        with suppress(ValueError):
            return Check(ok=False, note=f"its process was killed by {signal.Signals(-done.returncode).name}")
        return Check(ok=False, note=f"its process was killed by signal {-done.returncode}")
    try:
        values = json.loads(done.stdout.strip().splitlines()[-1])
        return Check(ok=bool(values["ok"]), note=str(values["note"]))
    except (ValueError, IndexError, KeyError, TypeError):
        last = done.stderr.strip().splitlines()[-1:] or [f"its process ended with exit status {done.returncode}"]
        return Check(ok=False, note=last[0])


def _key(artifact: Artifact) -> str:
    """Return a hash of all that decides how the artifact computes: cpu, versions, and its own content."""
    cpu = read_cpu()
    packages = ("boxwright", "numpy", *catalogue.find("runtime", artifact.choice.runtime).packages)
    told = [cpu.model, sorted(cpu.isa), platform.python_version(), platform.platform(), dict(artifact.files)]
    told += [f"{p} {installed_version(p)}" for p in packages]
    told.append(artifact.choice.to_dict())
    return hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()[:32]


def _bound(artifact: Artifact) -> float:
    bound = BOUNDS[artifact.choice.precision]
    if artifact.choice.precision is Precision.INT8 and artifact.distance is not None:
        return min(bound, max(_INT8_LEAST, _INT8_TIMES * artifact.distance))
    return bound


def main() -> None:
    """Run the golden input of the artifact that the command line names, and print what came of it as JSON."""
    folder = Path(sys.argv[1])
    artifact = read_artifact(folder, verify=False)  # the parent has just done so
    inputs, expected = read_golden(folder)
    graph = open_graph(artifact)
    try:
        found = distance(graph.run(graph.signature.check(inputs)), expected)
    finally:
        graph.close()
    bound = _bound(artifact)
    note = "" if found <= bound else f"its output is {found:.3g} away from the original's; {bound:.3g} is allowed"
    sys.stdout.write("\n" + json.dumps({"ok": found <= bound, "note": note}) + "\n")


if __name__ == "__main__":
    main()
