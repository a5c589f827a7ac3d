"""Run times, time spent in named spans, and the hardware behind them."""

import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Lock
from time import perf_counter

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Run times of one function in milliseconds, in the order of the runs.

    Example:
        >>> timing = Timing(samples_ms=(3.0, 1.0, 2.0))
        >>> timing.median_ms, timing.runs
        (2.0, 3)
    """

    samples_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples_ms:
            raise UsageError("A timing needs at least one run.")

    @property
    def runs(self) -> int:
        """The number of timed runs."""
        return len(self.samples_ms)

    @property
    def median_ms(self) -> float:
        """The median run."""
        return median(self.samples_ms)

    @property
    def p95_ms(self) -> float:
        """The 95th percentile, interpolated between the two nearest runs."""
        ordered = sorted(self.samples_ms)
        position = 0.95 * (len(ordered) - 1)
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    def __str__(self) -> str:
        return f"{self.median_ms:.2f} ms (p95 {self.p95_ms:.2f} ms, {self.runs} runs)"


class Stopwatch:
    """Adds up the time of named spans, from any thread.

    Example:
        >>> watch = Stopwatch()
        >>> for _ in range(3):
        ...     with watch.span("decode"):
        ...         image = bytes(10)
        >>> list(watch.seconds), watch.counts["decode"]
        (['decode'], 3)
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._lock = Lock()
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._first_start: float | None = None
        self._last_end = 0.0

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time the block under this name, also when it raises."""
        start = self._clock()
        try:
            yield
        finally:
            end = self._clock()
            with self._lock:
                self._seconds[name] = self._seconds.get(name, 0.0) + end - start
                self._counts[name] = self._counts.get(name, 0) + 1
                self._first_start = start if self._first_start is None else min(self._first_start, start)
                self._last_end = max(self._last_end, end)

    @property
    def seconds(self) -> dict[str, float]:
        """The time spent under each name, in the order in which the names first ended."""
        return dict(self._seconds)

    @property
    def counts(self) -> dict[str, int]:
        """The number of spans of each name."""
        return dict(self._counts)

    @property
    def elapsed_s(self) -> float:
        """The time from the start of the first span to the end of the last, gaps included."""
        return 0.0 if self._first_start is None else self._last_end - self._first_start

    def report(self, images: int) -> str:
        """Return one line: images per second, and milliseconds per image under each name.

        Raises:
            UsageError: there are no images, or nothing was timed.
        """
        if images < 1 or self.elapsed_s <= 0:
            raise UsageError(f"Nothing to report: images={images!r}, {self.elapsed_s!r} seconds timed.")
        parts = ", ".join(f"{name} {seconds / images * 1000:.2f} ms" for name, seconds in self._seconds.items())
        return f"{images / self.elapsed_s:.1f} images/s (one image: {parts})"


def hardware_line(root: Path = Path("/")) -> str:
    """Return processor, cores that this process may use, system and Python in one line, for reports and benchmarks.

    Args:
        root: the folder that holds /proc and /sys.

    Example:
        >>> hardware_line().count(",")
        3
    """
    cpu = read_cpu(root)
    model = " ".join(re.sub(r"\((R|TM|tm)\)", "", cpu.model).split())
    count, threads = len(cpu.cores), len(cpu.allowed)
    cores = f"{count} core{'s' if count != 1 else ''}" + (f" ({threads} threads)" if threads > count else "")
    release = ".".join(platform.release().split(".")[:2])
    return f"{model}, {cores}, {platform.system()} {release}, Python {platform.python_version()}"
