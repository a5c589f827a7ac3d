"""Engine `local`: processes of this machine; one worker is this process itself."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import WorkerError
from boxwright.tasks.batch.config import BatchConfig
from boxwright.tasks.batch.inputs import Part
from boxwright.tasks.batch.parcel import Parcel
from boxwright.tasks.batch.worker import Outcome, PartWorker, Work, is_hopeless, run_part


def run_parts(
    config: BatchConfig, work: Work, parcel: Parcel, parts: list[Part], report: Callable[[int], None]
) -> list[Outcome]:
    """Return what came of each part; by default one worker a core, or one in all for a model that runs in PyTorch.

    Raises:
        WorkerError: a process died.
    """
    threads = config.threads or 1
    # PyTorch uses all cores by itself, and can't be told otherwise from here.
    room = max(1, len(read_cpu().allowed) // threads) if parcel.takes_threads else 1
    workers = min(config.workers or room, len(parts))
    work = replace(work, threads=threads if parcel.takes_threads else None)
    if workers == 1:
        return _run_here(work, parcel, parts, report)
    outcomes: list[Outcome] = []
    # A fresh process each: a fork would inherit the threads' locks of a runtime that is in use here.
    with ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(work, parcel)
    ) as pool:
        waiting = [pool.submit(_run, part) for part in parts]
        try:
            for done in as_completed(waiting):
                outcomes.append(done.result())
                report(len(outcomes))
                if is_hopeless(outcomes):
                    break
        except BrokenProcessPool as error:
            raise WorkerError(
                f"A worker died after {len(outcomes)} of {len(parts)} parts (out of memory?). What is finished stays "
                f"in {work.out!r}: the same command goes on with the rest."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
    return outcomes


def _run_here(work: Work, parcel: Parcel, parts: list[Part], report: Callable[[int], None]) -> list[Outcome]:
    worker = PartWorker(work, parcel)
    outcomes: list[Outcome] = []
    try:
        for part in parts:
            outcomes.append(worker.run(part))
            report(len(outcomes))
            if is_hopeless(outcomes):
                break
    finally:
        worker.close()
    return outcomes


_given: list[tuple[Work, Parcel]] = []  # of a pool's process: sent once, not with every part


def _begin(work: Work, parcel: Parcel) -> None:
    _given[:] = [(work, parcel)]


def _run(part: Part) -> Outcome:
    work, parcel = _given[0]
    return run_part(work, parcel, part)
