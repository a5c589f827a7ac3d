"""Search spaces: what they hold, how they are written, and which make no sense."""

from collections.abc import Callable
from typing import Any

import pytest

from boxwright.core.errors import UsageError
from boxwright.core.spaces import Bool, Categorical, Int, Real, parse_space, space_text


@pytest.mark.parametrize(
    "space", [Real(1e-4, 0.01, log=True), Real(-1, 2.5), Int(1, 9), Int(8, 32, step=8), Int(1, 100, log=True)]
)
def test_a_space_is_read_back_from_its_text(space: Real | Int) -> None:
    assert parse_space(str(space_text(space))) == space


def test_words_of_a_choice_are_numbers_switches_or_text() -> None:
    found = parse_space("choice:1,0.5,true,null,sgd")
    assert isinstance(found, Categorical)
    assert found.choices == (1, 0.5, True, None, "sgd")
    assert parse_space("bool").contains(True)


def test_one_and_true_are_different_choices() -> None:
    assert not Bool().contains(1)
    assert not Categorical(1, 2).contains(True)
    assert not Int(0, 3).contains(True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Real(2, 1), "low must be below high"),
        (lambda: Real(0, 1, log=True), "log needs a low above 0"),
        (lambda: Real(float("nan"), 1), "finite"),
        (lambda: Int(1, 2.5), "without a fraction"),  # type: ignore[arg-type]
        (lambda: Int(8, 30, step=8), "divide high - low"),
        (lambda: Int(1, 9, step=2, log=True), "be 1 with log"),
        (lambda: Categorical("a"), "two or more different values"),
        (lambda: Categorical("a", "a"), "two or more different values"),
        (lambda: Categorical("a", [1]), "Use a name for anything else"),  # type: ignore[arg-type]
        (lambda: Real(0, 1, default=2), "default=2 is not in the space"),
        (lambda: parse_space("real:a..b"), "'real:a..b' is not a space"),
        (lambda: parse_space("int:1..9:x"), "'int:1..9:x' is not a space"),
        (lambda: parse_space("bool:1"), "'bool:1' is not a space"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
