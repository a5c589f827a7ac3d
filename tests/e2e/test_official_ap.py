"""The official nano weights score here what they score in the original: AP 0.3031 on 300 images of COCO val."""

import json
from pathlib import Path

import pytest
from support.fixtures import Command
from support.shared import shared_path

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("ending", ["onnx", "pth"])
def test_official_weights_reach_the_official_ap(boxwright: Command, ending: str) -> None:
    model = shared_path(f"weights/yolox_nano/yolox_nano.{ending}")
    data = shared_path("data/coco_val300")
    done = boxwright("eval", model, "--data", data, "--conf", "0.01", "--nms", "0.65", "--json", "-q")
    assert done.code == 0, done.err
    values = json.loads(done.out)
    assert values["AP"] == pytest.approx(0.3031, abs=0.001)
    assert values["images"] == 300
    assert values["failures"] == values["missing"] == []
    assert list(values)[:12] == [
        "AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large",
        "AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large",
    ]  # fmt: skip
    assert len(values["per_class"]) == 80
    assert set(values["per_class"]["person"]) == {"AP", "AP50", "AP75", "AR100", "truths"}
    assert all(0 < values[name] < 1 for name in list(values)[:12])


def test_the_official_onnx_and_pth_find_the_same(boxwright: Command, tmp_path: Path) -> None:
    images = sorted(shared_path("data/coco_val300/images").glob("*.jpg"))[:6]
    found = []
    for ending in ("onnx", "pth"):
        model = shared_path(f"weights/yolox_nano/yolox_nano.{ending}")
        done = boxwright("predict", model, *images, "--json", "--save")
        assert done.code == 0, done.err
        found.append([json.loads(line)["detections"] for line in done.out.splitlines()])
    assert sum(map(len, found[0])) > 10
    for by_onnx, by_torch in zip(*found, strict=True):
        assert [d["class"] for d in by_onnx] == [d["class"] for d in by_torch]
        for one, other in zip(by_onnx, by_torch, strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=1e-3)
            assert one["box_xyxy"] == pytest.approx(other["box_xyxy"], abs=0.5)


def test_the_official_pth_takes_a_size_that_is_not_square(boxwright: Command) -> None:
    model = shared_path("weights/yolox_nano/yolox_nano.pth")
    data = shared_path("data/coco_val300")
    done = boxwright("eval", model, "--data", data, "--size", "320x416", "--conf", "0.01", "--limit", "20", "--json")
    assert done.code == 0, done.err
    assert 0.2 < json.loads(done.out)["AP"] < 0.6


def test_legacy_preprocessing_spoils_weights_that_were_not_made_for_it(boxwright: Command) -> None:
    model = shared_path("weights/yolox_nano/yolox_nano.onnx")
    data = shared_path("data/coco_val300")
    done = boxwright("eval", model, "--data", data, "--conf", "0.01", "--limit", "20", "--json", "--legacy")
    assert done.code == 0, done.err
    assert json.loads(done.out)["AP"] < 0.1
