"""Learning rates and EMA decays equal the reference's."""

import json

import pytest
from support.shared import shared_path

from boxwright.accel.schedule import WarmupCosine, ema_decay


def test_learning_rates_equal_the_reference() -> None:
    reference = json.loads(shared_path("golden/reference_numbers.json").read_text())["lr_yoloxwarmcos"]
    per_epoch = reference["iters_per_epoch"]
    curve = WarmupCosine(
        base_lr=reference["base_lr"],
        total_steps=per_epoch * reference["max_epoch"],
        warmup_steps=per_epoch * reference["warmup_epochs"],
        flat_steps=per_epoch * reference["no_aug_epochs"],
        lowest=reference["min_lr_ratio"],
        start_lr=reference["warmup_lr"],
    )
    values = {int(step): rate for step, rate in reference["values"].items()}
    assert len(values) >= 20
    assert {step: curve(step) for step in values} == pytest.approx(values, rel=1e-9, abs=1e-15)


def test_learning_rates_of_coco_at_batch_64_equal_the_reference() -> None:
    reference = json.loads(shared_path("golden/preprocess_and_schedule.json").read_text())["lr_b64_coco"]
    epoch = 1849  # 118,287 images at batch 64
    curve = WarmupCosine(base_lr=0.01, total_steps=300 * epoch, warmup_steps=5 * epoch, flat_steps=15 * epoch)
    values = {int(step): rate for step, rate in reference.items()}
    assert {step: curve(step) for step in values} == pytest.approx(values, rel=1e-9)


@pytest.mark.parametrize("file", ["reference_numbers.json", "preprocess_and_schedule.json"])
def test_ema_decays_equal_the_reference(file: str) -> None:
    reference = json.loads(shared_path(f"golden/{file}").read_text())["ema_decay"]
    values = {int(step): decay for step, decay in reference.get("rule_values", reference).items()}
    assert {step: ema_decay(step) for step in values} == pytest.approx(values, rel=1e-12)
