"""Inference on a simulated Gaudi, by the commands: the CPU's results, one graph for each of a few batch sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.fixtures import Command
from support.hpu.process import Finished, run_on_hpu
from support.networks import lively_nano
from support.scenes import NAMES, save_labelled_set

from boxwright.core.spec import Spec
from boxwright.detector.weights import save_weights

pytestmark = [pytest.mark.xdist_group("hpu_inference"), pytest.mark.usefixtures("one_torch_thread")]
SCENES = [[("red", 1, 1)], [("green", 2, 2), ("blue", 5, 5)], [], [("red", 0, 7)], [("blue", 3, 3)]]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "nano.safetensors"
    save_weights(path, lively_nano(), Spec(model="yolox_nano", names=NAMES, size_hw=(64, 64)))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_labelled_set(tmp_path_factory.mktemp("data"), SCENES)


@pytest.fixture(scope="module")
def searched(weights: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the JSON of a search on the card."""
    folder = tmp_path_factory.mktemp("searched")
    words = [
        "--data",
        data,
        "--device",
        "auto",
        "--precision",
        "fp32",
        "--runs",
        "2",
        "--max-drop",
        "1",
        "--json",
        "-q",
    ]
    done = run_on_hpu("-m", "boxwright", "optimize", weights, *words, "--out", folder / "out", folder=folder)
    assert done.code == 0, done.err
    return folder / "out", json.loads(done.out)


def boxes_of(done: Any) -> list[tuple[str, list[float]]]:
    assert done.code == 0, done.err
    records = [json.loads(line) for line in done.out.splitlines()]
    return [(box["class"], [box["score"], *box["box_xyxy"]]) for record in records for box in record["detections"]]


def assert_same_boxes(found: list[tuple[str, list[float]]], expected: list[tuple[str, list[float]]]) -> None:
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert len(expected) > 10
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=5e-2)


def graphs_of(finished: Finished) -> list[Any]:
    return [graph["images"] for record in finished.records for graph in record["graphs"]]


@pytest.mark.parametrize("device", ["auto", pytest.param("hpu", marks=pytest.mark.more)])
def test_weights_find_on_the_card_what_they_find_on_the_cpu(
    boxwright: Command, weights: Path, data: Path, tmp_path: Path, device: str
) -> None:
    words = ("predict", weights, data / "images", "--conf", "0.02", "-b", "3", "--save", "--json")
    here = boxwright(*words)
    there = run_on_hpu("-m", "boxwright", *words, "--device", device, folder=tmp_path / "there")
    assert_same_boxes(boxes_of(there), boxes_of(here))
    # Batches of 3 and 2 images: two buckets, each compiled once, and nothing that breaks a graph.
    assert sorted(shape[0] for shape in graphs_of(there)) == [2, 4]
    assert not any(record["graph_breaks"] for record in there.records)


def test_the_card_has_rows_of_its_own(searched: tuple[Path, dict[str, Any]]) -> None:
    out, values = searched
    assert [row["method"] for row in values["rows"]] == ["original", "hpu_graph_fp32"]
    for row in values["rows"]:
        assert row["status"] == "successful", row["note"]
        assert row["latency_ms"] > 0
        assert "MB on the device" in row["note"]
    assert values["rows"][1]["drop"] == pytest.approx(0, abs=1e-3)
    settings = json.loads((out / "report.json").read_text())["settings"]
    assert settings["device"] == "hpu (hpu)"


def test_its_artifact_runs_there_by_every_command(
    boxwright: Command, searched: tuple[Path, dict[str, Any]], weights: Path, data: Path, tmp_path: Path
) -> None:
    artifact = searched[0] / "artifacts" / "hpu_graph_fp32"
    words = (data / "images", "--conf", "0.02", "-b", "3", "--save", "--json")
    there = run_on_hpu("-m", "boxwright", "predict", artifact, *words, folder=tmp_path / "there")
    assert_same_boxes(boxes_of(there), boxes_of(boxwright("predict", weights, *words)))
    for verb in (("eval", artifact, "--data", data), ("benchmark", artifact, "--runs", "2", "--device", "hpu")):
        done = run_on_hpu("-m", "boxwright", *verb, "--json", folder=tmp_path / verb[0])
        assert done.code == 0, done.err
        assert json.loads(done.out)


def test_elsewhere_its_artifact_says_the_way_out(
    boxwright: Command,
    searched: tuple[Path, dict[str, Any]],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))  # of a machine that has not checked it yet
    artifact = searched[0] / "artifacts" / "hpu_graph_fp32"
    asked = boxwright("predict", artifact, data / "images", "--device", "cpu")
    assert asked.code == 2
    assert (
        "is for 'hpu'. Leave it out, or convert the weights for it: boxwright optimize WEIGHTS --device cpu"
        in asked.err
    )
    done = boxwright("predict", artifact, data / "images")
    assert done.code == 4
    assert "convert its weights for this machine: boxwright optimize WEIGHTS --device cpu" in done.err
    assert "Traceback" not in done.err
