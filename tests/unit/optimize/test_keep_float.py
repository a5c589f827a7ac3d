import pytest

from boxwright.optimize.keep_float import put_back
from boxwright.optimize.trial import Trial

LAYERS = [f"layer{i}" for i in range(20)]


def _search(loss_of: dict[int, float], *, budget: float = 0.005, tries: int = 4) -> tuple[Trial, list[int]]:
    asked: list[int] = []

    def attempt(kept: tuple[str, ...]) -> Trial:
        asked.append(len(kept))
        assert kept == tuple(LAYERS[: len(kept)])
        failed = loss_of[len(kept)] == float("inf")
        return Trial(status="fail to convert", note="no") if failed else Trial(status="successful", kept=kept)

    def loss(tried: Trial) -> float:
        return loss_of[len(tried.kept)] if tried.status == "successful" else float("inf")

    first = Trial(status="successful")
    return put_back(first, LAYERS, attempt, loss, budget=budget, tries=tries), asked


def test_the_first_number_of_layers_that_is_enough_is_taken() -> None:
    found, asked = _search({0: 0.1, 2: 0.02, 4: 0.004})
    assert asked == [2, 4]
    assert found.kept == ("layer0", "layer1", "layer2", "layer3")
    assert found.note == "4 of 20 layers kept in float: layer0, layer1, layer2, layer3"


def test_when_nothing_is_enough_the_nearest_is_taken() -> None:
    found, asked = _search({0: 0.1, 2: 0.02, 4: 0.01, 8: 0.03, 16: 0.02})
    assert asked == [2, 4, 8, 16]
    assert len(found.kept) == 4


def test_tries_are_counted() -> None:
    _, asked = _search({0: 0.1, 2: 0.02, 4: 0.01}, tries=2)
    assert asked == [2, 4]


def test_it_ends_before_all_layers_are_back() -> None:
    _, asked = _search({0: 0.1, 2: 0.1, 4: 0.1, 8: 0.1, 16: 0.1}, tries=99)
    assert asked == [2, 4, 8, 16]


def test_a_try_that_fails_is_passed_over() -> None:
    found, asked = _search({0: 0.1, 2: float("inf"), 4: 0.001})
    assert asked == [2, 4]
    assert len(found.kept) == 4


@pytest.mark.parametrize("worse", [{0: 0.1, 2: 0.2, 4: 0.3, 8: 0.4, 16: 0.5}])
def test_a_try_that_makes_it_worse_is_not_taken(worse: dict[int, float]) -> None:
    found, _ = _search(worse)
    assert found.kept == ()
