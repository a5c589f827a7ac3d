import numpy as np
import pytest

from boxwright.core.errors import UsageError
from boxwright.data.dataset import Purpose, stream


def test_the_same_place_gives_the_same_numbers() -> None:
    assert np.array_equal(stream(1, Purpose.SAMPLE, 2, 3).random(50), stream(1, Purpose.SAMPLE, 2, 3).random(50))


def test_every_part_of_the_place_matters() -> None:
    places = [(1, Purpose.SAMPLE, 2, 3), (4, Purpose.SAMPLE, 2, 3), (1, Purpose.ORDER, 2, 3),
              (1, Purpose.SAMPLE, 5, 3), (1, Purpose.SAMPLE, 2, 6), (1, Purpose.SAMPLE, 3, 2)]  # fmt: skip
    assert len({tuple(stream(*place).random(4)) for place in places}) == len(places)


def test_neighbouring_indices_are_not_alike() -> None:
    draws = np.array([stream(0, Purpose.SAMPLE, 0, i).random(20) for i in range(200)])
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.05
    assert abs(draws.mean() - 0.5) < 0.02


@pytest.mark.parametrize("place", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (2**64, 0, 0)])
def test_a_number_that_does_not_fit_is_refused(place: tuple[int, int, int]) -> None:
    seed, epoch, index = place
    with pytest.raises(UsageError, match="can't be used for random numbers"):
        stream(seed, Purpose.SAMPLE, epoch, index)
