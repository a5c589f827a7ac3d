"""Functions timed in turns, so that noise hits all of them alike. For the other benchmarks; prints nothing."""

from collections.abc import Callable, Mapping
from time import perf_counter

from boxwright.core.timing import Timing


class Comparison(dict[str, Timing]):
    """Timings by name, from runs that took turns."""

    def speedup(self, baseline: str, candidate: str) -> float:
        """Return how many times faster the candidate's median run is than the baseline's."""
        return self[baseline].median_ms / self[candidate].median_ms


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = 3,
    clock: Callable[[], float] = perf_counter,
) -> Comparison:
    """Return the times of several functions: each round runs every one once, starting with the next one."""
    for function in functions.values():
        for _ in range(warmup):
            function()
    names = list(functions)
    samples_ms: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = clock()
            functions[name]()
            samples_ms[name].append((clock() - start) * 1000)
    return Comparison({name: Timing(samples_ms=tuple(times)) for name, times in samples_ms.items()})
