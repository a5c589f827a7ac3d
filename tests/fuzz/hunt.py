"""Runs inputs one after the other, in several processes, and counts."""

import json
import os
import shutil
import sys
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.calls import run_call
from fuzz.cases import Case, Maker
from fuzz.checks import check
from fuzz.child import Outcome, run_child
from fuzz.sandbox import Sandbox
from support.processes import adopt_orphans

# Not onnxruntime, openvino and pyarrow: they start threads when they are imported, and a fork loses those.
_PRELOAD = (
    "torch", "cv2", "numpy", "onnx", "safetensors.torch", "yaml", "rich.console", "hotcoco", "rich.progress",
    "rich.logging", "PIL.Image", "boxwright.cli", "boxwright.data.check", "boxwright.runtimes.eager",
    "boxwright.runtimes.torchscript", "boxwright.tasks.benchmark", "boxwright.tasks.checkpoint", "boxwright.tasks.data",
    "boxwright.tasks.doctor", "boxwright.tasks.evaluate", "boxwright.tasks.export", "boxwright.tasks.info",
    "boxwright.tasks.optimize", "boxwright.tasks.predict.outputs", "boxwright.tasks.predict.predictor",
    "boxwright.tasks.train.run", "boxwright.vision.transforms",
)  # fmt: skip


def preload() -> None:
    """Import what commands need, so that a fork of this process starts at once. None of it starts a thread."""
    from importlib import import_module

    os.environ["OMP_NUM_THREADS"] = "1"
    for name in _PRELOAD:
        try:
            import_module(name)
        except ImportError as error:
            print(f"not preloaded: {name} ({error})", file=sys.stderr)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads run after the imports; a fork would lose them"


def make_seeds_apart(folder: Path) -> None:
    """Make the seeds in a forked process, whose threads end with it."""
    from fuzz.commands import read_options
    from fuzz.seeds import make_seeds

    pid = os.fork()
    if pid == 0:
        draft = folder.with_name(f"{folder.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        make_seeds(draft)
        (draft / "options.json").write_text(json.dumps(read_options()))
        draft.rename(folder)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit("The seeds could not be made; the reason is above.")


def run_case(case: Case, box: Sandbox, args: Namespace) -> tuple[Outcome, list[str]]:
    """Run one input whose files are in the sandbox, and return how it ended and what was wrong."""
    before = box.snapshot()
    box.watch()
    real = [sys.executable, "-m", "boxwright", *case.argv] if case.real else None

    def job() -> int:
        if case.kind == "call":
            return run_call(case.name, box.inputs)
        from boxwright.cli import main

        return main(case.argv)

    outcome = run_child(box, job, exec_argv=real, wall_s=args.wall, cpu_s=args.cpu)
    found = check(box, before, outcome, good=case.good, json_lines="--json" in case.argv)
    return outcome, found


def work(number: int, args: Namespace, report: int) -> None:
    """Run this worker's share of the inputs until time is up; write a line for each into a pipe."""
    adopt_orphans()
    maker = Maker(args.out / "seeds", args.only)
    box = Sandbox(args.out / f"box{number}")
    at = args.first + number
    while time.monotonic() < args.end_s and (args.inputs is None or at < args.first + args.inputs):
        box.reset()
        case = maker.make(args.seed, at, box)
        outcome, found = run_case(case, box, args)
        if found:
            keep(box, case, outcome, found, args.out / "findings")
        # Short enough for an atomic write to the pipe, which all workers share.
        values = {
            "at": at, "name": case.name, "kind": case.kind, "words": " ".join(case.argv)[:200], "code": outcome.code,
            "wall_s": outcome.wall_s, "cpu_s": outcome.cpu_s, "memory_mb": outcome.memory_mb,
            "found": [one[:200] for one in found[:5]],
        }  # fmt: skip
        os.write(report, (json.dumps(values) + "\n").encode())
        at += args.jobs


def keep(box: Sandbox, case: Case, outcome: Outcome, found: list[str], folder: Path) -> None:
    """Store the input and its output, to be replayed."""
    place = folder / case.name.replace(":", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.rename(box.inputs, place / "in")
    case.save(place / "case.json", found)
    (place / "out").write_bytes(outcome.out[:1_000_000])
    logs = b"".join(path.read_bytes() for path in box.tmp.glob("boxwright-*.log"))  # the traceback of exit code 70
    (place / "err").write_bytes(outcome.err[:1_000_000] + logs[:1_000_000])
    (place / "replay.sh").write_text(f"cd {Path.cwd()} && {sys.executable} -m tests.fuzz --replay {place.absolute()}\n")


def replay(folder: Path, args: Namespace) -> int:
    """Run a kept input again and print what happens."""
    adopt_orphans()
    case = Case.load(folder / "case.json")
    box = Sandbox(args.out / "box0")
    box.reset()
    if (folder / "in").exists():
        shutil.rmtree(box.inputs)
        os.system(f"cp -a '{folder / 'in'}' '{box.inputs}'")  # which copies FIFOs too
    outcome, found = run_case(case, box, args)
    print(f"boxwright {' '.join(case.argv)}" if case.argv else f"call {case.name}")
    print(
        f"exit code {outcome.code}, {outcome.wall_s:.1f} s, {outcome.cpu_s:.1f} s computing, {outcome.memory_mb:.0f} MB"
    )
    logs = b"".join(path.read_bytes() for path in box.tmp.glob("boxwright-*.log"))
    sys.stdout.write((outcome.out + outcome.err + logs).decode(errors="backslashreplace"))
    print("\n".join(f"FOUND {one}" for one in found) or "nothing wrong")
    return 1 if found else 0


class Counts:
    """The counts of a run; a resumed run adds to them."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        values = values or {}
        self.kinds: Counter[str] = Counter(values.get("kinds", {}))
        self.codes: Counter[str] = Counter(values.get("codes", {}))
        self.slowest: list[Any] = values.get("slowest", [0.0, ""])
        self.largest: list[Any] = values.get("largest", [0.0, ""])
        self.findings: int = values.get("findings", 0)
        self.seconds: float = values.get("seconds", 0.0)
        self.cpu_s: float = values.get("cpu_s", 0.0)

    def add(self, one: dict[str, Any]) -> None:
        """Count one input."""
        self.kinds[one["kind"]] += 1
        self.codes[str(one["code"])] += 1
        self.slowest = max(self.slowest, [one["wall_s"], one["name"]])
        self.largest = max(self.largest, [one["memory_mb"], one["name"]])
        self.findings += bool(one["found"])
        self.cpu_s += one["cpu_s"]

    def lines(self) -> list[str]:
        """Return lines to print."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.kinds.items()))
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        return [
            f"{sum(self.kinds.values())} inputs in {self.seconds:.0f} s, {self.cpu_s:.0f} s computing ({kinds})",
            f"exit codes {codes}",
            f"slowest {self.slowest[0]:.1f} s ({self.slowest[1]})",
            f"largest {self.largest[0]:.0f} MB ({self.largest[1]})",
            f"{self.findings} findings",
        ]
