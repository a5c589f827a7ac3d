"""The near end: one worker's process, as seen by the process that started it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from boxwright.core.errors import UsageError
from boxwright.core.world import RENDEZVOUS
from boxwright.launchers.base import ATTEMPT, WorkerSpec
from boxwright.launchers.outcome import read_outcome
from boxwright.launchers.supervisor import Worker

_CHUNK = 1 << 16
_KILLED_S = 5.0

Forward = Callable[[str, bytes], None]
"""Takes some output of "stdout" or "stderr"; no bytes at its end."""


def write_start(
    folder: Path,
    job: bytes,
    main_module: Mapping[str, str] | None,
    *,
    path: Sequence[str] | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Write what all workers of a launch read first: the packed job, and how to prepare for it.

    Args:
        folder: the launch's folder.
        job: the packed job.
        main_module: how to import `__main__` before the job is unpacked; None to skip that.
        path: `sys.path` in the worker; None for this interpreter's.
        argv: `sys.argv` in the worker; None for this interpreter's.
    """
    start = {
        "parent": os.getpid(),
        # "" is the current folder
        "path": [os.path.abspath(entry) for entry in (sys.path if path is None else path)],
        "argv": list(sys.argv if argv is None else argv),
        "pythonpath": os.environ.get("PYTHONPATH"),
        "main": main_module,
    }
    (folder / "start.json").write_text(json.dumps(start), encoding="utf-8")
    (folder / "job").write_bytes(job)


class WorkerProcess(Worker):
    """A fresh interpreter that runs one worker's job.

    The kernel kills it when the *thread* that started it ends: that thread must outlive it.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        folder: Path,
        forward: Forward,
        *,
        master_port: int,
        master_addr: str = "127.0.0.1",
        store: str = "",
        attempt: int = 0,
        cwd: str | None = None,
    ) -> None:
        """Start the worker.

        Args:
            spec: the worker.
            folder: the launch's folder, for which `write_start` has been called.
            forward: gets the worker's output.
            master_port: the port on which the first worker listens.
            master_addr: the address on which it listens.
            store: the file through which the workers find each other instead.
            attempt: how often the workers were started before.
            cwd: the folder to start in; None for the current one.

        Raises:
            UsageError: there is no Python to start.
        """
        if not sys.executable:
            raise UsageError("This program does not know its own Python (sys.executable is empty). Set sys.executable.")
        super().__init__(spec.rank)
        self._forward, self._kill_s = forward, float("inf")
        self._outcome_file = folder / f"outcome-{attempt}-{spec.rank}"
        world = spec.world(master_port=master_port, master_addr=master_addr, store=store)
        # torchrun's variables would make torch look for torchrun's rendezvous instead of ours.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        own = {
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),  # until it has our path
            ATTEMPT: str(attempt),
            RENDEZVOUS: f"{world.master_addr}:{world.master_port}",
        }
        # -O, -W, -X and so on, as multiprocessing passes them on.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._popen = subprocess.Popen(
            # -P: a file in the current folder must not be imported instead of a module with the same name.
            [sys.executable, *flags, "-P", "-m", "boxwright.launchers.worker", str(folder), str(self._outcome_file)],
            env={**inherited, **own, **spec.variables(world)},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # its own process group: what it starts can be killed with it
        )
        self._open: dict[int, str] = {}
        for name, pipe in (("stdout", self._popen.stdout), ("stderr", self._popen.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._open[pipe.fileno()] = name

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def sources(self) -> list[int]:
        """The file descriptors to `read` from; none is left when the process is about to end."""
        return list(self._open)

    def read(self, source: int) -> bool:
        """Forward some output without waiting; return whether there may be more."""
        try:
            data = os.read(source, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._forward(self._open[source], data)
        else:
            del self._open[source]
        return bool(data)

    def poll(self) -> int | None:
        """Return how the process ended (exit status, or minus the signal's number); None while it runs."""
        if self.status is None:
            if time.monotonic() >= self._kill_s:
                self.kill()
            with suppress(ChildProcessError):  # other code has already waited for it
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
            # Its id can't be reused before we have waited for it: now is the time to kill what it left behind.
            self._signal_group(signal.SIGKILL)
            self.status = self._popen.wait()
            self.outcome = read_outcome(self._outcome_file)
            self.ended_s = time.monotonic() if self.outcome is None else self.outcome.time_s
            for source in self.sources:
                while self.read(source):
                    pass
            self._open.clear()
            for name in ("stdout", "stderr"):
                self._forward(name, b"")
        return self.status

    def stop(self, patience_s: float) -> None:
        """Ask the worker to end, and have `poll` kill it after `patience_s`.

        Its data workers are not asked, so that it can save its work.
        """
        if self.status is None:
            self._kill_s = min(self._kill_s, time.monotonic() + patience_s)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the worker and everything it started."""
        if self.status is None:
            self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Kill the worker, wait for its end and close the pipes; output that is still there is dropped."""
        self.kill()
        self._forward = lambda *_: None  # it may be what failed
        end_s = time.monotonic() + _KILLED_S
        while self.poll() is None and time.monotonic() < end_s:
            time.sleep(0.01)
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
