"""Which rows of a table a worker reads, and in which batches. Pure functions on row numbers."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

WINDOW = 16
"""How many row groups are mixed with each other at a time; as many are held in memory."""

Rows = NDArray[np.int64]


def order_rows(group_sizes: Sequence[int], *, seed: int, epoch: int) -> Rows:
    """Return all rows in a new order: groups are shuffled, then the rows of each 16 groups among themselves.

    A table of up to 16 row groups is shuffled completely. A larger one is read group after group, a few at a time.

    Example:
        >>> sorted(order_rows([3, 2], seed=0, epoch=1).tolist())
        [0, 1, 2, 3, 4]
    """
    random = np.random.default_rng([seed, epoch])
    starts = np.cumsum([0, *group_sizes])
    groups = random.permutation(len(group_sizes))
    windows = []
    for first in range(0, len(groups), WINDOW):
        window = [np.arange(starts[g], starts[g + 1], dtype=np.int64) for g in groups[first : first + WINDOW]]
        windows.append(random.permutation(np.concatenate(window)))
    return np.concatenate(windows) if windows else np.zeros(0, np.int64)


def share_shuffled(order: Rows, batch: int, rank: int, workers: int) -> Iterator[Rows]:
    """Yield a worker's batches of a shuffled epoch: its own stretch, as long as everyone's, so few groups are read.

    Where the rows can't be shared out evenly, the first ones come again.
    """
    each = -(-len(order) // workers)
    whole = np.resize(order, each * workers)  # begins again at its end
    return _cut(whole[rank * each : (rank + 1) * each], batch)


def share_in_order(count: int, batch: int, rank: int, workers: int) -> Iterator[Rows]:
    """Yield a worker's batches of an unshuffled epoch: of each step's rows its own part.

    A step's rows are the same whatever the number of workers. Where those of the last step can't be shared out evenly,
    some of the first ones come again.
    """
    for start in range(0, count, batch * workers):
        step = np.arange(start, min(start + batch * workers, count), dtype=np.int64)
        each = -(-len(step) // workers)
        missing = each * workers - len(step)
        padded = np.concatenate([step, np.resize(np.arange(count, dtype=np.int64), missing)])
        yield padded[rank * each : (rank + 1) * each]


def deal_in_order(count: int, batch: int, rank: int, workers: int) -> Iterator[tuple[int, Rows]]:
    """Yield a worker's numbered batches for scoring: a stretch of whole batches, each row once over all workers.

    Example:
        >>> [(number, rows.tolist()) for number, rows in deal_in_order(5, 2, rank=1, workers=2)]
        [(2, [4])]
    """
    batches = -(-count // batch)
    first, last = ((batches * r + workers - 1) // workers for r in (rank, rank + 1))
    for number in range(first, last):
        yield number, np.arange(number * batch, min((number + 1) * batch, count), dtype=np.int64)


def _cut(rows: Rows, batch: int) -> Iterator[Rows]:
    for start in range(0, len(rows), batch):
        yield rows[start : start + batch]
