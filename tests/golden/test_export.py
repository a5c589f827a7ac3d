"""The official network, exported end to end, finds what the reference found."""

from pathlib import Path

import numpy as np
import pytest
from support.shared import shared_path

from boxwright.runtimes.onnxruntime_ import OnnxGraph
from boxwright.tasks.export import ExportConfig, Suppression, export
from boxwright.vision.letterbox import to_input

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_detections_of_the_end_to_end_file_equal_the_reference(tmp_path: Path) -> None:
    golden = np.load(shared_path("golden/yolox_nano_forward.npz"))
    keep = Suppression(conf=0.25, nms=0.45)
    weights = shared_path("weights/yolox_nano/yolox_nano.pth")
    export(weights, tmp_path / "nano.onnx", ExportConfig(suppression=keep))
    images = to_input(golden["images_bgr_u8"], "bgr255")
    num, boxes, scores, classes = OnnxGraph(tmp_path / "nano.onnx").run([images])
    assert num.sum() == 32
    for i, count in enumerate(num):
        expected = golden[f"det_c25_n45_{i}"]
        expected_scores = expected[:, 4] * expected[:, 5]
        order = np.argsort(-expected_scores, kind="stable")
        assert classes[i, :count].tolist() == expected[order, 6].tolist()
        np.testing.assert_allclose(boxes[i, :count], expected[order, :4], atol=0.5)
        np.testing.assert_allclose(scores[i, :count], expected_scores[order], atol=1e-3)
