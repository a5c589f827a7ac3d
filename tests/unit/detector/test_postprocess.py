from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boxwright.core.boxes import area_xyxy
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import OutputForm
from boxwright.detector.postprocess import anchor_grid, postprocess, suppress

SIZE = (64, 64)
ROWS = 84


def empty_output(classes: int = 3) -> np.ndarray:
    output = np.zeros((ROWS, 5 + classes), np.float32)
    output[:, 2:4] = 1
    return output


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    both = area_xyxy(np.concatenate((np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:]))))
    return float(both / max(area_xyxy(a) + area_xyxy(b) - both, 1e-9))


def plain_nms(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> list[int]:
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if all(overlap(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(int(i))
    return kept


@settings(max_examples=80)
@given(seed=st.integers(0, 2**31), count=st.integers(0, 60), threshold=st.floats(0.05, 0.95), agnostic=st.booleans())
def test_suppression_equals_the_plain_algorithm(seed: int, count: int, threshold: float, agnostic: bool) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(-20, 100, (count, 4)).astype(np.float32)
    boxes[:, 2:] = boxes[:, :2] + rng.uniform(1, 60, (count, 2)).astype(np.float32)
    scores = rng.permutation(np.linspace(0.01, 1, max(count, 1), dtype=np.float32))[:count]
    classes = rng.integers(0, 3, count)
    kept = suppress(boxes, scores, None if agnostic else classes, threshold)
    groups = [np.arange(count)] if agnostic else [np.flatnonzero(classes == c) for c in range(3)]
    expected = {int(g[i]) for g in groups for i in plain_nms(boxes[g], scores[g], threshold)}
    assert set(kept.tolist()) == expected
    assert (np.diff(scores[kept]) <= 0).all(), "best first"


def test_thousands_of_boxes_are_all_kept() -> None:
    count = 5000
    boxes = np.zeros((count, 4), np.float32)
    boxes[:, 0] = np.arange(count) * 10
    boxes[:, 2] = boxes[:, 0] + 5
    boxes[:, 3] = 5
    scores = np.linspace(0.5, 1, count, dtype=np.float32)
    assert len(suppress(boxes, scores, np.zeros(count, np.int64), 0.5)) == count


def test_a_box_is_decoded_from_its_cell() -> None:
    output = empty_output()
    output[:, 4] = -20
    grid, stride = anchor_grid(SIZE, (8, 16, 32))
    row = 70  # on the level of stride 16
    output[row] = [0.5, 0.25, np.log(2), np.log(3), 20, -20, 20, -20]
    boxes, scores, classes = postprocess(output, size_hw=SIZE, conf=0.5)
    x, y = (grid[row] + [0.5, 0.25]) * stride[row]
    assert boxes.tolist() == [pytest.approx([x - 16, y - 24, x + 16, y + 24])]
    assert classes.tolist() == [1]
    assert scores[0] == pytest.approx(1, abs=1e-6)


def test_the_three_forms_of_an_output_give_the_same_boxes() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(ROWS, 8)).astype(np.float32)
    scores = raw.copy()
    scores[:, 4:] = 1 / (1 + np.exp(-raw[:, 4:]))
    decoded = scores.copy()
    grid, stride = anchor_grid(SIZE, (8, 16, 32))
    decoded[:, :2] = (raw[:, :2] + grid) * stride
    decoded[:, 2:4] = np.exp(raw[:, 2:4]) * stride
    results = [
        postprocess(out, size_hw=SIZE, form=form, conf=0.05)  # type: ignore[arg-type]
        for out, form in ((raw, "raw"), (scores, "scores"), (decoded, "decoded"))
    ]
    assert len(results[0][0]) > 5
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def test_the_score_is_objectness_times_class_and_conf_is_its_bound() -> None:
    output = empty_output()
    output[3, 4:] = [0.5, 0.1, 0.6, 0.2]
    assert postprocess(output, size_hw=SIZE, form="scores", conf=0.3)[1].tolist() == [pytest.approx(0.3)]
    assert len(postprocess(output, size_hw=SIZE, form="scores", conf=0.31)[1]) == 0


def test_class_agnostic_suppression_crosses_classes() -> None:
    output = empty_output()
    output[0, :4], output[1, :4] = [10, 10, 20, 20], [11, 10, 20, 20]
    output[0, 4:], output[1, 4:] = [0.9, 1, 0, 0], [0.8, 0, 1, 0]
    aware = postprocess(output, size_hw=SIZE, form="decoded", conf=0.1)
    agnostic = postprocess(output, size_hw=SIZE, form="decoded", conf=0.1, class_agnostic=True)
    assert aware[2].tolist() == [0, 1]
    assert agnostic[2].tolist() == [0]


def test_a_size_that_overflows_never_becomes_a_box() -> None:
    output = empty_output()
    output[:, 4:] = 0.9
    output[20:30, 2] = 1000  # exp overflows
    boxes, scores, _ = postprocess(output, size_hw=SIZE, form="scores", conf=0.1, nms=1.0)
    assert len(boxes) == ROWS - 10
    assert np.isfinite(boxes).all()
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("form", ["raw", "scores", "decoded"])
@pytest.mark.parametrize("where", [np.s_[:10, 4], np.s_[10:20, 5:], np.s_[3, 1], np.s_[:]])
def test_an_output_of_nan_is_an_error_and_not_nothing_found(form: OutputForm, where: Any) -> None:
    output = empty_output()
    output[:, 4:] = 0.9
    output[where] = np.nan
    with pytest.raises(CheckpointError, match="not a number"):
        postprocess(output, size_hw=SIZE, form=form, conf=0.1, nms=1.0)


@pytest.mark.parametrize("shape", [(83, 8), (ROWS, 5), (1, ROWS, 8)])
def test_an_output_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="does not fit an input"):
        postprocess(np.zeros(shape, np.float32), size_hw=SIZE)


@pytest.mark.parametrize(("name", "value"), [("conf", 1.5), ("nms", -0.1), ("conf", float("nan"))])
def test_thresholds_outside_0_to_1_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name}="):
        postprocess(empty_output(), size_hw=SIZE, **{name: value})
