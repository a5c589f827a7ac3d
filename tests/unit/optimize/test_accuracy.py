import numpy as np
import pytest
from support.planted import LengthScorer

from boxwright.optimize.accuracy import Score, measure_drop


def _score(samples: object) -> Score:
    array = np.asarray(samples, np.float64)
    return Score(value=float(array.mean()), count=len(array), arrays={"samples": array})


class LossScorer(LengthScorer):
    direction = "min"


def test_the_drop_is_the_difference_of_the_scores() -> None:
    drop = measure_drop(LengthScorer(), _score([1, 1, 0, 1]), _score([1, 0, 0, 1]))
    assert drop.point == pytest.approx(0.25)
    assert drop.low <= drop.point <= drop.high
    assert drop.sure


def test_where_less_is_better_more_is_a_drop() -> None:
    drop = measure_drop(LossScorer(), _score([0.1, 0.3]), _score([0.2, 0.4]))
    assert (drop.low, drop.point, drop.high) == pytest.approx((0.1, 0.1, 0.1))


def test_equal_results_have_no_drop_and_no_doubt() -> None:
    samples = np.random.default_rng(0).random(50)
    drop = measure_drop(LengthScorer(), _score(samples), _score(samples))
    assert (drop.point, drop.low, drop.high) == (0, 0, 0)


def test_the_interval_is_that_of_a_paired_bootstrap() -> None:
    rng = np.random.default_rng(3)
    original = rng.random(400)
    candidate = original - rng.normal(0.02, 0.1, 400)
    drop = measure_drop(LengthScorer(), _score(original), _score(candidate), draws=4000)
    spread = (original - candidate).std() / 20  # of the mean of 400
    assert drop.high - drop.point == pytest.approx(1.645 * spread, rel=0.1)
    assert drop.point - drop.low == pytest.approx(1.645 * spread, rel=0.1)


def test_more_confidence_makes_a_wider_interval() -> None:
    rng = np.random.default_rng(3)
    one, other = _score(rng.random(30)), _score(rng.random(30))
    narrow, wide = (measure_drop(LengthScorer(), one, other, confidence=c) for c in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_single_number_has_no_interval() -> None:
    drop = measure_drop(LengthScorer(), Score(value=0.5), Score(value=0.4))
    assert not drop.sure
    assert drop.high == drop.point == pytest.approx(0.1)
