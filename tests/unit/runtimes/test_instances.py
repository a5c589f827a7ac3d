import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, UsageError, WorkerError
from boxwright.runtimes import instance_worker
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.instances import MultiInstance, place, to_multi_instance
from boxwright.runtimes.slab import Slab
from boxwright.runtimes.source import Source

pytest.importorskip("openvino")
pytestmark = pytest.mark.usefixtures("one_torch_thread")
FIRST = min(os.sched_getaffinity(0))


class Net(nn.Module):
    """Takes four columns, no other number of them."""

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values * 2, (values @ torch.ones(4, 1))[:, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("instances") / "artifact"
    write_artifact(Source.of(Net(), (torch.ones(2, 4),)), Choice(runtime="openvino"), path)
    return path


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[MultiInstance]:
    # Both on the first cpu: the tests must also run where there is only one.
    with to_multi_instance(folder, 2, cores=[[FIRST], [FIRST]]) as graph:
        yield graph


def _request(value: float, rows: int = 3) -> list[NDArray[np.float32]]:
    return [np.full((rows, 4), value, np.float32)]


def _instances() -> list[psutil.Process]:
    children = sorted(psutil.Process().children(), key=lambda child: (child.create_time(), child.pid))
    return [child for child in children if "boxwright.runtimes.instance_worker" in child.cmdline()]


@pytest.fixture
def pids() -> Callable[[], list[int]]:
    """Return the processes of the instances that the test has started, in their order."""
    before = _instances()
    return lambda: [child.pid for child in _instances() if child not in before]


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_answers_come_in_the_order_of_the_requests_also_a_smaller_last_one(pair: MultiInstance) -> None:
    requests = [_request(i) for i in range(20)] + [_request(20, rows=1)]
    results = list(pair.run_all(iter(requests)))
    assert [r[0][0, 0] for r in results] == [2 * i for i in range(21)]
    assert [r[1].shape for r in results] == [(3,)] * 20 + [(1,)]
    np.testing.assert_array_equal(pair.run(_request(5))[1], [20, 20, 20])


def test_answers_stay_as_they_are(pair: MultiInstance) -> None:
    (doubled, _) = pair.run(_request(1))
    kept = doubled.copy()
    list(pair.run_all(_request(i) for i in range(8)))
    np.testing.assert_array_equal(doubled, kept)
    doubled[:] = 0  # the caller's own


def test_a_longer_iterable_is_read_no_further_than_needed(pair: MultiInstance) -> None:
    taken: list[int] = []

    def endless() -> Iterator[Any]:
        while True:
            taken.append(len(taken))
            yield _request(len(taken))

    results = pair.run_all(endless())
    first = [next(results)[0][0, 0] for _ in range(5)]
    results.close()
    assert first == [2, 4, 6, 8, 10]
    assert len(taken) <= 5 + 2 * 2 * 2 + 1
    np.testing.assert_array_equal(pair.run(_request(7))[0][0], [14] * 4)  # nothing of the others is left


def test_bigger_requests_find_room(pair: MultiInstance) -> None:
    for rows in (1, 50_000, 2):
        doubled, sums = pair.run(_request(3, rows=rows))
        assert doubled.shape == (rows, 4)
        assert (sums == 12).all()


def test_a_failing_request_is_named_and_the_instances_go_on(pair: MultiInstance) -> None:
    requests = [_request(0), _request(1), [np.ones((2, 5), np.float32)], _request(3)]
    results = pair.run_all(requests)
    with pytest.raises(WorkerError, match="Request 2 failed in instance"):
        list(results)
    np.testing.assert_array_equal(pair.run(_request(1))[0][0], [2] * 4)


def test_an_error_of_the_iterable_itself_reaches_the_caller(pair: MultiInstance) -> None:
    def broken() -> Iterator[Any]:
        yield _request(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(pair.run_all(broken()))
    np.testing.assert_array_equal(pair.run(_request(1))[0][0], [2] * 4)


def test_a_killed_instance_is_an_error_not_a_hang(folder: Path, pids: Callable[[], list[int]]) -> None:
    def requests() -> Iterator[Any]:
        for i in range(50):
            if i == 0:  # no answer yet, so that both get requests
                for pid in started:
                    os.kill(pid, signal.SIGSTOP)
            if i == 3:
                os.kill(started[1], signal.SIGKILL)
                os.kill(started[0], signal.SIGCONT)
            yield _request(i)

    with to_multi_instance(folder, 2, cores=[[FIRST], [FIRST]]) as graph:
        started = pids()
        with pytest.raises(WorkerError, match=r"Instance 1 .* signal 9 .* request \d+"):
            list(graph.run_all(requests()))
    assert all(map(_gone, started))


def test_the_others_take_the_requests_of_a_dead_instance(folder: Path, pids: Callable[[], list[int]]) -> None:
    with to_multi_instance(folder, 2, cores=[[FIRST], [FIRST]]) as graph:
        first, second = pids()
        os.kill(first, signal.SIGKILL)
        failures = []
        for i in range(20):
            try:
                assert graph.run(_request(i))[0][0, 0] == 2 * i
            except WorkerError:  # it was sent before the death was seen
                failures.append(i)
        assert failures in ([], [0])
        os.kill(second, signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(WorkerError, match=r"Instance \d .* signal 9"):
                graph.run(_request(1))
        with pytest.raises(WorkerError, match="signal 9"):
            list(graph.run_all(_request(i) for i in range(9)))


def test_instances_are_gone_after_close(folder: Path, pids: Callable[[], list[int]]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with to_multi_instance(folder, 1, cores=[[FIRST]]) as graph:
        started = pids()
        graph.run(_request(1))
        assert [os.sched_getaffinity(pid) for pid in started] == [{FIRST}]
        assert graph.cpus == [(FIRST,)]
    graph.close()
    assert all(map(_gone, started))
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(CheckpointError, match="closed"):
        graph.run(_request(1))


def test_several_threads_get_their_own_answers(pair: MultiInstance) -> None:
    results = pair.run_all(_request(i) for i in range(9))
    assert next(results)[0][0, 0] == 0
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda i: pair.run(_request(i))[0][0, 0], range(40)))
    assert found == [2 * i for i in range(40)]
    assert [r[0][0, 0] for r in results] == [2 * i for i in range(1, 9)]


class Meeting:
    """A graph whose requests wait for each other, two at a time."""

    def __init__(self) -> None:
        self._together = threading.Barrier(2, timeout=20)

    def run(self, inputs: Any) -> tuple[NDArray[np.float32], ...]:
        self._together.wait()
        return (inputs[0] * 2,)

    def close(self) -> None:
        pass


def test_the_streams_of_an_instance_compute_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxwright.runtimes.artifact.read_artifact", lambda *_, **__: None)
    monkeypatch.setattr("boxwright.runtimes.artifact.open_graph", lambda *_, **__: Meeting())
    ours, theirs = socket.socketpair()
    slabs = [(Slab.create(), Slab.create()) for _ in range(2)]
    far_ends = [[os.dup(slab.fd) for slab in pair] for pair in slabs]
    start = {"pipe": theirs.detach(), "slots": far_ends, "folder": "", "tuning": {"streams": 2}}
    thread = threading.Thread(target=instance_worker.serve, args=(start,))
    thread.start()
    with Connection(ours.detach()) as pipe:
        assert pipe.recv() == ("ready",)
        for slot, (taken, _) in enumerate(slabs):
            pipe.send((slot, taken.write(_request(slot))))
        answers = sorted(pipe.recv() for _ in slabs)
        assert [kind for kind, *_ in answers] == ["done", "done"], answers
        assert [slabs[slot][1].read(header)[0][0, 0] for _, slot, header in answers] == [0, 2]
    thread.join()
    for pair in slabs:
        for slab in pair:
            slab.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # nobody waits for the process
def test_instances_that_nobody_holds_any_more_end(folder: Path, pids: Callable[[], list[int]]) -> None:
    threads = set(threading.enumerate())
    graph = to_multi_instance(folder, 1, cores=[[FIRST]])
    (process,) = map(psutil.Process, pids())
    (listener,) = set(threading.enumerate()) - threads
    del graph
    gc.collect()
    listener.join(20)  # it ends with its process
    assert not listener.is_alive()
    assert process.wait(20) in (0, None)  # None if its Popen was collected, which reads the exit status


def test_closing_ends_what_other_threads_wait_for(
    folder: Path, pids: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = to_multi_instance(folder, 1, cores=[[FIRST]])
    (pid,) = pids()

    shutdown = socket.socket.shutdown

    def shutdown_and_wake(ours: socket.socket, how: int) -> None:  # only now: no request is answered before
        shutdown(ours, how)
        os.kill(pid, signal.SIGCONT)

    monkeypatch.setattr(socket.socket, "shutdown", shutdown_and_wake)
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(graph.run, _request(i)) for i in range(4)]  # some of them for room
        graph.close()
        for future in waiting:
            with pytest.raises(CheckpointError, match="closed"):
                future.result()
    assert _gone(pid)


def test_an_artifact_that_does_not_load_is_told_by_its_worker(folder: Path, tmp_path: Path) -> None:
    tuning = Tuning(threads=1, streams=0)
    with pytest.raises(WorkerError, match=r"Instance 0 .*: streams=0"):
        to_multi_instance(folder, 1, cores=[[FIRST]], tuning=tuning)
    with pytest.raises(CheckpointError):
        to_multi_instance(tmp_path, 1)


@pytest.mark.parametrize(
    ("instances", "cores", "message"),
    [
        (2, [[FIRST]], "give one list of cpus for each"),
        (1, [[]], "give one list of cpus for each"),
        (1, [[99_999]], r"may not use: \[99999\]"),
        (100_000, None, "needs as many physical cores"),
    ],
)
def test_places_that_do_not_exist_are_refused(instances: int, cores: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        place(instances, cores)


def test_cores_are_split_without_sharing_any() -> None:
    cpu = read_cpu()
    count = min(2, cpu.usable_cores)
    shares = place(count)
    assert len({c for share in shares for c in share}) == sum(map(len, shares)) == len(cpu.allowed)


def test_a_slab_holds_empty_arrays_and_scalars() -> None:
    slab = Slab.create()
    try:
        header = slab.write([np.zeros((0, 3)), np.float32(2), np.array([True, False])])  # type: ignore[list-item]
        empty, scalar, flags = slab.read(header)
        assert (empty.shape, scalar.item(), flags.tolist()) == ((0, 3), 2.0, [True, False])
    finally:
        slab.close()
