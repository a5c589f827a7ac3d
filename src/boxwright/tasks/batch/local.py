"""Engine `local`: processes of this machine; a single worker is this process itself."""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Thread

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import WorkerError
from boxwright.tasks.batch.inputs import Part
from boxwright.tasks.batch.worker import ModelFiles, PartResult, PartWorker, WorkerSettings, is_hopeless
from boxwright.tasks.models import find_model, place_model


def run_parts(
    settings: WorkerSettings, model: ModelFiles, parts: list[Part], report: Callable[[int], None]
) -> list[PartResult]:
    """Return the result of each part; by default with one worker per core, or one for PyTorch or an accelerator.

    Raises:
        WorkerError: a process died.
    """
    config = settings.config
    threads = config.threads or 1
    # PyTorch uses all cores anyway; its number of threads can't be set here.
    place = place_model(find_model(config.model), config.device)
    many = model.takes_threads and place.is_cpu  # on an accelerator each would hold the weights and graphs once more
    room = max(1, len(read_cpu().allowed) // threads) if many else 1
    workers = min(config.workers or room, len(parts))
    settings = replace(settings, threads=threads if model.takes_threads else None)
    results: list[PartResult] = []
    # Closed as soon as the run is hopeless, which ends the workers.
    with closing(
        _run_here(settings, model, parts) if workers == 1 else _run_pool(settings, model, parts, workers)
    ) as run:
        try:
            for result in run:
                results.append(result)
                report(len(results))
                if is_hopeless(results):
                    break
        except BrokenProcessPool as error:
            raise WorkerError(
                f"A worker died after {len(results)} of {len(parts)} parts (out of memory?). What is finished stays in "
                f"{settings.out!r}: the same command resumes with the rest."
            ) from error
    return results


def _run_here(settings: WorkerSettings, model: ModelFiles, parts: list[Part]) -> Generator[PartResult, None, None]:
    with closing(PartWorker(settings, model)) as worker:
        for part in parts:
            yield worker.run(part)


def _run_pool(
    settings: WorkerSettings, model: ModelFiles, parts: list[Part], workers: int
) -> Generator[PartResult, None, None]:
    # Fresh processes: a fork would inherit locks of a runtime that is in use here.
    context = multiprocessing.get_context("spawn")
    # Workers end when the other end of this pipe closes: if this process is interrupted, or is killed.
    alive, ending = context.Pipe(duplex=False)
    # Workers end at once, whatever they are doing: this process removes the files that they leave.
    with tempfile.TemporaryDirectory(prefix="boxwright-batch-") as folder:
        known = (settings, model, alive, folder)
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=known)
        try:
            for done in as_completed([pool.submit(_run, part) for part in parts]):
                yield done.result()
            pool.shutdown()
        finally:
            ending.close()  # unfinished parts are not awaited: a part is written whole or not at all
            pool.shutdown(cancel_futures=True)
            alive.close()


_worker: list[PartWorker] = []  # of a process of the pool: the model is sent once, not with every part


def _start(settings: WorkerSettings, model: ModelFiles, alive: Connection, folder: str) -> None:
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process ends the others
    Thread(target=_end_with, args=(alive,), daemon=True).start()
    _worker[:] = [PartWorker(settings, model)]


def _end_with(alive: Connection) -> None:
    """End this process when the one that started it closes its end of the pipe."""
    with suppress(OSError):
        alive.poll(None)
    os._exit(1)


def _run(part: Part) -> PartResult:
    return _worker[0].run(part)
