import platform
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boxwright.core.errors import UsageError
from boxwright.core.timing import Stopwatch, Timing, hardware_line


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
    assert (timing.runs, timing.median_ms) == (4, 2.5)
    assert str(timing) == "2.50 ms (p95 3.85 ms, 4 runs)"


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_the_95th_percentile_is_that_of_numpy(samples: list[float]):
    assert Timing(samples_ms=tuple(samples)).p95_ms == pytest.approx(np.percentile(samples, 95))


def test_a_timing_without_runs_is_refused():
    with pytest.raises(UsageError, match="at least one run"):
        Timing(samples_ms=())


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


SYSTEM = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, Python {platform.python_version()}"


@pytest.mark.parametrize(
    ("cpus", "cores"),
    [("0-7", "4 cores (8 threads)"), ("0-3", "4 cores"), ("0,4", "1 core (2 threads)"), ("5", "1 core")],
)
def test_the_hardware_line_counts_cores_and_their_threads(tmp_path: Path, cpus: str, cores: str):
    twins = [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
    blocks = [
        f"processor\t: {i}\nmodel name\t: Intel(R)  Xeon(R) Gold 6430\nphysical id\t: {package}\ncore id\t\t: {core}\n"
        for i, (package, core) in enumerate(twins)
    ]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text("\n".join(blocks) + "\n", encoding="utf-8")
    (tmp_path / "proc/self/status").write_text(f"Cpus_allowed_list:\t{cpus}\n", encoding="utf-8")
    assert hardware_line(tmp_path) == f"Intel Xeon Gold 6430, {cores}, {SYSTEM}"
