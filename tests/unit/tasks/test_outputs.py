import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.disk import small_files
from support.scenes import NAMES, Square, save_video, scene

from boxwright.core.errors import DataError, UsageError
from boxwright.core.types import Detections
from boxwright.tasks.predict.inputs import Failure, Frame
from boxwright.tasks.predict.outputs import FORMATS, Outputs, to_record
from boxwright.tasks.predict.predictor import Prediction


def _prediction(source: str, *squares: Square, index: int | None = None, fps: float = 10) -> Prediction:
    image = scene(*squares)
    boxes = [[column * 8, row * 8, column * 8 + 8, row * 8 + 8] for _, column, row in squares]
    found = Detections(
        boxes_xyxy=np.array(boxes, np.float32).reshape(-1, 4),
        scores=np.full(len(squares), 0.75, np.float32),
        class_ids=np.array([NAMES.index(name) for name, _, _ in squares], np.int64),
        names=NAMES,
        size_hw=(64, 64),
    )
    return Prediction(frame=Frame(source=source, image=image, index=index, fps=fps), detections=found)


def _write(folder: Path, formats: Sequence[str], *predictions: Prediction, ids: Sequence[int] = ()) -> list[str]:
    with Outputs(folder, formats, ids) as outputs:
        for prediction in predictions:
            outputs.write(prediction)
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


RED = ("red", 1, 2)
BLUE = ("blue", 4, 4)


def test_json_lines_hold_a_record_an_image(tmp_path: Path) -> None:
    names = _write(tmp_path, ["json"], _prediction("a.jpg", RED), _prediction("clip.mp4", index=3))
    assert names == ["predictions.jsonl"]
    first, second = (json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines())
    assert first == {
        "source": "a.jpg",
        "size_hw": [64, 64],
        "detections": [{"class": "red", "class_id": 0, "score": 0.75, "box_xyxy": [8.0, 16.0, 16.0, 24.0]}],
    }
    assert second == {"source": "clip.mp4", "frame": 3, "size_hw": [64, 64], "detections": []}


def test_a_failure_has_a_record_too() -> None:
    assert to_record(Failure(source="x.jpg", error=DataError("gone"))) == {"source": "x.jpg", "error": "gone"}


def test_csv_has_a_row_a_box(tmp_path: Path) -> None:
    _write(tmp_path, ["csv"], _prediction("a, b.jpg", RED, BLUE), _prediction("c.jpg"), _prediction("v", BLUE, index=7))
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["source"], r["frame"], r["class"]) for r in rows] == [
        ("a, b.jpg", "", "red"),
        ("a, b.jpg", "", "blue"),
        ("v", "7", "blue"),
    ]
    assert [float(rows[0][key]) for key in ("score", "x1", "y1", "x2", "y2")] == [0.75, 8, 16, 16, 24]


def test_yolo_text_is_a_file_an_image_also_where_nothing_was_found(tmp_path: Path) -> None:
    names = _write(tmp_path, ["yolo"], _prediction("my cat.jpg", RED), _prediction("c.jpg"), _prediction("v", index=7))
    assert names == ["labels/c.txt", "labels/my cat.txt", "labels/v_000007.txt"]
    assert (tmp_path / "labels/my cat.txt").read_text() == "0 0.187500 0.312500 0.125000 0.125000 0.750000\n"
    assert (tmp_path / "labels/c.txt").read_text() == ""


def test_the_labels_of_a_data_set_are_not_overwritten(tmp_path: Path) -> None:
    truth = tmp_path / "labels" / "a.txt"
    truth.parent.mkdir()
    truth.write_text("0 0.5 0.5 1 1\n")
    with pytest.raises(UsageError, match="holds results already"):
        Outputs(tmp_path, ["json", "yolo"])
    assert truth.read_text() == "0 0.5 0.5 1 1\n"


def test_a_coco_json_is_whole_and_numbers_its_parts(tmp_path: Path) -> None:
    names = _write(tmp_path, ["coco"], _prediction("a.jpg", RED, BLUE), _prediction("b.jpg"), ids=(10, 20, 30))
    assert names == ["predictions.coco.json"]
    content = json.loads((tmp_path / "predictions.coco.json").read_text())
    assert content["images"] == [
        {"id": 1, "file_name": "a.jpg", "height": 64, "width": 64},
        {"id": 2, "file_name": "b.jpg", "height": 64, "width": 64},
    ]
    assert content["categories"] == [{"id": 10 * n, "name": name} for n, name in enumerate(NAMES, start=1)]
    assert content["annotations"][1] == {
        "id": 2, "image_id": 1, "category_id": 30, "bbox": [32, 32, 8, 8], "score": 0.75, "area": 64, "iscrowd": 0,
    }  # fmt: skip


def test_coco_images_keep_the_id_in_their_name_and_no_two_share_one(tmp_path: Path) -> None:
    sources = ["x.jpg", "000000000002.jpg", "y.jpg", "one/000000000139.jpg", "two/000000000139.jpg", "000000000001.jpg"]
    _write(tmp_path, ["coco"], *[_prediction(s, RED) for s in sources], _prediction("000000000005.mp4", RED, index=0))
    content = json.loads((tmp_path / "predictions.coco.json").read_text())
    ids = [image["id"] for image in content["images"]]
    assert len(set(ids)) == len(ids)
    assert ids[1] == 2
    assert ids[3] == 139
    assert [box["image_id"] for box in content["annotations"]] == ids


def test_no_prediction_at_all_still_leaves_readable_files(tmp_path: Path) -> None:
    _write(tmp_path, FORMATS)
    assert json.loads((tmp_path / "predictions.coco.json").read_text()) == {
        "annotations": [], "images": [], "categories": [],
    }  # fmt: skip
    assert (tmp_path / "predictions.csv").read_text().count("\n") == 1


def test_a_picture_is_drawn_and_named_after_its_source(tmp_path: Path) -> None:
    assert _write(tmp_path, ["images"], _prediction("deep/folder/my cat.png", RED)) == ["my cat.jpg"]
    picture = cv2.imread(str(tmp_path / "my cat.jpg"))
    assert picture is not None
    assert picture.shape == (64, 64, 3)
    assert np.abs(picture.astype(int) - scene(RED)).max() > 100


def test_equal_names_from_two_folders_are_numbered(tmp_path: Path) -> None:
    sources = ["one/a.jpg", "two/a.jpg", "two/a.png", "a_2.jpg"]
    names = _write(tmp_path, ["images", "yolo"], *[_prediction(s) for s in sources])
    stems = ["a", "a_2", "a_2_2", "a_3"]
    assert names == [*(f"{s}.jpg" for s in stems), *(f"labels/{s}.txt" for s in stems)]


def test_a_video_has_as_many_frames_as_were_written(tmp_path: Path) -> None:
    clips = [_prediction(f"{name}.mov", RED, index=i, fps=fps) for name, fps in (("a", 5), ("b", 0)) for i in range(12)]
    assert _write(tmp_path, ["images"], *clips) == ["a.mp4", "b.mp4"]
    for name, fps in (("a", 5), ("b", 25)):
        capture = cv2.VideoCapture(str(tmp_path / f"{name}.mp4"))
        frames = 0
        while capture.read()[0]:
            frames += 1
        assert frames == 12
        assert capture.get(cv2.CAP_PROP_FPS) == fps


def test_a_stream_that_changes_its_size_stays_one_video(tmp_path: Path) -> None:
    large = Prediction(
        frame=Frame(source="rtsp://host/live", image=scene(size_hw=(128, 96)), index=1, fps=10),
        detections=Detections.empty(names=NAMES, size_hw=(128, 96)),
    )
    assert _write(tmp_path, ["images"], _prediction("rtsp://host/live", index=0), large) == ["stream.mp4"]
    capture = cv2.VideoCapture(str(tmp_path / "stream.mp4"))
    assert [capture.read()[1].shape for _ in range(2)] == [(64, 64, 3), (64, 64, 3)]


def test_a_picture_or_video_never_replaces_its_own_source(tmp_path: Path) -> None:
    still = tmp_path / "a.jpg"
    still.write_bytes(cv2.imencode(".jpg", scene(RED))[1].tobytes())
    clip = save_video(tmp_path / "clip.mp4", [scene(RED)])
    for path, index in ((still, None), (clip, 0)):
        before = path.read_bytes()
        with (
            pytest.raises(UsageError, match="overwrite its own source"),
            Outputs(tmp_path, ["images"], overwrite=True) as outputs,
        ):
            outputs.write(_prediction(str(path), RED, index=index))
        assert path.read_bytes() == before


def test_a_file_name_that_is_not_utf8_is_written_in_every_format(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _write(out, FORMATS, _prediction("caf\udce9.jpg", RED))
    assert json.loads((out / "predictions.jsonl").read_text())["source"] == "caf\udce9.jpg"
    assert json.loads((out / "predictions.coco.json").read_text())["images"][0]["file_name"] == "caf\udce9.jpg"
    assert b"caf\xe9.jpg" in (out / "predictions.csv").read_bytes()
    assert (out / "caf\udce9.jpg").is_file()


def test_a_video_in_a_folder_that_is_not_utf8_is_refused_and_no_crash(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not valid UTF-8"):
        _write(tmp_path / "caf\udce9", ["images"], _prediction("clip.mov", index=0))


def test_an_unknown_format_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Unknown format 'jsn'\. Did you mean 'json'"):
        Outputs(tmp_path, ["jsn"])


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="can't be the output folder"):
        Outputs(tmp_path / "file", ["json"])


def test_lines_are_on_disk_before_the_next_image(tmp_path: Path) -> None:
    with Outputs(tmp_path, ["json", "csv"]) as outputs:
        for number in range(1, 4):
            outputs.write(_prediction(f"{number}.jpg", RED))
            assert len((tmp_path / "predictions.jsonl").read_text().splitlines()) == number
            assert len((tmp_path / "predictions.csv").read_text().splitlines()) == number + 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, DataError])
def test_what_was_predicted_before_an_error_is_in_whole_files(tmp_path: Path, error: type[BaseException]) -> None:
    def write_and_fail() -> None:
        with Outputs(tmp_path, FORMATS) as outputs:
            outputs.write(_prediction("a.jpg", RED))
            for index in range(3):
                outputs.write(_prediction("clip.mp4", BLUE, index=index))
            assert not (tmp_path / "predictions.coco.json").exists(), "not before it is whole"
            assert not (tmp_path / "clip.mp4").exists(), "not before it is whole"
            raise error("stop")

    with pytest.raises(error):
        write_and_fail()
    assert len(json.loads((tmp_path / "predictions.coco.json").read_text())["images"]) == 4
    assert cv2.VideoCapture(str(tmp_path / "clip.mp4")).get(cv2.CAP_PROP_FRAME_COUNT) == 3
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["images", "json", "csv", "coco", "yolo"])
def test_a_full_disk_is_reported_with_the_path_and_leaves_no_torn_file(tmp_path: Path, name: str) -> None:
    boxes = [("red", column, row) for column in range(8) for row in range(8)]
    predictions = [_prediction("0.jpg"), *(_prediction(f"{number}.jpg", *boxes) for number in range(1, 20))]
    with small_files(1000), pytest.raises(OSError, match=str(tmp_path)):
        _write(tmp_path, [name], *predictions)
    assert not list(tmp_path.glob(".*"))
    for text in tmp_path.glob("predictions.*"):
        assert text.read_text().endswith("\n")
        assert text.suffix != ".json" or len(json.loads(text.read_text())["images"]) == 1
    for label in (tmp_path / "labels").glob("*"):
        assert label.read_text() == ""
    for picture in tmp_path.glob("*.jpg"):
        assert cv2.imread(str(picture)) is not None


def test_a_video_that_does_not_fit_on_the_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    frame = Frame(source="clip.mov", image=noise, index=0)
    prediction = Prediction(frame=frame, detections=Detections.empty(names=NAMES, size_hw=(64, 64)))
    with small_files(3000), pytest.raises(DataError, match=r"clip\.mp4' can't be written"):
        _write(tmp_path, ["images"], *[prediction] * 60)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["images", "json", "csv", "coco", "yolo"])
def test_results_of_an_earlier_run_are_replaced_only_on_request(tmp_path: Path, name: str) -> None:
    before = _write(tmp_path, [name], _prediction("a.jpg", RED))
    first = (tmp_path / before[0]).read_bytes()
    with pytest.raises(UsageError, match=rf"holds results already, such as '{before[0]}'.*--overwrite"):
        Outputs(tmp_path, [name])
    with Outputs(tmp_path, [name], overwrite=True) as outputs:
        outputs.write(_prediction("a.jpg", BLUE))
    assert (tmp_path / before[0]).read_bytes() != first
    other = "csv" if name == "json" else "json"
    _write(tmp_path, [other], _prediction("a.jpg", RED))


def _end(*_: object) -> None:
    raise SystemExit(143)


@pytest.mark.parametrize(
    "place",
    [
        "boxwright.core.files.GrowingFile.add",
        "boxwright.tasks.predict.outputs._YoloText.begin",
        "boxwright.tasks.predict.outputs._YoloText.close",
    ],
)
def test_a_signal_at_the_beginning_or_the_end_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(place, _end)
    formats = ["coco", "yolo"] if place.endswith("begin") else ["yolo", "coco"]
    with pytest.raises(SystemExit), Outputs(tmp_path, formats):
        pass
    assert not list(tmp_path.glob(".*"))


def test_a_signal_while_opencv_creates_a_video_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        fourcc = cv2.VideoWriter.fourcc

        def __init__(self, path: str, *_: object) -> None:
            Path(path).touch()
            _end()

    monkeypatch.setattr("cv2.VideoWriter", Writer)
    with pytest.raises(SystemExit), Outputs(tmp_path, ["images"]) as outputs:
        outputs.write(_prediction("clip.mp4", RED, index=0))
    assert not list(tmp_path.iterdir())


def test_drafts_of_a_killed_process_with_the_same_number_do_not_matter(tmp_path: Path) -> None:
    for part in ("predictions", "images"):
        (tmp_path / f".{part}.{os.getpid()}.coco.json").write_text("cut off")
    assert _write(tmp_path, ["coco"], _prediction("a.jpg", RED)) == ["predictions.coco.json"]
    assert len(json.loads((tmp_path / "predictions.coco.json").read_text())["annotations"]) == 1


def test_csv_cells_are_not_computed_by_a_spreadsheet(tmp_path: Path) -> None:
    _write(tmp_path, ["csv"], _prediction('=HYPERLINK("x").jpg', RED), _prediction("-1.jpg", RED))
    with (tmp_path / "predictions.csv").open(newline="") as file:
        assert [row["source"] for row in csv.DictReader(file)] == ['\'=HYPERLINK("x").jpg', "'-1.jpg"]


def test_without_formats_nothing_is_made(tmp_path: Path) -> None:
    _write(tmp_path / "out", [], _prediction("a.jpg", RED))
    assert not (tmp_path / "out").exists()
