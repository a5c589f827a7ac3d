"""A video of any length needs the memory of a short one."""

from pathlib import Path

import psutil
import pytest
from support.scenes import save_video, scene

from boxwright.tasks.predict.outputs import Outputs
from boxwright.tasks.predict.predictor import Prediction, Predictor

FRAMES = 1000
MB = 1024 * 1024


@pytest.mark.parametrize("batch", [1, 4])
def test_memory_stays_flat_over_a_thousand_frames(toy_onnx: Path, tmp_path: Path, batch: int) -> None:
    frames = (scene(("red", i % 8, 3), size_hw=(384, 512), cell=64) for i in range(FRAMES))
    video = save_video(tmp_path / "long.mp4", frames)
    process, count, warm = psutil.Process(), 0, 0
    with (
        Predictor.load(toy_onnx) as predictor,
        Outputs(tmp_path / "out", ["images", "json", "csv", "coco"]) as outputs,
    ):
        for item in predictor.stream(video, batch=batch):
            assert isinstance(item, Prediction)
            assert item.detections.labels == ["red"]
            outputs.write(item)
            count += 1
            if count == FRAMES // 5:
                warm = process.memory_info().rss
    assert count == FRAMES
    # The other 800 frames are 450 MB; keeping even every tenth of them would show.
    assert process.memory_info().rss - warm < 40 * MB
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == FRAMES
