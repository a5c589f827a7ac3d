"""Kills a command, or one of its processes, at a chosen moment, and runs it again."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from chaos.jobs import Job
from chaos.leftovers import find_torn, wait_for_orphans

CODES = range(7)
_LIMIT_S, _LIMIT_TIMES = 180.0, 5.0  # for a command to end: the larger of this and this many times its duration
_LIBRARIES = (".ses", "torchinductor_")  # temporary files of ONNX Runtime and torch


@dataclass
class Undisturbed:
    """The duration and the result of an uninterrupted job."""

    seconds: float
    result: Any

    @property
    def limit_s(self) -> float:
        """How long a command may take to end."""
        return max(_LIMIT_S, _LIMIT_TIMES * self.seconds)


def start(words: list[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a command in its own session, with its output in a file."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    env["BOXWRIGHT_CACHE"] = str(folder.parent / "cache")  # kernels are compiled once, by the undisturbed run
    for place in ("home", "tmp"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "boxwright", *words],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def run_undisturbed(job: Job, folder: Path) -> Undisturbed:
    """Run a job to its end."""
    begin_s = time.monotonic()
    code = start(job.first(folder), folder, "first").wait()
    assert code == 0, f"{job.name} fails by itself: {(folder / 'first.log').read_text()[-2000:]}"
    return Undisturbed(time.monotonic() - begin_s, job.result(folder))


def choose(job: Job, seed: int, moment: int, moments: int) -> tuple[float, str, signal.Signals]:
    """Return when to kill (as a part of the job's duration), what, and by which signal; moments are spread evenly."""
    rng = random.Random(f"{seed}:{job.name}:{moment}")
    share = (moment + rng.random()) / moments * 0.97
    victim = "child" if job.has_children and moment % 2 else "parent"
    return share, victim, signal.SIGTERM if moment // 2 % 2 else signal.SIGKILL


def try_moment(job: Job, folder: Path, whole: Undisturbed, plan: tuple[float, str, signal.Signals]) -> list[str] | None:
    """Kill a job once, check what is left, run it again, and return the faults; None if it ended before the moment."""
    share, victim, number = plan
    known = {child.pid for child in psutil.Process().children(recursive=True)}
    begin_s = time.monotonic()
    process = start(job.first(folder), folder, "first")
    try:
        process.wait(share * whole.seconds)
    except subprocess.TimeoutExpired:
        target = _find_victim(process.pid, victim, job.child_name)
        try:
            target.send_signal(number)
        except psutil.NoSuchProcess:  # this worker has just ended
            target = psutil.Process(process.pid)
            target.send_signal(number)
    else:
        whole.seconds = time.monotonic() - begin_s
        faults = [f"left a process: {one}" for one in wait_for_orphans(known)]
        if process.returncode:
            faults.append(f"exit code {process.returncode} without a kill")
        return faults or None
    try:
        code = process.wait(whole.limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return [f"it did not end in {whole.limit_s:.0f} s", *wait_for_orphans(known, 5)]
    hit_parent = target.pid == process.pid
    faults = [f"left a process: {one}" for one in wait_for_orphans(known)]
    log = (folder / "first.log").read_text(errors="replace")
    if hit_parent:
        allowed = {-signal.SIGKILL} if number == signal.SIGKILL else {-signal.SIGTERM, 128 + signal.SIGTERM}
    else:
        allowed = {*CODES, 128 + signal.SIGTERM}
    if code not in (*allowed, 0):
        faults.append(f"exit code {code}")
    if "Traceback (most recent call last)" in log and "py4j" not in log:  # py4j logs its own when Java is killed
        faults.append(f"traceback: {log.strip().splitlines()[-1][:150]}")
    faults += find_torn(folder, drafts=number == signal.SIGKILL)
    if number == signal.SIGTERM:
        left = [path.name for path in (folder / "tmp").iterdir() if not path.name.startswith(_LIBRARIES)]
        faults += [f"left {name} in the folder for temporary files" for name in left]
    return faults + _run_again(job, folder, whole)


def _find_victim(pid: int, victim: str, name: str) -> psutil.Process:
    """Return the process itself, or the youngest of its workers; itself too if there is none yet."""
    parent = psutil.Process(pid)
    if victim == "parent":
        return parent
    if name:
        ours = psutil.Process().children(recursive=True)  # the cluster's too, but not those of another one
        children = [one for one in ours if _name_of(one).startswith(name)]
    else:
        children = [one for one in parent.children(recursive=True) if not _is_helper(one)]
    return children[-1] if children else parent


def _name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _is_helper(process: psutil.Process) -> bool:
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return True
    # Compilers are not killed: without them other kernels are used, whose last digits differ.
    return not any(name in words for name in ("python", "java", "ray::")) or "resource_tracker" in words


def _run_again(job: Job, folder: Path, whole: Undisturbed) -> list[str]:
    process = start(job.again(folder), folder, "again")
    try:
        code = process.wait(whole.limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return ["the second run did not end"]
    if code:
        return [f"the second run ended with exit code {code}: {(folder / 'again.log').read_text().strip()[-300:]}"]
    try:
        return [] if job.result(folder) == whole.result else ["the second run has another result"]
    except Exception as error:  # noqa: BLE001 - any error means that there is no result
        return [f"the second run has no result: {error!r}"]


def kill_at_moments(job: Job, inputs: Path, *, seed: int, moments: int, only: int | None = None) -> list[bool]:
    """Kill a job at each of its moments, print a line for each, and return which passed.

    A run that ends before its moment, because the machine is faster than before, shows nothing: another one is killed.
    """
    base = inputs.parent / job.name.replace(" ", "_")
    shutil.rmtree(base, ignore_errors=True)
    (base / "whole").mkdir(parents=True)
    whole = run_undisturbed(job, base / "whole")
    results = []
    for moment in range(moments) if only is None else [only]:
        folder = base / str(moment)
        plan = choose(job, seed, moment, moments)
        begin_s = time.monotonic()
        faults = None
        while faults is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            faults = try_moment(job, folder, whole, plan)
        took_s = time.monotonic() - begin_s
        what = f"{plan[2].name} to the {plan[1]} at {plan[0] * whole.seconds:.1f} of {whole.seconds:.1f} s"
        print(f"{job.name} {moment}: {what}: {'; '.join(faults) or 'well'} ({took_s:.0f} s)", flush=True)
        results.append(not faults)
        if not faults:
            shutil.rmtree(folder)
    return results
