import json
from pathlib import Path

import numpy as np
import pytest
from support.scenes import save_labelled_set, scene
from support.toy import ToySession, toy_spec

from boxwright.core.errors import CheckpointError, DataError, UsageError
from boxwright.data.formats import read_records
from boxwright.tasks.evaluate import OFFICIAL, evaluate, match_classes
from boxwright.tasks.predict.predictor import Predictor, Thresholds

SCENES = [[("red", 1, 1)], [("green", 2, 2), ("blue", 5, 5)], [], [("red", 0, 7), ("red", 7, 0)], [("blue", 3, 3)]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_labelled_set(tmp_path, SCENES)


@pytest.fixture
def predictor() -> Predictor:
    return Predictor(ToySession(), OFFICIAL)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_a_detector_that_finds_everything_scores_1(folder: Path, predictor: Predictor, batch: int) -> None:
    result = evaluate(predictor, folder, batch=batch)
    assert result.metrics.AP == pytest.approx(1)
    assert {name: values.truths for name, values in result.metrics.per_class.items()} == {
        "red": 3, "green": 1, "blue": 2,
    }  # fmt: skip
    assert result.metrics.images == 5
    assert result.failures == result.missing == ()


def test_records_and_a_json_give_the_same_as_a_folder(folder: Path, predictor: Predictor) -> None:
    expected = evaluate(predictor, folder).metrics
    assert evaluate(predictor, folder / "instances.json").metrics == expected
    assert evaluate(predictor, read_records(folder)).metrics == expected


def test_a_detector_that_finds_nothing_scores_0(folder: Path) -> None:
    blind = Predictor(ToySession(toy_spec(preprocessing="legacy")), OFFICIAL)
    assert evaluate(blind, folder).metrics.AP == 0


def test_classes_are_matched_by_name_whatever_their_order(tmp_path: Path, predictor: Predictor) -> None:
    other_order = save_labelled_set(tmp_path, SCENES, names=("blue", "red", "green"))
    assert evaluate(predictor, other_order).metrics.AP == pytest.approx(1)


def test_a_detector_may_know_more_classes_than_the_set(tmp_path: Path, predictor: Predictor) -> None:
    fewer = save_labelled_set(tmp_path, [[("red", 1, 1)], [("blue", 2, 2)]], names=("blue", "red"))
    metrics = evaluate(predictor, fewer).metrics
    assert metrics.AP == pytest.approx(1)
    assert list(metrics.per_class) == ["blue", "red"]


def test_a_class_that_the_detector_does_not_know_is_refused(tmp_path: Path, predictor: Predictor) -> None:
    other = save_labelled_set(tmp_path, [[("red", 1, 1)]], names=("red", "violet"))
    with pytest.raises(CheckpointError, match=r"knows 3 classes .*'violet'.*--names"):
        evaluate(predictor, other)


def test_crowds_and_areas_of_the_annotations_count(folder: Path, predictor: Predictor) -> None:
    file = folder / "instances.json"
    content = json.loads(file.read_text())
    content["annotations"][0]["iscrowd"] = 1
    content["annotations"][1]["area"] = 200 * 200
    file.write_text(json.dumps(content))
    metrics = evaluate(predictor, folder).metrics
    assert metrics.truths == 5
    assert metrics.AP_large == pytest.approx(1)
    assert metrics.AP_medium == -1
    assert metrics.per_class["red"].truths == 2


def test_classes_without_names_are_matched_by_position() -> None:
    np.testing.assert_array_equal(match_classes(["class_0", "class_1"], ["cat", "dog"]), [0, 1])
    with pytest.raises(CheckpointError, match="knows 3 classes"):
        match_classes(["class_0", "class_1", "class_2"], ["cat", "dog"])


def test_matching_gives_the_place_in_the_set_or_minus_one() -> None:
    np.testing.assert_array_equal(match_classes(["dog", "cow", "cat"], ["cat", "dog"]), [1, -1, 0])


def test_an_image_that_cannot_be_read_is_left_out_and_listed(folder: Path, predictor: Predictor) -> None:
    (folder / "images" / "0002.png").write_text("no image")
    result = evaluate(predictor, folder, batch=3)
    assert [Path(f.source).name for f in result.failures] == ["0002.png"]
    assert result.metrics.images == 4
    assert result.metrics.truths == 4
    assert result.metrics.AP == pytest.approx(1)
    assert "not an image" in result.to_dict()["failures"][0]["error"]


def test_an_image_that_is_not_there_is_left_out_and_named(folder: Path, predictor: Predictor) -> None:
    (folder / "images" / "0004.png").unlink()
    result = evaluate(predictor, folder)
    assert result.missing == ("0004.png",)
    assert result.to_dict()["missing"] == ["0004.png"]
    assert result.metrics.images == 4


def test_a_set_of_which_nothing_can_be_read_is_refused(folder: Path, predictor: Predictor) -> None:
    for path in (folder / "images").iterdir():
        path.write_text("no image")
    with pytest.raises(DataError, match=r"None of the 5 images.*0001\.png"):
        evaluate(predictor, folder)


def test_a_limit_takes_the_first_images_and_progress_counts_them(folder: Path, predictor: Predictor) -> None:
    seen: list[tuple[int, int]] = []
    result = evaluate(predictor, folder, limit=2, batch=1, progress=lambda done, total: seen.append((done, total)))
    assert result.metrics.images == 2
    assert seen == [(1, 2), (2, 2)]
    assert evaluate(predictor, folder, limit=100).metrics.images == 5
    with pytest.raises(UsageError, match="limit=0"):
        evaluate(predictor, folder, limit=0)


def test_times_are_those_of_this_evaluation_alone(folder: Path, predictor: Predictor) -> None:
    predictor(scene())
    evaluate(predictor, folder, batch=1)
    evaluate(predictor, folder, batch=1)
    assert predictor.watch.counts == {"decode": 5, "letterbox": 5, "network": 5, "boxes": 5}


def test_the_result_is_plain_json_with_the_headline_first(folder: Path) -> None:
    result = evaluate(Predictor(ToySession(), Thresholds(conf=0.01, nms=0.65)), folder)
    values = json.loads(json.dumps(result.to_dict()))
    assert list(values)[:3] == ["AP", "AP50", "AP75"]
    assert (values["conf"], values["nms"]) == (0.01, 0.65)
    assert values["per_class"]["red"]["AP"] == pytest.approx(1)
    assert values["images_per_s"] > 0


def test_a_model_given_by_path_is_scored_as_published(toy_onnx: Path, folder: Path) -> None:
    result = evaluate(toy_onnx, folder, device="cpu")
    assert result.metrics.AP == pytest.approx(1)
    assert result.thresholds == OFFICIAL


def test_a_predictor_has_its_own_device(predictor: Predictor, folder: Path) -> None:
    with pytest.raises(UsageError, match="the predictor has its own"):
        evaluate(predictor, folder, device="cpu")
