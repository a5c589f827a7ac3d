"""`boxwright optimize` and `benchmark`, from the words of the command line to the artifact that predicts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fixtures import Command
from support.networks import lively_nano
from support.scenes import NAMES, save_labelled_set, scene

from boxwright.core.spec import Spec
from boxwright.detector.weights import save_weights
from boxwright.optimize.report import Report, Row, Settings
from boxwright.tasks.optimize import OptimizeConfig, make_case
from boxwright.tasks.predict.predictor import Predictor

# What the module's tests share is made once.
pytestmark = [pytest.mark.xdist_group("cli_optimize"), pytest.mark.usefixtures("one_torch_thread")]
SCENES = [[("red", 1, 1), ("blue", 5, 5)], [("green", 2, 4)], [("blue", 0, 0)], [("red", 6, 2)], [], [("green", 3, 3)]]
FIELDS = ["method", "status", "latency_ms", "p95_ms", "accuracy", "drop", "peak_mb", "size_mb", "note"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "nano.safetensors"
    save_weights(path, lively_nano(), Spec(model="yolox_nano", names=NAMES, size_hw=(64, 64)))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_labelled_set(tmp_path_factory.mktemp("data"), SCENES)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def searched(weights: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the JSON of one search over two methods."""
    out = tmp_path_factory.mktemp("out")
    words = [
        "optimize", weights, "--data", data, "--val", "0.5", "-b", "2", "--includes", "fp32,onnxruntime_fp32",
        "--runs", "4", "--threads", "1", "--out", out, "--json", "-q",
    ]  # fmt: skip
    command = [sys.executable, "-m", "boxwright", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


def test_json_has_the_rows_and_the_best(searched: tuple[Path, dict[str, Any]]) -> None:
    _, values = searched
    assert list(values) == ["rows", "best"]
    assert [row["method"] for row in values["rows"]] == ["original", "fp32", "onnxruntime_fp32"]
    for row in values["rows"]:
        assert list(row) == FIELDS
        assert row["status"] == "successful"
        assert row["drop"] == pytest.approx(0, abs=1e-3)
    assert values["best"] in ("original", "fp32", "onnxruntime_fp32")


def test_what_quantisers_saw_is_told_where_there_are_any(weights: Path, data: Path) -> None:
    words: dict[str, Any] = {"model": weights, "data": data, "val": 0.5}
    _, remarks = make_case(OptimizeConfig(**words, includes=("openvino_int8",)))
    assert "quantisers calibrated on 1 training images" in remarks
    _, remarks = make_case(OptimizeConfig(**words, includes=("openvino_fp32",)))
    assert not any("calibrated" in remark for remark in remarks)


def test_the_folder_holds_report_and_best_artifact(searched: tuple[Path, dict[str, Any]]) -> None:
    out, values = searched
    report = Report.read(out / "report.json")
    assert report.settings.batch == 2
    assert report.settings.max_drop == 0.005
    assert not any("calibrated" in remark for remark in report.settings.remarks)  # nothing was quantised
    assert "<svg" in (out / "report.html").read_text()
    measured = json.loads((out / "artifacts" / "onnxruntime_fp32" / "artifact.json").read_text())["measured"]
    assert measured["accuracy"] == values["rows"][2]["accuracy"]
    with Predictor.load(out / "best") as predictor:
        assert predictor.names == NAMES
        assert predictor.session(np.zeros((3, 3, 64, 64), np.float32)).shape == (3, 84, 8)


def test_an_artifact_that_fails_its_check_gives_way_to_the_next(
    searched: tuple[Path, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    out, _ = searched
    broken = out / "artifacts" / "onnxruntime_fp32" / "model.onnx"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-1])
    try:
        with Predictor.load(out / "artifacts" / "onnxruntime_fp32") as predictor:
            predictor(scene(("red", 1, 1)))
        assert "has changed since it was written" in caplog.text
        assert "fp32' is used instead" in caplog.text
    finally:
        broken.write_bytes(whole)


def test_benchmark_times_artifacts_and_files_side_by_side(
    boxwright: Command, searched: tuple[Path, dict[str, Any]], weights: Path, tmp_path: Path
) -> None:
    out, _ = searched
    artifact, damaged = out / "artifacts" / "onnxruntime_fp32", tmp_path / "damaged"
    shutil.copytree(artifact, damaged)
    (damaged / "model.onnx").write_bytes(b"")
    done = boxwright("benchmark", damaged, weights, artifact, "-b", "3", "--runs", "3", "--threads", "1", "--json")
    assert done.code == 4, done.err
    values = json.loads(done.out)
    assert [row["model"] for row in values["rows"]] == [str(damaged), str(weights), str(artifact)]
    assert "has changed since it was written" in values["rows"][0]["note"]
    assert values["rows"][1]["ratio"] == 1.0
    assert (values["batch"], values["threads"]) == (3, 1)


def _fake_search(rows: tuple[Row, ...]) -> Callable[..., Report]:
    def run(case: Any, folder: Path, config: Any, *, progress: Any, remarks: tuple[str, ...]) -> Report:
        settings = Settings(
            machine="m", threads=1, batch=case.batch, metric="AP", max_drop=config.max_drop, remarks=remarks
        )
        return Report(rows=rows, settings=settings)

    return run


def test_nothing_inside_the_budget_ends_with_code_6(
    boxwright: Command, weights: Path, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    over = Row(
        method="openvino_int8",
        status="over budget",
        latency_ms=3.0,
        accuracy=0.2,
        drop=0.1,
        drop_high=0.12,
        drop_low=0.08,
    )
    rows = (Row(method="original", status="successful", latency_ms=9.0, accuracy=0.3, drop=0.0), over)
    monkeypatch.setattr("boxwright.tasks.optimize.run_search", _fake_search(rows))
    done = boxwright("optimize", weights, "--data", data, "--json", "--out", tmp_path / "out")
    assert done.code == 6
    assert json.loads(done.out)["best"] is None
    assert "max_drop=0.005. Nearest: openvino_int8, drop 0.1000" in done.err
    assert not (tmp_path / "out" / "best").exists()


def test_the_report_of_another_search_is_not_replaced(
    boxwright: Command, weights: Path, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    over = Row(method="fp32", status="over budget", latency_ms=3.0, accuracy=0.2, drop=0.1)
    rows = (Row(method="original", status="successful", latency_ms=9.0, accuracy=0.3, drop=0.0), over)
    monkeypatch.setattr("boxwright.tasks.optimize.run_search", _fake_search(rows))
    words = ["optimize", weights, "--data", data, "--out", tmp_path / "o"]
    assert boxwright(*words).code == 6
    (tmp_path / "o" / "report.json").write_text("{}")
    assert boxwright(*words).code == 6, "the same search continues"
    done = boxwright(*words, "-b", "4")
    assert done.code == 2
    assert "holds the report of a search with another model" in done.err


def test_the_ancestors_spelling_works_and_scored_images_that_calibrate_are_named(
    boxwright: Command, weights: Path, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = (Row(method="original", status="successful", latency_ms=9.0, accuracy=0.3, drop=0.0),)
    monkeypatch.setattr("boxwright.tasks.optimize.run_search", _fake_search(rows))
    done = boxwright(
        "inference_demo", "-n", "yolox_nano", "-b", "4", "-c", weights, "--data", data, "--out", tmp_path / "o"
    )
    assert done.code == 0, done.err
    assert "batch 4" in done.out
    assert "of the scored images, because there are no others" in done.out
    assert "calibrated on images that are scored too" in done.err
    assert "best: original in" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--includes", "openvino_int9"], "Did you mean 'openvino_int8'"),
        (["--limit", "3"], "limit=3 needs a labelled set"),
        (["--calibration", "nowhere"], "nowhere"),
        (["--output-form", "raw"], "unrecognized arguments: --output-form raw"),
        (["--out", "a_file"], "'a_file' is not a folder"),
        (["--max-drop", "0.1"], "--max-drop 0.1 needs a labelled set"),
        (["--confidence", "0.9"], "--confidence 0.9 needs a labelled set"),
    ],
)
def test_words_that_make_no_sense_are_refused(
    boxwright: Command, weights: Path, words: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a_file").touch()
    done = boxwright("optimize", weights, *words)
    assert done.code in (2, 3)
    assert message in done.err
    assert not (tmp_path / "runs").exists()


def test_weights_of_another_model_than_the_one_named_are_refused(
    boxwright: Command, weights: Path, tmp_path: Path
) -> None:
    done = boxwright("inference_demo", "-n", "yolox-s", "-c", weights)
    assert done.code == 2
    assert "holds yolox_nano, but yolox_s was asked for" in done.err
    assert not (tmp_path / "runs").exists()


def test_converted_models_cannot_be_converted_again(boxwright: Command, toy_onnx: Path) -> None:
    done = boxwright("optimize", toy_onnx, "--out", "out")
    assert done.code == 2
    assert "boxwright benchmark" in done.err


def test_a_search_that_is_interrupted_leaves_no_process_and_no_temporary_file(
    weights: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    words = ["optimize", weights, "--data", data, "--includes", "fp32", "--threads", "1", "--out", tmp_path / "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "boxwright", *map(str, words)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while not list((tmp_path / "tmp").glob("boxwright-launch-*/0/start.json")) or not children.read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = children.read_text().split()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert list((tmp_path / "tmp").iterdir()) == []
