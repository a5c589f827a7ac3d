import platform
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boxwright.core.errors import UsageError
from boxwright.core.timing import Comparison, Stopwatch, Timing, hardware_line, interleave, measure


class Clock:
    """A clock that stands still unless work moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def work(self, *seconds: float) -> Callable[[], None]:
        """Return a function whose runs take these times, the last one from then on."""
        left = list(seconds)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_a_timing_sums_up_its_runs():
    timing = Timing(samples_ms=(4.0, 1.0, 2.0, 3.0))
    assert (timing.runs, timing.median_ms, timing.mean_ms, timing.min_ms) == (4, 2.5, 2.5, 1.0)
    assert str(timing) == "2.50 ms (p95 3.85 ms, 4 runs)"


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_the_95th_percentile_is_that_of_numpy(samples: list[float]):
    assert Timing(samples_ms=tuple(samples)).p95_ms == pytest.approx(np.percentile(samples, 95))


def test_a_timing_without_runs_is_refused():
    with pytest.raises(UsageError, match="at least one run"):
        Timing(samples_ms=())


def test_warm_up_runs_are_not_timed():
    clock = Clock()
    timing = measure(clock.work(9.0, 8.0, 0.5, 0.25), warmup=2, rounds=3, clock=clock)
    assert timing.samples_ms == (500.0, 250.0, 250.0)


def test_measuring_goes_on_until_the_least_time_is_spent():
    clock = Clock()
    assert measure(clock.work(0.25), warmup=0, rounds=2, min_time_s=2.0, clock=clock).runs == 8
    assert measure(clock.work(0.25), warmup=0, rounds=9, min_time_s=2.0, clock=clock).runs == 9


@pytest.mark.parametrize(("warmup", "rounds", "message"), [(0, 0, "rounds=0"), (-1, 1, "warmup=-1")])
def test_counts_that_make_no_sense_are_refused(warmup: int, rounds: int, message: str):
    with pytest.raises(UsageError, match=message):
        measure(list, warmup=warmup, rounds=rounds)
    with pytest.raises(UsageError, match=message):
        interleave({"a": list}, rounds, warmup=warmup)


def test_candidates_take_turns_and_each_starts_equally_often():
    order: list[str] = []
    functions = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times = interleave(functions, rounds=3, warmup=0)
    assert "".join(order) == "abcbcacab"
    assert {name: timing.runs for name, timing in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_warm_up_runs_of_every_candidate_come_first():
    order: list[str] = []
    functions = {name: (lambda name=name: order.append(name)) for name in "ab"}
    interleave(functions, rounds=1, warmup=2)
    assert "".join(order) == "aabbab"


def test_the_speedup_is_the_ratio_of_the_medians():
    clock = Clock()
    times = interleave({"old": clock.work(3.0), "new": clock.work(1.5)}, rounds=4, clock=clock)
    assert times.speedup("old", "new") == pytest.approx(2.0)
    assert times.speedup("new", "old") == pytest.approx(0.5)


def test_a_speedup_of_an_unknown_name_is_refused():
    with pytest.raises(UsageError, match=r"No timing for 'eagr'\. Did you mean 'eager'"):
        Comparison(eager=Timing(samples_ms=(1.0,))).speedup("eagr", "eager")


def test_a_stopwatch_adds_up_its_spans():
    clock = Clock()
    watch = Stopwatch(clock)
    decode, network = clock.work(1.0), clock.work(2.0)
    for _ in range(2):
        with watch.span("decode"):
            decode()
        with watch.span("network"):
            network()
    clock.now += 5.0
    assert watch.seconds == {"decode": 2.0, "network": 4.0}
    assert watch.counts == {"decode": 2, "network": 2}
    assert watch.elapsed_s == 6.0
    assert watch.report(images=3) == "0.5 images/s (one image: decode 666.67 ms, network 1333.33 ms)"


def test_gaps_between_spans_slow_the_rate_down():
    clock = Clock()
    watch = Stopwatch(clock)
    for _ in range(2):
        with watch.span("network"):
            clock.now += 1.0
        clock.now += 2.0
    assert watch.elapsed_s == 4.0
    assert watch.report(images=2).startswith("0.5 images/s")


def test_a_span_that_raises_is_still_counted():
    clock = Clock()
    watch = Stopwatch(clock)

    def fail() -> None:
        clock.now += 1.0
        raise KeyError

    with pytest.raises(KeyError), watch.span("decode"):
        fail()
    assert watch.seconds == {"decode": 1.0}


def test_spans_of_many_threads_are_all_counted():
    watch = Stopwatch()

    def work() -> None:
        for _ in range(200):
            with watch.span("decode"):
                pass

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watch.counts == {"decode": 800}


def test_a_report_about_nothing_is_refused():
    with pytest.raises(UsageError, match="Nothing to report"):
        Stopwatch().report(images=1)
    clock = Clock()
    watch = Stopwatch(clock)
    with watch.span("decode"):
        clock.now += 1.0
    with pytest.raises(UsageError, match="images=0"):
        watch.report(images=0)


def write_cpuinfo(path: Path, cores: list[tuple[int, int]], model: str) -> Path:
    blocks = [
        f"processor\t: {i}\nmodel name\t: {model}\nphysical id\t: {package}\ncore id\t\t: {core}\n"
        for i, (package, core) in enumerate(cores)
    ]
    path.write_text("\n".join(blocks) + "\n", encoding="utf-8")
    return path


SYSTEM = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, Python {platform.python_version()}"


@pytest.mark.parametrize(
    ("cpus", "cores"),
    [
        (range(8), "4 cores (8 threads)"),
        ([0, 1, 2, 3], "4 cores"),
        ([0, 4], "1 core (2 threads)"),
        ([5], "1 core"),
    ],
)
def test_the_hardware_line_counts_cores_and_their_threads(tmp_path: Path, cpus: list[int], cores: str):
    twins = [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
    file = write_cpuinfo(tmp_path / "cpuinfo", twins, "Intel(R)  Xeon(R) Gold 6430")
    assert hardware_line(cpuinfo=file, cpus=cpus) == f"Intel Xeon Gold 6430, {cores}, {SYSTEM}"


def test_processors_without_core_ids_count_as_cores(tmp_path: Path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n\n", encoding="utf-8")
    assert hardware_line(cpuinfo=file, cpus=[0, 1]) == f"{platform.machine()}, 2 cores, {SYSTEM}"


def test_the_hardware_line_works_without_cpuinfo(tmp_path: Path):
    assert hardware_line(cpuinfo=tmp_path / "none", cpus=[0, 1, 2]) == f"{platform.machine()}, 3 cores, {SYSTEM}"
