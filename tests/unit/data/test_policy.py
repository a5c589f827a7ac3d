import json
from dataclasses import replace

import pytest
from support.shared import shared_path

from boxwright.core.errors import UsageError
from boxwright.data.policy import POLICIES, AugmentPolicy, policy_for

MODELS = [name for name in POLICIES if name.startswith("yolox")]


@pytest.mark.parametrize("model", MODELS)
def test_each_model_has_the_numbers_of_the_reference(model: str) -> None:
    reference = json.loads(shared_path("golden/reference_numbers.json").read_text())["configs"][model]
    policy = policy_for(model)
    for name in ("mosaic_prob", "degrees", "translate", "shear", "hsv_prob", "flip_prob"):
        assert getattr(policy, name) == reference[name], name
    assert list(policy.scale) == reference["mosaic_scale"]
    assert list(policy.mixup_scale) == reference["mixup_scale"]
    assert policy.mixup_prob == (reference["mixup_prob"] if reference["enable_mixup"] else 0)


@pytest.mark.parametrize("model", MODELS)
def test_batches_have_the_sizes_of_the_reference(model: str) -> None:
    reference = json.loads(shared_path("golden/reference_numbers.json").read_text())["configs"][model]
    size_hw = (reference["input_size"][0], reference["input_size"][1])
    middle, reach = size_hw[0] // 32, reference["multiscale_range"]
    low, high = reference["random_size"] or (middle - reach, middle + reach)
    sizes = {policy_for(model).batch_size_hw(size_hw, u / 100) for u in range(100)}
    assert sizes == {(32 * n, 32 * n) for n in range(low, high + 1)}


def test_batch_sizes_keep_the_ratio_of_the_sides() -> None:
    assert AugmentPolicy(multiscale=(-2, 2)).batch_size_hw((320, 640), 0.999) == (384, 768)


def test_batch_sizes_stay_above_zero_for_tiny_inputs() -> None:
    assert AugmentPolicy(multiscale=(-5, 5)).batch_size_hw((64, 64), 0.0) == (32, 32)


def test_without_multiscale_every_batch_has_the_input_size() -> None:
    assert AugmentPolicy(multiscale=None).batch_size_hw((96, 64), 0.99) == (96, 64)


def test_the_last_phase_keeps_colours_flip_and_sizes_only() -> None:
    full = policy_for("yolox_s")
    assert full.no_aug() == replace(full, mosaic_prob=0.0, mixup_prob=0.0)


def test_a_misspelt_model_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="Did you mean 'yolox_nano'"):
        policy_for("yolox_nanno")


@pytest.mark.parametrize(
    "wrong",
    [
        {"mosaic_prob": 1.5},
        {"flip_prob": -0.1},
        {"degrees": -1},
        {"shear": 45},
        {"scale": (2.0, 0.5)},
        {"mixup_scale": (0.0, 1.0)},
        {"hsv_gains": (100.0, 0.0, 0.0)},
        {"anchor": "middle"},
        {"partner_window": 0},
        {"multiscale": (1, 5)},
    ],
)
def test_a_value_out_of_range_is_named(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=name):
        AugmentPolicy(**wrong)  # type: ignore[arg-type]
