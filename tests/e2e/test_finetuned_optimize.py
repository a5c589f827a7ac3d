"""A nano fine-tuned on three classes goes through training and the optimiser as the official one does."""

from pathlib import Path

import pytest
from support.shared import shared_path

from boxwright import TrainConfig, train
from boxwright.tasks.optimize import OptimizeConfig, optimize
from boxwright.tasks.predict.predictor import Predictor
from boxwright.vision.decode import read_image

pytestmark = pytest.mark.usefixtures("one_torch_thread")
METHODS = ("openvino_int8", "onnxruntime_int8_qlinear")


def test_three_classes_learn_and_keep_their_accuracy_in_int8(tmp_path: Path) -> None:
    data = shared_path("data/bccd/BCCD")
    result = train(
        TrainConfig(
            model="yolox_nano",
            data=data,
            output_dir=tmp_path / "run",
            ckpt=shared_path("weights/yolox_nano/yolox_nano.pth"),
            size_hw=(160, 160),
            steps=100,
            ema=False,
            batch=8,
            mosaic=False,
            eval_interval=0,
            precision="bf16",
        )
    )
    assert result.last["AP50"] > 0.3
    found = optimize(
        OptimizeConfig(
            model=tmp_path / "run" / "weights" / "best.safetensors",
            data=data,
            folder=tmp_path / "optimized",
            includes=METHODS,
            calibration_images=16,
            limit=24,
            max_drop=0.05,
            latency_sample_num=6,
            thread_num=1,
            search_tries=0,
        )
    )
    rows = {row.method: row for row in found.report.rows}
    assert set(rows) == {"original", *METHODS}
    original = rows["original"].accuracy
    assert original is not None
    for row in rows.values():
        assert row.status in ("successful", "over budget", "early stopped"), (row.method, row.status, row.note)
        assert row.accuracy is not None
        assert abs(original - row.accuracy) < 0.03, row.method
    assert found.best is not None
    image = read_image(sorted((data / "JPEGImages").glob("*.jpg"))[0])
    with Predictor.load(found.best) as predictor:
        assert sorted(predictor.names) == ["Platelets", "RBC", "WBC"]
        (detections,) = predictor.predict_batch([image])
    assert len(detections.scores) > 0
