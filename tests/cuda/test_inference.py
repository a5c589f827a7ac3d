"""Inference on a GPU: every row of the optimiser gives the model's output, in graphs of a few batch sizes."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.fixtures import Command
from support.networks import lively_nano
from support.scenes import NAMES, save_labelled_set

from boxwright.core.errors import MissingDependencyError
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.detector.weights import save_weights
from boxwright.devices.chosen import Chosen
from boxwright.optimize.candidates import METHODS
from boxwright.runtimes.artifact import open_graph, read_artifact, write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.buckets import BucketGraph
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.device_graph import DeviceGraph, open_original_on
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.source import Source

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (make test-cuda)"),
]
SIZE_HW = (96, 128)
SPEC = Spec(model="yolox_nano", names=NAMES, size_hw=SIZE_HW)
ROWS = [name for name, method in METHODS.items() if method.device == "cuda"]
SCENES = [[("red", 1, 1)], [("green", 2, 2), ("blue", 5, 5)], [], [("red", 0, 7)], [("blue", 3, 3)]]


def images(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).integers(0, 256, (count, 3, *SIZE_HW)).astype(np.float32)


@pytest.fixture(scope="module")
def source() -> Source:
    return Source.of(lively_nano(), (images(1),))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "nano.safetensors"
    save_weights(path, lively_nano(), SPEC)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_labelled_set(tmp_path_factory.mktemp("data"), SCENES)


def convert(source: Source, choice: Choice, folder: Path) -> Path:
    samples = [(images(4),), (images(5),)]
    calibration = Calibration(samples=samples) if choice.precision is Precision.INT8 else None
    write_artifact(source, choice, folder, spec=SPEC, calibration=calibration)
    return folder


@pytest.mark.parametrize("row", ROWS)
def test_every_row_gives_the_models_output(source: Source, tmp_path: Path, row: str) -> None:
    choice = METHODS[row].choice
    assert choice is not None
    try:
        folder = convert(source, choice, tmp_path / row)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    assert read_artifact(folder).choice.device == "cuda"
    graph = open_graph(folder, trust=True)
    for count in (1, 3, 64, 65, 3, 1):
        assert distance(graph.run([images(count)]), source.run([images(count)])) < BOUNDS[choice.precision]
    assert isinstance(graph, BucketGraph)
    if isinstance(graph.inner, DeviceGraph):
        assert [shapes[0][0] for shapes in graph.inner.captured] == [1, 4, 64]
        assert graph.device_bytes > 0
    graph.close()


def test_fp32_is_exact_and_bytes_are_floats(source: Source, tmp_path: Path) -> None:
    graph = open_graph(convert(source, Choice(runtime="graph", device="cuda"), tmp_path / "a"))
    found = graph.run([images(3)])
    assert distance(found, source.run([images(3)])) < 1e-4  # TF32 would be some 1e-3 away
    as_bytes = np.ascontiguousarray(images(3).astype(np.uint8).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for a, b in zip(graph.run([as_bytes]), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


def test_a_replayed_graph_leaves_earlier_results_alone(source: Source, tmp_path: Path) -> None:
    graph = open_graph(convert(source, Choice(runtime="graph", device="cuda"), tmp_path / "a"))
    first = [graph.run([images(count)]) for count in (1, 2, 4)]
    kept = [[a.copy() for a in outputs] for outputs in first]
    for count in (4, 2, 1):
        graph.run([images(count) / 2])
    for outputs, copies in zip(first, kept, strict=True):
        for a, b in zip(outputs, copies, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("hint", ["latency", "throughput"])
def test_threads_share_the_graphs(source: Source, tmp_path: Path, hint: str) -> None:
    folder = convert(source, Choice(runtime="graph", device="cuda"), tmp_path / "a")
    graph = open_graph(folder, Tuning(hint=hint, streams=4))  # type: ignore[arg-type]
    sizes = [1, 3, 8, 2] * 10
    with ThreadPoolExecutor(4) as pool:  # they capture while others run
        results = list(pool.map(lambda n: graph.run([images(n)]), sizes))
    for count, found in zip(sizes, results, strict=True):
        assert distance(found, source.run([images(count)])) < 1e-4


def test_the_original_runs_there_operator_by_operator(source: Source) -> None:
    graph = open_original_on(source, Chosen("cuda"))
    assert distance(graph.run([images(2)]), source.run([images(2)])) < 1e-4
    assert not graph.captured


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_model_runs_on_the_second_gpu(source: Source, tmp_path: Path) -> None:
    folder = convert(source, Choice(runtime="graph", device="cuda"), tmp_path / "a")
    graph = open_graph(folder, Tuning(number=1))
    with ThreadPoolExecutor(2) as pool:  # whose current GPU is the first
        for found in pool.map(lambda _: graph.run([images(2)]), range(4)):
            assert distance(found, source.run([images(2)])) < 1e-4


@pytest.mark.parametrize("words", [("-b", "1"), ("-b", "3"), ("-b", "2", "--workers", "2"), ("--hint", "throughput")])
def test_weights_find_what_they_find_on_the_cpu(
    boxwright: Command, weights: Path, data: Path, words: tuple[str, ...]
) -> None:
    command = ("predict", weights, data / "images", "--conf", "0.02", "--json", "--save")
    here, there = boxwright(*command), boxwright(*command, "--device", "cuda", *words)
    assert (here.code, there.code) == (0, 0), there.err
    for ours, theirs in zip(there.out.splitlines(), here.out.splitlines(), strict=True):
        found, expected = json.loads(ours)["detections"], json.loads(theirs)["detections"]
        assert [box["class"] for box in found] == [box["class"] for box in expected]
        for a, b in zip(found, expected, strict=True):
            assert [a["score"], *a["box_xyxy"]] == pytest.approx([b["score"], *b["box_xyxy"]], abs=2e-2)


def test_the_score_is_the_cpu_s(boxwright: Command, weights: Path, data: Path) -> None:
    scores = [
        json.loads(boxwright("eval", weights, "--data", data, "--json", "--device", device).out)["AP"]
        for device in ("cpu", "cuda", "auto")
    ]
    assert scores[1:] == pytest.approx([scores[0]] * 2, abs=1e-3)


def test_a_search_has_the_rows_of_a_gpu(boxwright: Command, weights: Path, data: Path, tmp_path: Path) -> None:
    words = ("--data", data, "--device", "cuda", "--runs", "10", "--max-drop", "1", "--json", "-q")
    done = boxwright("optimize", weights, *words, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    rows = {row["method"]: row for row in json.loads(done.out)["rows"]}
    assert list(rows) == ["original", *ROWS]
    for name, row in rows.items():
        assert row["status"] in ("successful", "lack dependency", "over budget", "early stopped"), (name, row["note"])
        if row["status"] == "lack dependency":
            assert "pip install" in row["note"], name
    assert {"original", "cuda_graph_fp32", "cuda_graph_fp16", "cuda_graph_bf16"} <= {
        name for name, row in rows.items() if row["latency_ms"]
    }
    benchmarked = boxwright("benchmark", tmp_path / "out" / "best", weights, "--device", "auto", "--json")
    assert benchmarked.code == 0, benchmarked.err
