"""Counters, gauges and histograms as Prometheus reads them (text format 0.0.4)."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
Labels = tuple[str, ...]


class Counter:
    """A number for each combination of label values; a gauge too."""

    def __init__(self, name: str, text: str, labels: Labels = (), *, kind: str = "counter") -> None:
        self.name, self.text, self.labels, self.kind = name, text, labels, kind
        self.values: dict[Labels, float] = {}

    def add(self, *labels: str, amount: float = 1) -> None:
        """Add to the number of these label values."""
        self.values[labels] = self.values.get(labels, 0) + amount

    def set(self, value: float, *labels: str) -> None:
        """Set the number of these label values."""
        self.values[labels] = value

    def samples(self) -> Iterator[tuple[str, dict[str, str], str]]:
        """Yield name, labels and value of each sample."""
        for labels, value in self.values.items():
            yield self.name, dict(zip(self.labels, labels, strict=True)), f"{value:.17g}"


class Histogram:
    """Durations in seconds for each combination of label values."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.values: dict[Labels, list[float]] = {}  # a count for each bucket, the last one endless; then the sum

    def observe(self, seconds: float, *labels: str) -> None:
        """Count a duration."""
        counts = self.values.get(labels)
        if counts is None:
            counts = self.values[labels] = [0.0] * (len(_SECONDS) + 2)
        counts[bisect_left(_SECONDS, seconds)] += 1
        counts[-1] += seconds

    def samples(self) -> Iterator[tuple[str, dict[str, str], str]]:
        """Yield name, labels and value of each sample."""
        for values, counts in self.values.items():
            labels = dict(zip(self.labels, values, strict=True))
            total = 0
            for bound, count in zip((*map(str, _SECONDS), "+Inf"), counts, strict=False):
                total += int(count)
                yield f"{self.name}_bucket", {**labels, "le": bound}, str(total)
            yield f"{self.name}_sum", labels, f"{counts[-1]:.6f}"
            yield f"{self.name}_count", labels, str(total)


class Metrics:
    """Everything that `/metrics` shows; each sample also has the labels that the server has.

    Example:
        >>> metrics = Metrics()
        >>> metrics.requests.add("nano", "predict", "200")
        >>> [line for line in metrics.text().splitlines() if line.startswith("boxwright_requests")]
        ['boxwright_requests_total{model="nano",route="predict",status="200"} 1']
    """

    def __init__(self, **labels: str) -> None:
        self._labels = labels
        self.requests = Counter("boxwright_requests_total", "Answered requests.", ("model", "route", "status"))
        self.rejections = Counter("boxwright_rejections_total", "Requests refused without work.", ("model", "reason"))
        self.seconds = Histogram("boxwright_request_seconds", "From the first byte to the answer.", ("model", "route"))
        self.stages = Histogram("boxwright_stage_seconds", "Parts of a request.", ("model", "stage"))
        self.restarts = Counter("boxwright_worker_restarts_total", "Workers that died and were replaced.", ("model",))
        self.reloads = Counter("boxwright_reloads_total", "Attempts to load a new version.", ("model", "result"))
        self.waiting = Counter("boxwright_queue_length", "Requests that wait for a worker.", ("model",), kind="gauge")
        self.running = Counter("boxwright_requests_running", "Requests at a worker.", ("model",), kind="gauge")
        self.workers = Counter("boxwright_workers_ready", "Workers that answer requests.", ("model",), kind="gauge")
        self.memory = Counter(
            "boxwright_worker_resident_bytes", "Memory of a worker process.", ("model", "pid"), kind="gauge"
        )
        self.bodies = Counter("boxwright_body_bytes", "Bytes of requests that are held.", kind="gauge")
        self.collect: list[Callable[[], None]] = []

    def text(self) -> str:
        """Return all samples; gauges are read now."""
        for read in self.collect:
            read()
        lines = []
        for metric in vars(self).values():
            if isinstance(metric, Counter | Histogram):
                lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
                lines += [f"{name}{_braces(self._labels | own)} {value}" for name, own, value in metric.samples()]
        return "\n".join(lines) + "\n"


def _braces(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
