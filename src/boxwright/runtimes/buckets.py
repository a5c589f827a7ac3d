"""Few batch sizes for devices where each new shape costs time and memory: others are padded to the next of them."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from boxwright.core.signature import Array, Signature
from boxwright.runtimes.base import Graph, side_by_side

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
"""The batch sizes that a model runs with."""


def in_buckets(graph: Graph, *, threads: int = 1) -> Graph:
    """Return the graph with its batches padded, if its batch may have any size, else the graph itself."""
    ports = (*graph.signature.inputs, *graph.signature.outputs)
    return BucketGraph(graph, threads) if all(p.shape and p.shape[0] is None for p in ports) else graph


def split_batch(count: int) -> list[tuple[int, int, int]]:
    """Return start, stop and bucket of the parts that a batch runs in.

    Example:
        >>> split_batch(3), split_batch(70)
        ([(0, 3, 4)], [(0, 64, 64), (64, 70, 8)])
    """
    most = BUCKETS[-1]
    starts = range(0, max(count, 1), most)
    stops = [min(start + most, count) for start in starts]
    return [(a, b, next(n for n in BUCKETS if n >= b - a)) for a, b in zip(starts, stops, strict=True)]


class BucketGraph:
    """A `Graph` that runs another one with batches of a few sizes; results of padded rows are thrown away."""

    def __init__(self, graph: Graph, threads: int = 1) -> None:
        self.signature: Signature = graph.signature
        self.inner = graph
        self._threads = threads

    @property
    def device_bytes(self) -> int:
        """The device's memory that this process holds; 0 where that is not known."""
        return int(getattr(self.inner, "device_bytes", 0))

    @property
    def takes_bytes(self) -> bool:
        """Whether uint8 may stand for float32."""
        return bool(getattr(self.inner, "takes_bytes", False))

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for flat inputs of any batch size."""
        count = len(inputs[0])
        parts = [
            [a[: stop - start] for a in self.inner.run([_pad(a[start:stop], bucket) for a in inputs])]
            for start, stop, bucket in split_batch(count)
        ]
        return tuple(parts[0]) if len(parts) == 1 else tuple(np.concatenate(some) for some in zip(*parts, strict=True))

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests in their order; while one is computed, others are copied."""
        with ThreadPoolExecutor(self._threads, "boxwright-device") as pool:
            yield from side_by_side(self.run, requests, pool, self._threads)

    def close(self) -> None:
        """Close the graph."""
        self.inner.close()


def _pad(array: Array, rows: int) -> Array:
    if len(array) == rows:
        return array
    # In the array's own layout: images may lie channels last.
    order = np.argsort([-step for step in array.strides], kind="stable")
    order = np.array([0, *(axis for axis in order if axis)])
    padded = np.zeros([rows, *(array.shape[axis] for axis in order[1:])], array.dtype).transpose(np.argsort(order))
    padded[: len(array)] = array
    return padded
