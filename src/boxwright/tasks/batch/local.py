"""Engine `local`: processes of this machine; a single worker is this process itself."""

import multiprocessing
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import replace

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import WorkerError
from boxwright.tasks.batch.inputs import Part
from boxwright.tasks.batch.worker import ModelFiles, PartResult, PartWorker, WorkerSettings, is_hopeless


def run_parts(
    settings: WorkerSettings, model: ModelFiles, parts: list[Part], report: Callable[[int], None]
) -> list[PartResult]:
    """Return the result of each part; by default with one worker per core, or a single one for a PyTorch model.

    Raises:
        WorkerError: a process died.
    """
    config = settings.config
    threads = config.threads or 1
    # PyTorch uses all cores by itself, and has no setting for that here.
    room = max(1, len(read_cpu().allowed) // threads) if model.takes_threads else 1
    workers = min(config.workers or room, len(parts))
    settings = replace(settings, threads=threads if model.takes_threads else None)
    results: list[PartResult] = []
    # Closed at the first hopeless moment, which ends the workers.
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
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(settings, model))
    try:
        for done in as_completed([pool.submit(_run, part) for part in parts]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


_worker: list[PartWorker] = []  # of a process of the pool: the model is sent once, not with every part


def _start(settings: WorkerSettings, model: ModelFiles) -> None:
    _worker[:] = [PartWorker(settings, model)]


def _run(part: Part) -> PartResult:
    return _worker[0].run(part)
