import numpy as np
import pytest

from boxwright.core.bootstrap import paired_differences


def test_both_scores_are_taken_on_the_same_draws() -> None:
    seen: list[np.ndarray] = []

    def score(weights: np.ndarray) -> np.ndarray:
        seen.append(weights)
        return weights[:, 0].astype(float)

    found = paired_differences(score, score, samples=7, draws=50, seed=3)
    assert found.tolist() == [0.0] * 50
    assert seen[0] is seen[1]
    assert seen[0].shape == (50, 7)
    assert (seen[0].sum(axis=1) == 7).all()


def test_the_spread_of_the_differences_is_that_of_their_mean() -> None:
    gaps = np.random.default_rng(0).normal(2, 3, 400)
    found = paired_differences(lambda w: w @ gaps / 400, lambda w: np.zeros(len(w)), samples=400, draws=2000)
    assert found.mean() == pytest.approx(gaps.mean(), abs=0.02)
    assert found.std() == pytest.approx(gaps.std() / 20, rel=0.1)
