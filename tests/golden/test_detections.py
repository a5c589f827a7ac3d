"""Decoding and suppression give the reference's detections; preprocessing gives its pixels."""

import json

import numpy as np
import pytest
from support.shared import shared_path

from boxwright.detector.postprocess import postprocess
from boxwright.vision.letterbox import letterbox, to_input


@pytest.mark.parametrize(("tag", "conf", "nms"), [("c25_n45", 0.25, 0.45), ("c01_n65", 0.01, 0.65)])
def test_detections_equal_the_reference(tag: str, conf: float, nms: float) -> None:
    golden = np.load(shared_path("golden/yolox_nano_forward.npz"))
    total = 0
    for i in range(8):
        boxes, scores, classes = postprocess(golden["raw"][i], size_hw=(416, 416), form="scores", conf=conf, nms=nms)
        expected = golden[f"det_{tag}_{i}"]
        expected_scores = expected[:, 4] * expected[:, 5]
        order = np.argsort(-expected_scores, kind="stable")
        assert classes.tolist() == expected[order, 6].tolist()
        np.testing.assert_allclose(boxes, expected[order, :4], atol=0.5)
        np.testing.assert_allclose(scores, expected_scores[order], atol=1e-3)
        total += len(boxes)
    assert total == (32 if tag == "c25_n45" else 429)


def test_letterbox_gives_the_reference_pixels() -> None:
    reference = json.loads(shared_path("golden/preprocess_and_schedule.json").read_text())["preproc"]
    image = np.random.RandomState(0).randint(0, 256, (37, 61, 3), np.uint8)
    boxed, ratio = letterbox(image, (64, 96))
    pixels = to_input(boxed[None], "bgr255")[0]
    assert ratio == pytest.approx(reference["ratio"])
    assert list(pixels.shape) == reference["out_shape"]
    height, width = reference["resized_hw"]
    assert (boxed[height:] == reference["pad_value"]).all()
    assert (boxed[:height, width:] == reference["pad_value"]).all()
    # OpenCV versions may round a bilinear pixel differently by one level.
    np.testing.assert_allclose(pixels[:, 0, :4], reference["corner"], atol=1)
    assert pixels.sum() == pytest.approx(reference["sum"], rel=1e-4)
