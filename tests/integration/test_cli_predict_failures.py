"""`boxwright predict` where something is wrong: a sentence, the right exit code, and everything else still done."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.disk import small_files
from support.fixtures import Command
from support.scenes import save_scene, save_video, scene


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _break(folder: Path, kind: str) -> str:
    """Make one input that can't be read, and return what a user would type for it."""
    if kind == "corrupt":
        data = save_scene(folder / "corrupt.jpg", ("red", 0, 0)).read_bytes()
        (folder / "corrupt.jpg").write_bytes(data[:200])
    elif kind == "text":
        (folder / "text.jpg").write_text("shopping list")
    elif kind == "folder":
        (folder / "empty").mkdir()
    elif kind == "video":
        (folder / "cut.mp4").write_bytes(save_video(folder / "cut.mp4", [scene()] * 9).read_bytes()[:300])
    return {
        "corrupt": "corrupt.jpg", "text": "text.jpg", "folder": "empty", "missing": "gone.jpg", "glob": "gone*.jpg",
        "video": "cut.mp4", "stdin": "-", "camera": "99999999999",
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("corrupt", "Cannot read image 'corrupt.jpg': it is cut off"),
        ("text", "'text.jpg': it is not an image"),
        ("folder", "The folder 'empty' holds no image and no video"),
        ("missing", "'gone.jpg': there is no such file"),
        ("glob", "No file matches 'gone*.jpg'"),
        ("video", "'cut.mp4'"),
        ("stdin", "Cannot read image 'stdin': it is empty"),
        ("camera", "There is no camera 99999999999"),
    ],
)
def test_a_bad_input_is_named_and_the_others_are_done(
    boxwright: Command, toy_onnx: Path, tmp_path: Path, kind: str, message: str
) -> None:
    save_scene(tmp_path / "good" / "a.png", ("red", 1, 1))
    save_scene(tmp_path / "good" / "b.png", ("blue", 1, 1))
    bad = _break(tmp_path, kind)
    done = boxwright("predict", toy_onnx, "good/a.png", bad, "good/b.png", "--out", "out", "--save", "images", "json")
    assert done.code == 3
    assert message in done.err
    assert "1 of 3 inputs could not be read" in done.err
    assert "Traceback" not in done.err
    assert done.out == "good/a.png: 1 red\ngood/b.png: 1 blue\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.jpg", "b.jpg", "predictions.jsonl"]
    lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["source"] for line in lines] == ["good/a.png", "good/b.png"]


@pytest.mark.parametrize("batch", ["1", "4"])
def test_a_bad_image_inside_a_folder_fails_alone(
    boxwright: Command, toy_onnx: Path, tmp_path: Path, batch: str
) -> None:
    for name in ("a.png", "b.png", "z.png"):
        save_scene(tmp_path / "in" / name, ("red", 1, 1))
    _break(tmp_path / "in", "text")
    done = boxwright("predict", toy_onnx, "in", "--out", "out", "-b", batch)
    assert done.code == 3
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.jpg", "b.jpg", "z.jpg"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("missing.onnx", "There is no model file at 'missing.onnx'"),
        ("yolox_nan", "Did you mean 'yolox_nano'"),
        ("text.onnx", "can't be loaded by ONNX Runtime"),
        ("empty.pth", "can't be read as a PyTorch checkpoint"),
        ("in", "holds no artifact.json"),
        ("in/a.png", "known kind of model file"),
    ],
)
def test_a_model_that_cannot_be_used_is_a_model_error(
    boxwright: Command, tmp_path: Path, model: str, message: str
) -> None:
    save_scene(tmp_path / "in" / "a.png")
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "empty.pth").touch()
    done = boxwright("predict", model, "in")
    assert done.code == 4
    assert done.err.startswith("CheckpointError: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--names", "a,b"], "2 class names"),
        (["--names", ""], "no name"),
        (["--names", ",".join(f"a very long name {i}" for i in range(80))], "80 class names were given"),
        (["--classes", "reed"], "Unknown class 'reed'. Did you mean 'red'"),
        (["--classes", ""], "names nothing"),
        (["--size", "96"], "fixed to (64, 64)"),
        (["--output-form", "scores"], "does not apply"),
        (["--act", "relu"], "does not apply"),
        (["--out", "here", "--save"], "nothing would be written"),
        (["--out", "in/a.png"], "can't be the output folder"),
    ],
)
def test_an_option_that_does_not_fit_is_a_usage_error(
    boxwright: Command, toy_onnx: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    save_scene(tmp_path / "in" / "a.png")
    done = boxwright("predict", toy_onnx, "in", *options)
    assert done.code == 2
    assert done.err.startswith("UsageError: ")
    assert message in done.err
    assert done.out == ""


@pytest.mark.parametrize("source", ["in", "in/b.png", "in/*.png", "in/clip.mp4"])
def test_nothing_in_the_source_folder_is_overwritten(
    boxwright: Command, toy_onnx: Path, tmp_path: Path, source: str
) -> None:
    folder = tmp_path / "in"
    save_scene(folder / "b.jpg", ("red", 1, 1))  # a neighbour that the picture of b.png would replace
    save_scene(folder / "b.png", ("red", 1, 1))
    save_video(folder / "clip.mp4", [scene()] * 3)
    before = _contents(folder)
    for out in ("in", "./in/", f"{tmp_path}/in"):
        done = boxwright("predict", toy_onnx, "-", source, "--out", out)
        assert done.code == 2
        assert "Choose another --out" in done.err
    assert _contents(folder) == before


def test_text_outputs_may_lie_beside_the_sources(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    save_scene(tmp_path / "in" / "b.jpg", ("red", 1, 1))
    assert boxwright("predict", toy_onnx, "in", "--out", "in", "--save", "json", "yolo").code == 0
    assert sorted(p.name for p in (tmp_path / "in").iterdir()) == ["b.jpg", "labels", "predictions.jsonl"]


def test_a_second_run_does_not_replace_the_results_of_the_first(
    boxwright: Command, toy_onnx: Path, tmp_path: Path
) -> None:
    image = save_scene(tmp_path / "a.png", ("red", 1, 1))
    words = ["predict", toy_onnx, image, "--out", "out", "--save", "json", "images"]
    assert boxwright(*words).code == 0
    before = _contents(tmp_path / "out")
    done = boxwright(*words)
    assert (done.code, done.out) == (2, "")
    assert "'out' holds results already" in done.err
    assert _contents(tmp_path / "out") == before
    assert boxwright(*words, "--overwrite", "--classes", "blue").code == 0
    assert _contents(tmp_path / "out") != before
    for options, message in ((["--engine", "local", "--out", "o"], "does not apply"), ([], "--out DIR, which is not")):
        done = boxwright("predict", toy_onnx, image, "--overwrite", *options)
        assert (done.code, message in done.err) == (2, True)


def test_a_full_disk_is_one_sentence_with_the_path(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    squares = [("red", column, row) for column in range(8) for row in range(8)]
    for number in range(3):
        save_scene(tmp_path / "in" / f"{number}.png", *squares[: 64 * (number > 0)])
    with small_files(2000):
        done = boxwright("predict", toy_onnx, "in", "--out", "out", "--save", "json", "-q")
    assert (done.code, done.err) == (1, "OSError: File too large: 'out/predictions.jsonl'\n")
    assert done.out == "in/0.png: nothing found\n"
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 1


def test_names_reach_the_terminal_as_escapes(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    save_scene(tmp_path / "a.png", ("red", 1, 1)).rename(tmp_path / "\x1b]0;title\x07\n.png")
    (tmp_path / "\x1b[31m.jpg").write_text("no image")
    done = boxwright("predict", toy_onnx, "*.*g", "--save", "--names", "\x1b[32mred,b,c")
    assert "\x1b" not in done.out + done.err
    assert "\\x1b]0;title\\x07\\n.png: 1 \\x1b[32mred\n" in done.out


def test_file_names_of_any_bytes_are_handled(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    odd = tmp_path / "in" / os.fsdecode(b"caf\xe9.png")
    save_scene(tmp_path / "in" / "z.png", ("red", 1, 1))
    save_scene(tmp_path / "in" / "x.png", ("red", 1, 1)).rename(odd)
    save_video(tmp_path / "clip.mp4", [scene()]).rename(tmp_path / "in" / os.fsdecode(b"film\xe9.mp4"))
    done = boxwright(
        "predict", toy_onnx, "in", "--out", "out", "--json", "--save", "images", "json", "csv", "coco", "yolo"
    )
    assert done.code == 3  # OpenCV can't open a video of such a name
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [r["source"] for r in records] == [f"in/{name}" for name in sorted(os.listdir("in"))]
    assert [len(r.get("detections", [])) for r in records] == [1, 0, 1]
    text = boxwright("predict", toy_onnx, odd, "--save")
    assert text.code == 0
    assert text.out.endswith("caf\\udce9.png: 1 red\n")


def _start(toy_onnx: Path, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    # More lines than a pipe holds: the program is still at it when the test has read the first.
    save_video(folder / "clip.mp4", [scene(("red", 1, 1))] * 2000)
    command = [sys.executable, "-m", "boxwright", "predict", str(toy_onnx), "clip.mp4", "--json", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder)


def test_a_reader_that_goes_away_ends_the_run_quietly(toy_onnx: Path, tmp_path: Path) -> None:
    with _start(toy_onnx, tmp_path, "--save") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["frame"] == 0
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait(timeout=60) == 0
    assert "Traceback" not in errors
    assert "Broken" not in errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_leaves_whole_files(
    toy_onnx: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with _start(toy_onnx, tmp_path, "--out", "out", "--save", "images", "coco", "json") as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code
    assert errors.decode().endswith("Stopped.\n")
    content = json.loads((tmp_path / "out" / "predictions.coco.json").read_text())
    lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    capture = cv2.VideoCapture(str(tmp_path / "out" / "clip.mp4"))
    assert 49 <= len(lines) < 2000
    assert len(content["images"]) == pytest.approx(len(lines), abs=1)
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == pytest.approx(len(lines), abs=1)


def test_a_closed_stdout_does_not_matter(toy_onnx: Path, tmp_path: Path) -> None:
    save_scene(tmp_path / "a.png", ("red", 1, 1))
    command = f'"{sys.executable}" -m boxwright predict "{toy_onnx}" a.png --out out >&-'
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    picture = cv2.imdecode(np.fromfile(tmp_path / "out" / "a.jpg", np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
