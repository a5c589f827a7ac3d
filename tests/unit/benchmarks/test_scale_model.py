"""The model of many workers behind docs/explanation/scale.md."""

import importlib.util
import sys
from dataclasses import replace
from types import ModuleType

import pytest
from support.shared import ROOT


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_model", ROOT / "benchmarks" / "scale_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale_model"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def make(scale: ModuleType, **changes: float):
    values = {"step_s": 0.5, "images": 8, "gradient_bytes": 4e6, "latency_s": 1e-4, "bandwidth": 1e9, "jitter": 0.0}
    return scale.Conditions(**values | changes)


def test_one_worker_does_its_own_step_and_nothing_else(scale: ModuleType):
    one = scale.predict(make(scale), 1)
    assert (one.images_per_s, one.reduce_s, one.waiting_s, one.limit) == (16.0, 0.0, 0.0, "compute")


def test_a_ring_sends_nearly_twice_the_gradients_however_many_workers_there_are(scale: ModuleType):
    free = make(scale, latency_s=0.0)
    assert scale.reduce_seconds(free, 2) == pytest.approx(4e6 / 1e9)
    assert scale.reduce_seconds(free, 1024) == pytest.approx(2 * 4e6 / 1e9, rel=1e-2)
    slow = replace(free, latency_s=1e-3)
    assert scale.reduce_seconds(slow, 1024) - scale.reduce_seconds(free, 1024) == pytest.approx(2.046)


def test_the_all_reduce_hides_behind_the_backward_pass_until_it_is_longer(scale: ModuleType):
    hidden = scale.predict(make(scale), 64)
    assert hidden.exposed_s == 0.0
    assert hidden.efficiency == pytest.approx(1.0)
    shown = scale.predict(make(scale, bandwidth=1e7), 64)
    assert shown.exposed_s == pytest.approx(shown.reduce_s - 0.25)
    assert shown.limit == "all-reduce"


def test_a_store_that_all_share_sets_an_upper_limit(scale: ModuleType):
    shared = make(scale, store_rate=1e9, image_bytes=1e5)
    rates = [scale.predict(shared, workers).images_per_s for workers in scale.WORKERS]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(1e9 / 1e5)
    assert scale.predict(shared, 1024).limit == "data"


def test_two_measured_points_predict_the_others_within_a_tenth(scale: ModuleType):
    for processes, measured, predicted in scale.check():
        assert predicted == pytest.approx(measured, rel=1e-9 if processes in (1, 16) else 0.1)


def test_the_table_of_the_page_is_what_the_model_says(scale: ModuleType):
    page = (ROOT / "docs" / "explanation" / "scale.md").read_text(encoding="utf-8")
    conditions = scale.Conditions(
        step_s=0.455, images=64, gradient_bytes=3.65e6, latency_s=50e-6, bandwidth=1.25e9, checkpoint_s=0.5,
        store_rate=5e9,
    )  # fmt: skip
    for workers in (1, 2, 8, 32, 128, 256, 512, 1024):
        one = scale.predict(conditions, workers)
        assert f"| {workers:,} | {one.images_per_s:,.0f} | {100 * one.efficiency:.1f} % |" in page
