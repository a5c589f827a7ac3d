"""Runs one input in a process forked from one that has imported everything, and measures it."""

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from fuzz.sandbox import Sandbox

MEMORY_MB = 1500

# Where Python code may read besides the sandbox.
_READABLE = (
    *filter(None, sys.path), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), "/usr/", "/lib", "/proc/",
    "/sys/", "/dev/null",
    "/dev/urandom", "/dev/shm", "/etc/localtime", "/etc/mime.types", "/etc/apache", "/etc/ssl", "/etc/os-release",
    "/etc/ld.so", "/etc/machine-id", "/etc/nsswitch", "/etc/hosts", "/etc/resolv.conf", "/etc/host.conf", "/opt/",
    "/bin/",
)  # fmt: skip
_WRITABLE = ("/dev/null", "/dev/shm", "/proc/")  # a child that uses much memory raises its own OOM score
_CHANGES = (
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.chmod",
    "os.chown",
)
# Programs that Boxwright starts: itself, compilers for native code, and tools that describe the machine.
_PROGRAMS = (
    "python",
    "gcc",
    "g++",
    "cc",
    "c++",
    "ld",
    "ldconfig",
    "fc-list",
    "lscpu",
    "nvidia-smi",
    "uname",
    "clang",
    "objdump",
    "sh",
)


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        code: the exit code, or minus the number of a signal.
        out: what it printed.
        err: what it printed on stderr.
        wall_s: how long it took.
        cpu_s: how long it computed, with the processes that it waited for.
        memory_mb: its largest resident size.
        limit: the limit that it exceeded and was killed for.
        events: what it did outside the given folders, from Python's audit events.
        left: processes that were still there after it.
    """

    code: int = 0
    out: bytes = b""
    err: bytes = b""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    limit: str = ""
    events: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def run_child(
    box: Sandbox,
    job: Callable[[], int],
    *,
    exec_argv: list[str] | None,
    wall_s: float,
    cpu_s: float,
    grace_s: float = 10.0,
) -> Outcome:
    """Run a job in a forked process and return how it ended. In that process this call does not return.

    Args:
        box: its folders.
        job: returns the exit code.
        exec_argv: run this program instead of the job.
        wall_s: kill it after this time.
        cpu_s: kill it after this much computing.
        grace_s: time for child processes to notice that their parent has ended.
    """
    outcome, begin_s = Outcome(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        _enter(box, cpu_s)
        if exec_argv is not None:
            os.execv(exec_argv[0], exec_argv)
        _watch_events(box)
        # With the interpreter's full shutdown: threads, exit functions and finalisers may fail too.
        sys.exit(job())
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        outcome.wall_s = time.monotonic() - begin_s
        if done:
            break
        rss_mb = _memory_mb(pid)
        outcome.memory_mb = max(outcome.memory_mb, rss_mb)
        if not outcome.limit and (outcome.wall_s > wall_s or rss_mb > MEMORY_MB):
            outcome.limit = f"over {wall_s:g} s" if outcome.wall_s > wall_s else f"over {MEMORY_MB} MB"
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01 if outcome.wall_s < 1 else 0.05)
    outcome.code = os.waitstatus_to_exitcode(status)
    outcome.cpu_s = usage.ru_utime + usage.ru_stime
    outcome.memory_mb = max(outcome.memory_mb, usage.ru_maxrss / 1024)
    if outcome.code in (-signal.SIGXCPU, -signal.SIGKILL) and not outcome.limit and outcome.cpu_s >= cpu_s:
        outcome.limit = f"over {cpu_s:g} s of computing"
    if not outcome.limit and outcome.memory_mb > MEMORY_MB:
        outcome.limit = f"over {MEMORY_MB} MB"
    outcome.left = _end_orphans(0 if outcome.limit else grace_s)
    outcome.out, outcome.err = ((box.logs / name).read_bytes() for name in ("out", "err"))
    events = box.logs / "events"
    outcome.events = sorted(set(events.read_text().splitlines())) if events.exists() else []
    return outcome


def _memory_mb(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * 4096 / 2**20
    except (OSError, IndexError):
        return 0.0


def _end_orphans(grace_s: float) -> list[str]:
    """Wait for processes that the child left behind; kill the rest and return them, or none without a grace period."""
    end_s = time.monotonic() + grace_s
    while True:
        try:
            done, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if done:
            continue
        if time.monotonic() >= end_s:
            break
        time.sleep(0.02)
    left = []
    for process in psutil.Process().children(recursive=True):
        try:
            left.append(" ".join(process.cmdline())[:200])
            process.kill()
        except psutil.Error:
            continue
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return left if grace_s else []


def _enter(box: Sandbox, cpu_s: float) -> None:
    """Restrict this process to the sandbox's folders, and send its output to files."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 5))
    # A run that fills the disk would disturb everything else on this machine.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    os.chdir(box.work)
    os.environ.update(box.environment())
    tempfile.tempdir = None  # chosen again, from the environment
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(box.logs / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)


def _watch_events(box: Sandbox) -> None:
    """Record what Python code does outside the given folders."""
    log = os.open(box.logs / "events", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    inputs, outside = f"{box.inputs}/", f"{box.outside}/"
    writable = (*(f"{folder}/" for folder in (box.work, box.out, box.home, box.tmp)), *_WRITABLE)
    readable = (f"{box.root}/", *_READABLE)
    mask = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    me = os.getpid()

    def refuse(text: str) -> None:
        os.write(log, text.encode("utf-8", "backslashreplace").replace(b"\n", b" ")[:500] + b"\n")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if os.getpid() != me:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(path, int) or path is None:
                return
            place = f"{os.path.abspath(os.fsdecode(path))}/"
            if flags & mask and not place.startswith((*writable, inputs)):
                refuse(f"writes {place}")
            elif not place.startswith(readable) or place.startswith(outside):
                refuse(f"reads {place}")
        elif event in _CHANGES:
            path = args[1 if event in ("os.rename", "os.symlink", "os.link") else 0]
            if isinstance(path, int) or args[-1] != -1:  # relative to an open folder, which was checked
                return
            place = f"{os.path.abspath(os.fsdecode(path))}/"
            if not place.startswith(writable):
                refuse(f"{event} {place}")
        elif event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"):
            program = os.path.basename(os.fsdecode(args[0] if isinstance(args[0], str | bytes) else str(args[0])))
            if event == "os.system" or not program.startswith(_PROGRAMS):
                refuse(f"{event} {args[0]!r} {args[1:2]!r}")
        elif (
            event == "socket.connect"
            and isinstance(args[1], tuple)
            and not str(args[1][0]).startswith(("127.", "::1", "local"))
        ):
            refuse(f"connects to {args[1]!r}")
        elif event == "pickle.find_class" and args[0] in ("os", "posix", "builtins", "subprocess", "sys"):
            refuse(f"unpickles {args[0]}.{args[1]}")

    sys.addaudithook(hook)
