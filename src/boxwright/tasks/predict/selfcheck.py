"""An artifact is checked on each machine that it is copied to: `python -m boxwright.tasks.predict.selfcheck FOLDER`.

A child process runs the artifact's golden input, so that a crash costs nothing but the artifact.
"""

import hashlib
import json
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

from boxwright.core import catalogue
from boxwright.core.cpu import read_cpu
from boxwright.core.environment import cache_folder
from boxwright.core.errors import CheckpointError, MissingDependencyError, UsageError, check_choice
from boxwright.core.files import write_whole
from boxwright.core.log import get_logger
from boxwright.core.packages import installed_version
from boxwright.core.types import Precision
from boxwright.devices.chosen import CPU
from boxwright.devices.detect import find_accelerators
from boxwright.runtimes.artifact import Artifact, is_artifact, open_graph, read_artifact, read_golden
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.trust import check_files

_log = get_logger(__name__)
OnMismatch = Literal["fallback", "refuse", "ignore"]
"""What to do with an artifact that fails its check: use the next best, refuse, or run it anyway, unchecked."""

_TIMEOUT_S = 300.0
_TRUST = "--trust"
# Quantised values differ a little between cpus: by this much, or by three times the distance when it was written.
_INT8_LEAST, _INT8_TIMES = 0.05, 3.0


def check_artifact(folder: Path, *, trust: bool = False, timeout_s: float = _TIMEOUT_S) -> Artifact:
    """Return an artifact that gives its golden output on this machine.

    It is checked once, and then remembered in the user's cache, by cpu, versions and the artifact's content.

    Raises:
        CheckpointError: it does not, it is damaged, or without `trust` it holds code of another user or machine.
        MissingDependencyError: its runtime is not installed.
        UsageError: its runtime is unknown.
    """
    artifact = read_artifact(folder)
    if not trust:
        check_files(folder, artifact.files)
    if catalogue.find("runtime", artifact.choice.runtime).missing():
        catalogue.load("runtime", artifact.choice.runtime)  # raises with the pip command
    memory = cache_folder("checks") / f"{_key(artifact)}.json"
    if not memory.is_file():
        if fault := _run_child(folder, timeout_s):
            raise CheckpointError(fault)
        with suppress(OSError):  # if the home can't be written to, every load is checked
            write_whole(memory, json.dumps({"artifact": str(folder), "cpu": read_cpu().model}))
    return artifact


def choose_artifact(
    folder: Path, *, on_mismatch: OnMismatch, fallback: Sequence[str | Path] = (), trust: bool = False
) -> Artifact:
    """Return the first artifact that passes its check: the folder itself, then those to fall back on.

    Args:
        folder: the wanted artifact.
        on_mismatch: see `OnMismatch`.
        fallback: other artifacts, best first; by default those of the same report, fastest first.
        trust: use artifacts with code of another user or machine too.

    Raises:
        CheckpointError: it fails its check, and no other one may be used or passes.
        UsageError: `on_mismatch` is unknown.
    """
    check_choice("on_mismatch", on_mismatch, ("fallback", "refuse", "ignore"))
    if on_mismatch == "ignore":
        return read_artifact(folder)
    faults: list[str] = []
    paths = [folder]
    for path in paths:
        try:
            artifact = check_artifact(path, trust=trust)
        except (CheckpointError, MissingDependencyError, UsageError) as error:
            if not faults and on_mismatch == "fallback":
                paths += [Path(f) for f in fallback] or find_siblings(folder)
            faults.append(f"The artifact {str(path)!r} fails its check on this machine: {str(error).rstrip('.')}")
            continue
        if path != folder:
            _log.warning("%s. %r is used instead.", faults[0], str(path))
        return artifact
    tried = f" Neither do the others: {'; '.join(faults[1:])}." if faults[1:] else ""
    raise CheckpointError(f"{faults[0]}.{tried} Convert the model again on this machine (boxwright optimize).")


def find_siblings(folder: Path) -> list[Path]:
    """Return the other usable artifacts of the report that an artifact belongs to, fastest first.

    A report may come from someone else: only known methods count, and only artifacts in its own folder.
    """
    folder = folder.resolve()
    for home in (folder.parent, folder.parent.parent):
        report = home / "report.json"
        if not report.is_file():
            continue
        from boxwright.optimize.candidates import METHODS

        try:
            values = json.loads(report.read_text(encoding="utf-8"))
            rows = [r for r in values["rows"] if r["status"] == "successful" and r["latency_ms"] is not None]
            rows.sort(key=lambda row: row["latency_ms"])
            own = values["best"] if folder.name == "best" else folder.name
            found = [home / "artifacts" / row["method"] for row in rows if row["method"] in METHODS]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        return [path for path in found if path.name != own and path.resolve() == path and is_artifact(path)]
    return []


def _run_child(folder: Path, timeout_s: float) -> str:
    """Return what is wrong with an artifact, "" if nothing is."""
    if not sys.executable:
        return "this program does not know its own Python (sys.executable is empty)"
    # The parent has compared the files with their hashes, and made sure that they may run.
    command = [sys.executable, "-P", "-m", "boxwright.tasks.predict.selfcheck", str(folder.absolute()), _TRUST]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {timeout_s:g} s"
    if done.returncode < 0:
        with suppress(ValueError):
            return f"its process was killed by {signal.Signals(-done.returncode).name}"
        return f"its process was killed by signal {-done.returncode}"
    try:
        return str(json.loads(done.stdout.strip().splitlines()[-1])["fault"])
    except (ValueError, IndexError, KeyError, TypeError):
        last = done.stderr.strip().splitlines()[-1:] or [f"its process ended with exit status {done.returncode}"]
        return last[0]


def _key(artifact: Artifact) -> str:
    """Return a hash of all that the check depends on: cpu, versions, and the artifact's content.

    `read_artifact` has made sure that `files` are the real hashes of all files.
    """
    cpu = read_cpu()
    packages = ("boxwright", "numpy", *catalogue.find("runtime", artifact.choice.runtime).packages)
    facts: list[Any] = [
        cpu.model,
        sorted(cpu.isa),
        platform.python_version(),
        platform.platform(),
        dict(artifact.files),
    ]
    facts += [f"{p} {installed_version(p)}" for p in packages]
    facts += [artifact.choice.to_dict(), artifact.signature.to_dict(), artifact.distance]
    facts.append(None if artifact.spec is None else artifact.spec.to_dict())
    if artifact.choice.device != CPU:
        facts.append([one.path for one in find_accelerators()])
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]


def main() -> None:
    """Run the golden input of the artifact that the command line names, and print what is wrong as JSON."""
    folder, trust = Path(sys.argv[1]), _TRUST in sys.argv[2:]
    artifact = read_artifact(folder, verify=not trust)
    inputs, expected = read_golden(folder)
    with closing(open_graph(artifact, trust=trust)) as graph:
        found = distance(graph.run(graph.signature.check(inputs)), expected)
    bound = BOUNDS[artifact.choice.precision]
    if artifact.choice.precision is Precision.INT8 and artifact.distance is not None:
        bound = min(bound, max(_INT8_LEAST, _INT8_TIMES * artifact.distance))
    fault = "" if found <= bound else f"its output is {found:.3g} away from the original's; {bound:.3g} is allowed"
    sys.stdout.write("\n" + json.dumps({"fault": fault}) + "\n")


if __name__ == "__main__":
    main()
