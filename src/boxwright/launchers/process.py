"""The near end: one worker's process, as seen by whoever started it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from boxwright.core.errors import UsageError
from boxwright.launchers.base import ATTEMPT, RENDEZVOUS, WorkerSpec
from boxwright.launchers.outcome import Outcome, read_outcome


def write_start(
    folder: Path,
    job: bytes,
    main_module: Mapping[str, str] | None,
    *,
    path: Sequence[str] | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Write what all workers of a launch read first: the job, and the search path and arguments to take on.

    Args:
        folder: the launch's folder.
        job: the packed job.
        main_module: how to import `__main__` before the job is unpacked; None to leave it.
        path: where modules are looked for; None for this interpreter's `sys.path`.
        argv: the program's arguments; None for this one's `sys.argv`.
    """
    start = {
        "parent": os.getpid(),
        # "" is where we are now
        "path": [os.path.abspath(entry) for entry in (sys.path if path is None else path)],
        "argv": list(sys.argv if argv is None else argv),
        "pythonpath": os.environ.get("PYTHONPATH"),
        "main": main_module,
    }
    (folder / "start.json").write_text(json.dumps(start), encoding="utf-8")
    (folder / "job").write_bytes(job)


class WorkerProcess:
    """A fresh interpreter that runs one worker's job.

    It dies with the *thread* that made it (the kernel counts so): that thread must stay until it has ended.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        folder: Path,
        *,
        attempt: int,
        master_port: int,
        master_addr: str = "127.0.0.1",
        cwd: str | None = None,
    ) -> None:
        """Start the worker, in folder `cwd` if that is given; `write_start` has been called for the launch's folder.

        Raises:
            UsageError: there is no Python to start.
        """
        if not sys.executable:
            raise UsageError("This program does not know its own Python (sys.executable is empty). Set sys.executable.")
        self.rank = spec.rank
        self.status: int | None = None
        self.answers = folder / str(attempt)
        self.answers.mkdir(exist_ok=True)
        world = spec.world(master_port=master_port, master_addr=master_addr)
        # torchrun's variables would make torch look for torchrun's rendezvous instead of ours.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        own = {
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),  # until it has our path
            ATTEMPT: str(attempt),
            RENDEZVOUS: f"{world.master_addr}:{world.master_port}",
        }
        # -O, -W, -X and the like, as multiprocessing passes them on.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._popen = subprocess.Popen(
            # -P: a file in the current folder that is named like a module must not be taken for it.
            [sys.executable, *flags, "-P", "-m", "boxwright.launchers.worker", str(folder), str(attempt)],
            env={**inherited, **own, **spec.variables(world)},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # a group of its own: what it starts can be ended with it
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._popen.pid

    @property
    def streams(self) -> dict[str, int]:
        """The ends of its stdout and stderr to read from, as file descriptors."""
        named = {"stdout": self._popen.stdout, "stderr": self._popen.stderr}
        return {name: pipe.fileno() for name, pipe in named.items() if pipe is not None}

    def poll(self) -> int | None:
        """Return how the process ended (exit status, or minus the signal's number); None while it runs."""
        if self.status is None:
            with suppress(ChildProcessError):  # somebody else has waited for it
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
            # Nobody can get its number before we have waited for it: now is the time to end what it left behind.
            self._signal_group(signal.SIGKILL)
            self.status = self._popen.wait()
        return self.status

    def outcome(self) -> Outcome | None:
        """Return what the worker wrote about its job; None if there is nothing."""
        return read_outcome(self.answers, self.rank)

    def terminate(self) -> None:
        """Ask the worker to end; its data workers stay, so that it can save what it wants to save."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the worker and everything it started, at once."""
        if self.status is None:
            self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
