"""`boxwright predict` over the toy detector: every kind of source and of output."""

import csv
import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import cv2
import pytest
from support.coco_results import evaluate_files
from support.fixtures import Command
from support.scenes import save_labelled_set, save_scene, save_video, scene
from support.toy import save_toy_onnx, toy_spec

from boxwright.core.cpu import read_cpu


def _lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_image_is_annotated_into_a_new_run_folder(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    image = save_scene(tmp_path / "a.png", ("red", 1, 1), ("red", 4, 4), ("blue", 6, 6))
    for run in ("exp", "exp2"):
        done = boxwright("predict", toy_onnx, image)
        assert done.code == 0
        assert done.out == f"{image}: 2 red, 1 blue\n"
        assert f"Written to runs/predict/{run}" in done.err
        assert (tmp_path / "runs" / "predict" / run / "a.jpg").is_file()


TWO_CORES = pytest.mark.skipif(read_cpu().usable_cores < 2, reason="needs two cores")


@pytest.mark.parametrize("words", [[], pytest.param(["--workers", 2], marks=TWO_CORES), ["--hint", "throughput"]])
def test_all_kinds_of_sources_go_through_one_command(
    boxwright: Command, toy_onnx: Path, tmp_path: Path, words: list[object]
) -> None:
    save_scene(tmp_path / "folder" / "a.png", ("red", 0, 0))
    save_scene(tmp_path / "folder" / "b.jpg", ("red", 0, 0))
    save_scene(tmp_path / "glob" / "one.png", ("green", 0, 0))
    save_scene(tmp_path / "glob" / "two.png", ("green", 0, 0))
    save_video(tmp_path / "clip.mp4", [scene(("blue", 1, 1))] * 5)
    data = save_scene(tmp_path / "stdin.png", ("blue", 2, 2)).read_bytes()
    sources = ["folder", "glob/*.png", "clip.mp4", "-"]
    done = boxwright("predict", toy_onnx, *sources, "--json", *words, "--save", stdin=data)
    assert done.code == 0
    records = _lines(done.out)
    assert [(r["source"], r.get("frame")) for r in records] == [
        ("folder/a.png", None),
        ("folder/b.jpg", None),
        ("glob/one.png", None),
        ("glob/two.png", None),
        *[("clip.mp4", i) for i in range(5)],
        ("stdin", None),
    ]
    assert all(len(r["detections"]) == 1 for r in records)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


def test_a_hint_is_explained_on_stderr(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    image = save_scene(tmp_path / "a.png", ("red", 1, 1))
    done = boxwright("predict", toy_onnx, image, "--save", "--quiet", "--hint", "latency", "--explain")
    assert (done.code, done.out) == (0, f"{image}: 1 red\n")
    said = done.err.splitlines()
    cores = read_cpu().usable_cores
    assert said[0].startswith(f"For latency: 1 instance x {cores} thread")
    assert "physical cores may be used" in said[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--explain"], "Add --hint latency"),
        (["--hint", "latency", "--workers", 1], "--hint latency chooses --workers itself"),
        (["--hint", "latency", "--engine", "local", "--out", "o"], "--hint latency does not apply to --engine local"),
    ],
)
def test_a_hint_that_can_not_be_followed_is_refused(
    boxwright: Command, toy_onnx: Path, words: list[object], message: str
) -> None:
    done = boxwright("predict", toy_onnx, "a.png", *words)
    assert done.code == 2
    assert message in done.err


def test_json_on_stdout_is_json_alone_while_files_are_written(
    boxwright: Command, toy_onnx: Path, tmp_path: Path
) -> None:
    image = save_scene(tmp_path / "a.png", ("red", 1, 2))
    done = boxwright("predict", toy_onnx, image, "missing.png", "--json", "-v", "--out", "out", "--save", "json")
    assert done.code == 3
    found, failed = _lines(done.out)
    assert found == {
        "source": str(image),
        "size_hw": [64, 64],
        "detections": [{"class": "red", "class_id": 0, "score": 1.0, "box_xyxy": [8.0, 16.0, 16.0, 24.0]}],
    }
    assert set(failed) == {"source", "error"}
    assert _lines((tmp_path / "out" / "predictions.jsonl").read_text()) == [found]


def test_every_format_is_written_in_one_go(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    save_scene(tmp_path / "in" / "a.png", ("red", 1, 2), ("blue", 4, 4))
    save_video(tmp_path / "in" / "clip.mp4", [scene(("green", 1, 1))] * 7)
    done = boxwright(
        "predict", toy_onnx, "in", "--out", "out", "--batch", "3", "--save", "images", "json", "csv", "coco", "yolo"
    )
    assert done.code == 0
    out = tmp_path / "out"
    assert sorted(p.name for p in out.iterdir()) == [
        "a.jpg", "clip.mp4", "labels", "predictions.coco.json", "predictions.csv", "predictions.jsonl",
    ]  # fmt: skip
    capture = cv2.VideoCapture(str(out / "clip.mp4"))
    assert sum(1 for _ in iter(lambda: capture.read()[0], False)) == 7
    with (out / "predictions.csv").open() as file:
        assert [row["class"] for row in csv.DictReader(file)] in (["red", "blue", *["green"] * 7],
                                                                  ["blue", "red", *["green"] * 7])  # fmt: skip
    assert len(list((out / "labels").iterdir())) == 8
    assert sorted((out / "labels" / "a.txt").read_text().split("\n")[:-1]) == [
        "0 0.187500 0.312500 0.125000 0.125000 1.000000",
        "2 0.562500 0.562500 0.125000 0.125000 1.000000",
    ]
    content = json.loads((out / "predictions.coco.json").read_text())
    assert (len(content["images"]), len(content["annotations"])) == (8, 9)


def test_the_coco_json_can_be_scored_against_the_annotations(
    boxwright: Command, toy_onnx: Path, tmp_path: Path
) -> None:
    truth = json.loads(
        (save_labelled_set(tmp_path, [[("red", 1, 1)], [("blue", 2, 3)]]) / "instances.json").read_text()
    )
    for image in truth["images"]:  # named as COCO names its images: by their id
        name = f"{image['id']:012d}.png"
        (tmp_path / "images" / image["file_name"]).rename(tmp_path / "images" / name)
        image["file_name"] = name
    for category, number in zip(truth["categories"], (1, 2, 3), strict=True):
        category["id"] = number
    for box in truth["annotations"]:
        box["category_id"] //= 10
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    assert boxwright("predict", toy_onnx, "images", "--out", "out", "--save", "coco").code == 0
    content = json.loads((tmp_path / "out" / "predictions.coco.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps(content["annotations"]))
    assert evaluate_files(tmp_path / "truth.json", tmp_path / "results.json").AP == pytest.approx(1)


def test_only_the_classes_asked_for_are_shown(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    image = save_scene(tmp_path / "a.png", ("red", 1, 1), ("blue", 6, 6))
    assert boxwright("predict", toy_onnx, image, "--save", "--classes", "blue").out == f"{image}: 1 blue\n"
    assert boxwright("predict", toy_onnx, image, "--save", "--classes", "green").out == f"{image}: nothing found\n"


def test_boxes_of_two_classes_in_one_place_can_suppress_each_other(boxwright: Command, tmp_path: Path) -> None:
    model = save_toy_onnx(tmp_path / "twins.onnx", twins=True, spec=toy_spec())
    image = save_scene(tmp_path / "a.png", ("red", 0, 0), ("blue", 1, 0))
    for words, count in (((), 2), (("--class-agnostic",), 1)):
        done = boxwright("predict", model, image, "--save", "--json", *words)
        assert [len(line["detections"]) for line in _lines(done.out)] == [count]  # type: ignore[arg-type]


def test_names_given_by_the_user_are_shown(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    image = save_scene(tmp_path / "a.png", ("blue", 6, 6))
    (tmp_path / "names.txt").write_text("rot\ngrün\nblau\n", encoding="utf-8")
    assert boxwright("predict", toy_onnx, image, "--save", "--names", "names.txt").out == f"{image}: 1 blau\n"


def test_equal_names_from_two_folders_both_get_a_picture(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    save_scene(tmp_path / "one" / "a.png", ("red", 1, 1))
    save_scene(tmp_path / "two" / "a.png", ("blue", 1, 1))
    assert boxwright("predict", toy_onnx, "one", "two", "--out", "out").code == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.jpg", "a_2.jpg"]


def test_an_image_from_stdin_is_annotated(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    data = save_scene(tmp_path / "in.png", ("red", 1, 1)).read_bytes()
    done = boxwright("predict", toy_onnx, "-", "--out", "out", stdin=data)
    assert (done.code, done.out) == (0, "stdin: 1 red\n")
    assert (tmp_path / "out" / "stdin.jpg").is_file()


class _SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_stream_over_http_becomes_a_video(
    boxwright: Command, toy_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    save_video(tmp_path / "live.avi", [scene(("red", 1, 1))] * 6)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_SilentHandler, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        done = boxwright("predict", toy_onnx, f"{address}/live.avi", f"{address}/gone.avi", "--json", "--out", "out")
        server.shutdown()
    assert done.code == 3
    assert [line.get("frame") for line in _lines(done.out)] == [0, 1, 2, 3, 4, 5, None]
    assert "gone.avi' can't be opened" in done.err
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["stream.mp4"]


def test_quiet_leaves_only_the_results(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    image = save_scene(tmp_path / "a.png")
    done = boxwright("predict", toy_onnx, image, "-q")
    assert (done.out, done.err) == (f"{image}: nothing found\n", "")
