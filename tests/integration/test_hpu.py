"""Training on a simulated Gaudi: the CPU's results, two step marks an iteration, no read of the host, few graphs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hpu.process import Finished, run_on_cpu, run_on_hpu

from boxwright.data.synthetic import generate_scenes
from boxwright.detector.weights import read_state

STEPS = 5
# Tests that compare with the same run on the CPU stay in one process.
ONE, TWO = pytest.mark.xdist_group("one_hpu"), pytest.mark.xdist_group("two_hpus")
Train = Callable[..., tuple[Finished, Path]]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    generate_scenes(folder, images=24, seed=0, size_hw=(96, 96), classes=("circle", "square"))
    return folder


def words_of(scenes: Path, out: Path, *words: str, steps: int = STEPS, batch: int = 4) -> list[object]:
    return [
        "-m", "boxwright", "train", "--data", scenes, "--out", out, "--val", "0.25", "-b", batch, "--size", "64",
        "steps", steps, "print_interval", "1000", "eval_interval", "0", "workers=1", *words,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def on_cpu(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train on the CPU, once for each choice of words."""
    done: dict[tuple[str, ...], Path] = {}

    def train(*words: str) -> Path:
        if words not in done:
            folder = tmp_path_factory.mktemp("cpu")
            finished = run_on_cpu(*words_of(scenes, folder / "run", *words), folder=folder)
            assert finished.code == 0, finished.err
            done[words] = folder / "run"
        return done[words]

    return train


@pytest.fixture
def on_hpu(scenes: Path, tmp_path: Path) -> Train:
    def train(*words: str, **settings: Any) -> tuple[Finished, Path]:
        finished = run_on_hpu(*words_of(scenes, tmp_path / "run", "--use_hpu", *words), folder=tmp_path, **settings)
        assert finished.code == 0, finished.err
        return finished, tmp_path / "run"

    return train


def loss_of(run: Path) -> float:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float([line["total"] for line in lines if "total" in line][-1])


def assert_same_weights(a: Path, b: Path) -> None:
    ours, theirs = (read_state(run / "weights" / "last.safetensors")[0] for run in (a, b))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-5, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize(
    ("mode", "devices"),
    [
        pytest.param("eager", "1", marks=ONE),
        pytest.param("lazy", "2", marks=TWO),
        pytest.param("lazy", "1", marks=[ONE, pytest.mark.more]),
        pytest.param("eager", "2", marks=[TWO, pytest.mark.more]),
    ],
)
def test_fp32_training_equals_the_cpu(on_hpu: Train, on_cpu: Callable[..., Path], mode: str, devices: str) -> None:
    lazy = ["--use_lazy_mode"] if mode == "lazy" else []
    finished, run = on_hpu("--devices", devices, *lazy)
    reference = on_cpu("--num_processes", devices)
    assert loss_of(run) == pytest.approx(loss_of(reference), rel=1e-5)
    assert_same_weights(run, reference)
    assert len(finished.workers) == int(devices)
    for worker in finished.workers:
        assert worker["lazy"] == (mode == "lazy")
        assert worker["optimizer_steps"] == STEPS
        assert worker["averages"] == STEPS, "weights are averaged by the plugin's own operator"
        # Lazy: a mark after backward and one after the optimizer's step; the second comes when the step has ended.
        assert worker["mark_steps"] == (2 * STEPS if mode == "lazy" else 0)
        if mode == "lazy":
            assert worker["marks_at_step"] == [1 + 2 * step for step in range(STEPS)]
        # Eager: a graph of the network, which torch cuts by gradient buckets for several devices, and one of the loss.
        assert len(worker["graphs"]) == (0 if mode == "lazy" else 1 + int(devices))
        assert all(graph["step"] == 0 for graph in worker["graphs"])
        assert worker["waits_at_step"][-1] == 1, "only where the clock starts"
        # The parallel wrapper looks at its buckets once, after the first step.
        reads = worker["reads_at_step"]
        assert reads[1:] == [reads[1]] * (STEPS - 1)
        assert devices == "2" or reads[0] == reads[1]
    if devices == "2":
        assert finished.workers[0]["collectives"]["allreduce"] > STEPS


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--use_lazy_mode",), marks=ONE),
        pytest.param((), marks=[ONE, pytest.mark.more]),
        pytest.param(("--devices", "2", "compile=false"), marks=[TWO, pytest.mark.more]),
    ],
)
def test_bf16_training_stays_near_the_cpu(on_hpu: Train, on_cpu: Callable[..., Path], words: tuple[str, ...]) -> None:
    _, run = on_hpu("--autocast", *words)
    exact = loss_of(on_cpu("--num_processes", "2" if "2" in words else "1"))
    assert loss_of(run) == pytest.approx(exact, rel=0.05)
    assert loss_of(run) != pytest.approx(exact, rel=1e-6), "bf16 must round"
    assert "bf16" in (run / "plan.txt").read_text()


def test_sizes_that_come_again_need_no_new_graph(scenes: Path, tmp_path: Path) -> None:
    # Sizes change every ten steps, and the last steps have another loss.
    words = words_of(scenes, tmp_path / "run", "--use_hpu", "multiscale=true", steps=40, batch=2)
    finished = run_on_hpu(*words, folder=tmp_path)
    assert finished.code == 0, finished.err
    (worker,) = finished.workers
    sizes = [tuple(graph["images"]) for graph in worker["graphs"] if graph["images"]]
    losses = [graph for graph in worker["graphs"] if not graph["images"]]
    assert len(sizes) == len(set(sizes)), "a size was compiled twice"
    assert 2 <= len(sizes) <= 4
    assert len(sizes) <= len(losses) <= 2 * len(sizes)
    assert worker["reads_at_step"] == [worker["reads_at_step"][0]] * 40
    assert worker["waits_at_step"][-1] == 1


def test_a_run_goes_on_and_is_read_without_the_device(on_hpu: Train) -> None:
    _, run = on_hpu("--use_lazy_mode")
    again, _ = on_hpu("--use_lazy_mode", "--resume")
    assert "step 5 of 5" in again.err
    state, spec = read_state(run / "weights" / "last.safetensors")
    assert spec is not None
    assert all(value.device.type == "cpu" for value in state.values())


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"BOXWRIGHT_SIMULATED_HPU_TORCH": "2.1.0"}, "Install the torch that came with it"),
        ({"BOXWRIGHT_SIMULATED_HPUS": "0"}, "sees no Gaudi here"),
    ],
)
def test_a_plugin_that_does_not_fit_is_refused_in_a_sentence(
    scenes: Path, tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    words = words_of(scenes, tmp_path / "run", "--use_hpu")
    finished = run_on_hpu(*words, folder=tmp_path, variables=variables)
    assert finished.code == 2
    assert message in finished.err
    assert "Traceback" not in finished.err
