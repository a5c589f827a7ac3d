"""The far end: one worker's process, from a bare interpreter to the job's result.

`python -m boxwright.launchers.worker FOLDER OUTCOME_FILE`, started by a launcher with the worker's environment.
Libraries that read the affinity mask or the environment only once (OpenMP, so torch, numpy and OpenCV) are imported
after both are set.
"""

import atexit
import ctypes
import faulthandler
import gc
import io
import json
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from boxwright.core.world import World
from boxwright.launchers.base import GUARD, IMPORTING_MAIN
from boxwright.launchers.outcome import describe_failure, describe_result, write_outcome
from boxwright.launchers.payload import unpack

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LEAVE_S = 30
_AFTER_FAILURE_S = 2


def main() -> None:
    """Run the job in the folder on the command line, and end this process."""
    folder, file = Path(sys.argv[1]), Path(sys.argv[2])
    start = json.loads((folder / "start.json").read_text(encoding="utf-8"))
    die_with(start["parent"], signal.SIGKILL)
    guard = guard_children()
    try:
        _settle_in(start)
        _work(folder, file, start["main"])
    except BaseException as error:  # noqa: BLE001  the border where a failure becomes a message
        _report(file, error, main_by_name=start["main"] is not None)
        status = 1
    else:
        status = 0
    _end(status, guard)


def die_with(parent: int, number: int) -> None:
    """Have the kernel signal this process when its parent dies; end it if the parent is dead already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def guard_children() -> int:
    """Start a guard process that kills all this process has started as soon as it dies; return the guard's id.

    Data workers would otherwise outlive a killed worker, some for seconds, some forever.
    """
    leader = os.getpid()
    if os.getpgrp() != leader:
        os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    guard = os.fork()
    if guard == 0:
        os.closerange(0, 64)  # the launcher reads the worker's pipes until all ends are closed
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, GUARD.encode())
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR2)
        if os.getppid() == leader:
            signal.sigwait({signal.SIGUSR2})
        os.killpg(leader, signal.SIGKILL)  # the guard too
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    return guard


def _settle_in(start: dict[str, Any]) -> None:
    """Set the worker's cores, search path and arguments."""
    cores = World.from_env(os.environ).cores
    if cores:
        os.sched_setaffinity(0, cores)
    sys.path[:] = start["path"]
    sys.argv[:] = start["argv"]
    if start["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = start["pythonpath"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    faulthandler.enable()


def _work(folder: Path, file: Path, main_module: dict[str, str] | None) -> None:
    world = World.from_env(os.environ)
    if main_module is not None:
        from multiprocessing.spawn import prepare  # `subprocess` does not need it

        os.environ[IMPORTING_MAIN] = "1"
        prepare(main_module)
        del os.environ[IMPORTING_MAIN]
    job = unpack((folder / "job").read_bytes())
    try:
        value = job(world)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        value = None
    value = value if world.is_first else None
    write_outcome(file, describe_result(value, main_by_name=main_module is not None))


def _report(file: Path, error: BaseException, *, main_by_name: bool) -> None:
    # The first two frames are this file's.
    frames = error.__traceback__ and error.__traceback__.tb_next
    error.__traceback__ = frames and (frames.tb_next or frames)
    try:
        write_outcome(file, describe_failure(error, main_by_name=main_by_name))
    except OSError:  # a full disk: print it at least
        traceback.print_exception(error)


def _end(status: int, guard: int) -> None:
    """Clean up and end this process. An error here is printed but changes nothing: the outcome is written."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        if status == 0:
            for thread in threading.enumerate():  # the interpreter would wait for them, too
                if thread is not threading.current_thread() and not thread.daemon:
                    thread.join()
            signal.alarm(_LEAVE_S)  # a back end that waits for its peers here must not hold them up
            _leave_group()
            signal.alarm(0)
        else:
            signal.alarm(_AFTER_FAILURE_S)  # the launcher waits for this worker's end
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):  # the job closed or replaced it
            stream.flush()  # type: ignore[union-attr]
    with suppress(OSError):
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)
    # Interpreter shutdown is skipped: torch's threads sometimes abort in it, after all work is done.
    os._exit(status)


def _leave_group() -> None:
    """Leave torch's process group if the job has not, without importing torch."""
    gc.collect()  # torch aborts while DDP's hooks are alive
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
