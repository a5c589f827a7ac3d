"""Which rows of a table each worker gets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxwright.accel.estimator.parquet import WINDOW, deal_in_order, order_rows, share_in_order, share_shuffled

COUNTS = {"count": st.integers(1, 60), "batch": st.integers(1, 9), "workers": st.integers(1, 5)}


@given(**COUNTS)
def test_scoring_sees_each_row_once_in_batches_that_do_not_depend_on_the_workers(
    count: int, batch: int, workers: int
) -> None:
    dealt = [pair for rank in range(workers) for pair in deal_in_order(count, batch, rank, workers)]
    alone = list(deal_in_order(count, batch, 0, 1))
    assert [(number, rows.tolist()) for number, rows in dealt] == [(number, rows.tolist()) for number, rows in alone]
    assert np.concatenate([rows for _, rows in dealt]).tolist() == list(range(count))


@given(**COUNTS)
def test_unshuffled_training_takes_the_same_step_whatever_the_workers(count: int, batch: int, workers: int) -> None:
    shares = [list(share_in_order(count, batch, rank, workers)) for rank in range(workers)]
    steps = -(-count // (batch * workers))
    assert {len(share) for share in shares} == {steps}
    for step in range(steps):
        parts = [share[step] for share in shares]
        assert len({len(part) for part in parts}) == 1
        together = np.concatenate(parts).tolist()
        wanted = list(range(step * batch * workers, min((step + 1) * batch * workers, count)))
        assert together[: len(wanted)] == wanted
        assert len(together) - len(wanted) < workers


@given(**COUNTS, epoch=st.integers(0, 3))
def test_shuffled_training_sees_every_row_and_takes_as_many_steps_everywhere(
    count: int, batch: int, workers: int, epoch: int
) -> None:
    order = order_rows([7] * (count // 7) + [count % 7] * bool(count % 7), seed=1, epoch=epoch)
    assert sorted(order.tolist()) == list(range(count))
    shares = [np.concatenate(list(share_shuffled(order, batch, rank, workers))) for rank in range(workers)]
    assert len({len(share) for share in shares}) == 1
    seen = np.concatenate(shares)
    assert set(seen.tolist()) == set(range(count))
    assert len(seen) - count < workers


def test_each_epoch_has_an_order_of_its_own_and_a_seed_repeats_it() -> None:
    first, again, second = (order_rows([50, 50], seed=0, epoch=e) for e in (0, 0, 1))
    assert first.tolist() == again.tolist()
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("groups", [WINDOW, 3 * WINDOW])
def test_only_a_few_groups_are_read_at_a_time(groups: int) -> None:
    order = order_rows([10] * groups, seed=0, epoch=0)
    for start in range(0, len(order), 10 * WINDOW):
        assert len(np.unique(order[start : start + 10 * WINDOW] // 10)) == WINDOW
