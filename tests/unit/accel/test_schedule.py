import pytest

from boxwright.accel.schedule import WarmupCosine
from boxwright.core.errors import UsageError


def test_the_curve_rises_then_falls_then_stays() -> None:
    curve = WarmupCosine(base_lr=1.0, total_steps=100, warmup_steps=10, flat_steps=20)
    rates = [curve(step) for step in range(100)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[10] == max(rates) == 1.0
    assert set(rates[80:]) == {0.05}


def test_a_run_of_one_step_has_a_rate() -> None:
    assert WarmupCosine(base_lr=1.0, total_steps=1)(0) == 1.0


@pytest.mark.parametrize(
    "values",
    [
        {"total_steps": 0},
        {"total_steps": 10, "warmup_steps": 6, "flat_steps": 6},
        {"total_steps": 9, "warmup_steps": -1},
    ],
)
def test_impossible_phases_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        WarmupCosine(base_lr=1.0, **values)
