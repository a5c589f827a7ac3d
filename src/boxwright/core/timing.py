"""Times that can be compared: repeated, interleaved, and with the hardware beside them."""

import os
import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from threading import Lock
from time import perf_counter

from boxwright.core.errors import UsageError, suggest

Clock = Callable[[], float]
"""A function that gives the time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long the runs of one function took, in milliseconds, in the order they ran.

    Example:
        >>> timing = Timing(samples_ms=(3.0, 1.0, 2.0))
        >>> timing.median_ms, timing.min_ms, timing.runs
        (2.0, 1.0, 3)
    """

    samples_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples_ms:
            raise UsageError("A timing needs at least one run.")

    @property
    def runs(self) -> int:
        """How many runs were timed."""
        return len(self.samples_ms)

    @property
    def median_ms(self) -> float:
        """The middle run: half were faster."""
        return median(self.samples_ms)

    @property
    def mean_ms(self) -> float:
        """The average run."""
        return fmean(self.samples_ms)

    @property
    def min_ms(self) -> float:
        """The fastest run."""
        return min(self.samples_ms)

    @property
    def p95_ms(self) -> float:
        """The time that 95 of 100 runs stay within, interpolated between the two nearest runs."""
        ordered = sorted(self.samples_ms)
        position = 0.95 * (len(ordered) - 1)
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    def __str__(self) -> str:
        return f"{self.median_ms:.2f} ms (p95 {self.p95_ms:.2f} ms, {self.runs} runs)"


class Comparison(dict[str, Timing]):
    """Timings by name, from runs that took turns."""

    def speedup(self, baseline: str, candidate: str) -> float:
        """Return how many times faster the candidate's median run is than the baseline's.

        Raises:
            UsageError: nothing was timed under one of the names.

        Example:
            >>> times = Comparison(old=Timing(samples_ms=(30.0,)), new=Timing(samples_ms=(10.0,)))
            >>> times.speedup("old", "new")
            3.0
        """
        for name in (baseline, candidate):
            if name not in self:
                raise UsageError(f"No timing for {name!r}.{suggest(name, self)} Choose from: {', '.join(self)}.")
        return self[baseline].median_ms / self[candidate].median_ms


def measure(
    function: Callable[[], object],
    *,
    warmup: int = 3,
    rounds: int = 20,
    min_time_s: float = 0.0,
    clock: Clock = perf_counter,
) -> Timing:
    """Return the times of at least `rounds` runs, and of as many more as fit into `min_time_s`.

    Args:
        function: what to time.
        warmup: runs before the first timed one.
        rounds: timed runs.
        min_time_s: go on until the timed runs have taken this long together.
        clock: the time in seconds.

    Raises:
        UsageError: `rounds` is below 1 or `warmup` below 0.
    """
    _check_counts(warmup, rounds)
    for _ in range(warmup):
        function()
    samples_ms: list[float] = []
    spent_ms = 0.0
    while len(samples_ms) < rounds or spent_ms < min_time_s * 1000:
        samples_ms.append(_time_ms(function, clock))
        spent_ms += samples_ms[-1]
    return Timing(samples_ms=tuple(samples_ms))


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = 3,
    clock: Clock = perf_counter,
) -> Comparison:
    """Return the times of several functions that took turns, so that noise hits all of them alike.

    Each round runs every function once, and each starts with another one.

    Raises:
        UsageError: `rounds` is below 1 or `warmup` below 0.

    Example:
        >>> times = interleave({"sum": lambda: sum(range(9)), "max": lambda: max(range(9))}, rounds=5)
        >>> times["sum"].runs
        5
    """
    _check_counts(warmup, rounds)
    for function in functions.values():
        for _ in range(warmup):
            function()
    names = list(functions)
    samples_ms: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            samples_ms[name].append(_time_ms(functions[name], clock))
    return Comparison({name: Timing(samples_ms=tuple(times)) for name, times in samples_ms.items()})


def _check_counts(warmup: int, rounds: int) -> None:
    if rounds < 1:
        raise UsageError(f"rounds={rounds!r} times nothing. Use 1 or more.")
    if warmup < 0:
        raise UsageError(f"warmup={warmup!r} makes no sense. Use 0 or more.")


def _time_ms(function: Callable[[], object], clock: Clock) -> float:
    start = clock()
    function()
    return (clock() - start) * 1000


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

    def __init__(self, clock: Clock = perf_counter) -> None:
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
        """The time spent under each name, in the order the names first ended."""
        return dict(self._seconds)

    @property
    def counts(self) -> dict[str, int]:
        """How many spans each name had."""
        return dict(self._counts)

    @property
    def elapsed_s(self) -> float:
        """The time from the start of the first span to the end of the last, gaps included."""
        return 0.0 if self._first_start is None else self._last_end - self._first_start

    def report(self, images: int) -> str:
        """Return one line: images per second, and milliseconds for one image under each name.

        Raises:
            UsageError: there were no images, or nothing was timed.
        """
        if images < 1 or self.elapsed_s <= 0:
            raise UsageError(f"Nothing to report: images={images!r}, {self.elapsed_s!r} seconds timed.")
        parts = ", ".join(f"{name} {seconds / images * 1000:.2f} ms" for name, seconds in self._seconds.items())
        return f"{images / self.elapsed_s:.1f} images/s (one image: {parts})"


def hardware_line(*, cpuinfo: Path = Path("/proc/cpuinfo"), cpus: Collection[int] | None = None) -> str:
    """Return the processor, cores, system and Python in one line, such as a benchmark prints beside its numbers.

    Args:
        cpuinfo: the kernel's list of processors.
        cpus: the logical processors to count; by default those that this process may use.

    Example:
        >>> hardware_line().count(",")
        3
    """
    usable = _usable_cpus() if cpus is None else frozenset(cpus)
    blocks = _read_blocks(cpuinfo)
    models = [block["model name"] for block in blocks if "model name" in block]
    model = re.sub(r"\((R|TM|tm)\)", "", models[0]) if models else platform.machine()
    # Where the kernel tells no core ids, as on ARM and in some virtual machines, each processor counts as a core.
    cores = {
        (block.get("physical id", "0"), block.get("core id", f"cpu {block['processor']}"))
        for block in blocks
        if int(block["processor"]) in usable
    }
    count = len(cores) or len(usable)
    threads = f" ({len(usable)} threads)" if len(usable) > count else ""
    release = ".".join(platform.release().split(".")[:2])
    return (
        f"{' '.join(model.split())}, {count} core{'s' if count != 1 else ''}{threads}, "
        f"{platform.system()} {release}, Python {platform.python_version()}"
    )


def _usable_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _read_blocks(cpuinfo: Path) -> list[dict[str, str]]:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    blocks = []
    for part in text.split("\n\n"):
        pairs = (line.partition(":") for line in part.splitlines())
        block = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if block.get("processor", "").isdigit():
            blocks.append(block)
    return blocks
