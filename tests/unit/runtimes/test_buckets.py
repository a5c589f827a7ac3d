"""Few batch sizes: every other one is padded, and nobody sees the padding."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pytest

from boxwright.core.signature import Array, Port, Signature
from boxwright.runtimes.base import one_by_one
from boxwright.runtimes.buckets import BUCKETS, BucketGraph, in_buckets, split_batch


class Doubling:
    """Doubles its input, and notes the shapes and layouts that it was called with."""

    def __init__(self, batch: int | None = None) -> None:
        port = Port(name="x", dtype="float32", shape=(batch, 3, None, None))
        call = {"tuple": [{"tuple": [{"leaf": 0}]}, {"dict": {}}]}
        self.signature = Signature(inputs=(port,), outputs=(port,), call=call, result={"leaf": 0})
        self.seen: list[Array] = []

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        self.seen.append(inputs[0])
        return (inputs[0] * 2,)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        return one_by_one(self, requests)

    def close(self) -> None:
        self.signature = None  # type: ignore[assignment]


def images(count: int) -> Array:
    return np.random.default_rng(count).random((count, 3, 4, 5), np.float32)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 64, 65, 130])
def test_a_batch_of_any_size_comes_back_whole(count: int) -> None:
    inner = Doubling()
    (found,) = BucketGraph(inner).run([images(count)])
    np.testing.assert_array_equal(found, images(count) * 2)
    assert {len(seen) for seen in inner.seen} <= set(BUCKETS)


def test_the_padding_is_less_than_the_batch() -> None:
    for count in range(1, 200):
        assert sum(bucket for *_, bucket in split_batch(count)) < 2 * count
        assert [i for start, stop, _ in split_batch(count) for i in range(start, stop)] == list(range(count))


def test_the_layout_stays_when_it_is_padded() -> None:
    inner = Doubling()
    last = np.ascontiguousarray(images(3).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    BucketGraph(inner).run([last])
    BucketGraph(inner).run([images(3)])
    assert [seen.transpose(0, 2, 3, 1).flags.c_contiguous for seen in inner.seen] == [True, False]
    assert [seen.flags.c_contiguous for seen in inner.seen] == [False, True]


def test_many_requests_come_back_in_their_order() -> None:
    graph = BucketGraph(Doubling(), threads=3)
    found = list(graph.run_all([images(count)] for count in range(1, 8)))
    assert [len(outputs[0]) for outputs in found] == list(range(1, 8))
    graph.close()


def test_a_fixed_batch_is_left_alone() -> None:
    fixed = Doubling(batch=3)
    assert in_buckets(fixed) is fixed
    assert isinstance(in_buckets(Doubling()), BucketGraph)
