"""Training on Ray and Spark: the same numbers as on this machine, and it survives failures."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.clusters import RayCluster
from support.runs import DieOnce, check_same, make_config

from boxwright.accel.nano import TorchNano
from boxwright.tasks.train.run import train

pytest.importorskip("ray", reason="ray is not installed")
from boxwright.launchers.ray_ import RayLauncher

RAY = pytest.mark.xdist_group("ray")
SPARK = pytest.mark.xdist_group("spark")


# Those of `test_training_afar` are the same with data and files that are not shared.
@pytest.mark.more
@RAY
def test_on_ray_a_run_goes_on_by_itself_and_equals_one_resumed_by_hand(
    ray_cluster: RayCluster, scenes: Path, tmp_path: Path, by_hand: dict[str, Any]
):
    train(make_config(scenes, tmp_path, strategy="ray", max_restarts=1), callbacks=[DieOnce(6)])

    check_same(tmp_path, by_hand)


@pytest.mark.more
@SPARK
def test_on_spark_a_run_goes_on_by_itself_and_equals_one_resumed_by_hand(
    spark_here: None, scenes: Path, tmp_path: Path, by_hand: dict[str, Any]
):
    train(make_config(scenes, tmp_path, strategy="spark", max_restarts=1), callbacks=[DieOnce(6)])

    check_same(tmp_path, by_hand)


class Fit(TorchNano):
    """A loop of a user's own."""

    def train(self, model: torch.nn.Module, batches: torch.Tensor) -> int:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ready, optimizer = self.setup(model, optimizer)
        for batch in batches[self.global_rank :: self.world_size]:
            optimizer.zero_grad()
            self.backward(ready(batch).square().mean())
            optimizer.step()
        return self.world_size


@RAY
def test_a_loop_of_ones_own_gives_the_same_weights_on_ray(ray_cluster: RayCluster):
    weights = []
    for strategy in ("subprocess", RayLauncher(cores_per_worker=1)):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        assert Fit(num_processes=2, strategy=strategy).train(model, torch.ones(6, 3, 4)) == 2
        weights.append(model.weight.detach().clone())

    assert torch.allclose(*weights, atol=1e-6, rtol=0)


@RAY
def test_a_killed_command_leaves_no_worker_and_resume_goes_on(ray_cluster: RayCluster, scenes: Path, tmp_path: Path):
    out = tmp_path / "run"
    words = ["--strategy", "ray", "--address", ray_cluster.address, "--num_processes", "2", "--out", str(out)]
    first = [
        *words, "--data", str(scenes), "--val", "0.25", "-b", "4", "--size", "96",
        "steps=400", "eval_interval=1", "print_interval=1", "workers=1", "augment=false",
    ]  # fmt: skip
    with boxwright_train(*first) as driver:
        read_until(driver, ": AP ")
        workers = [p for p in psutil.process_iter(["cmdline"]) if is_worker(p)]
        driver.kill()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert len(workers) >= 2  # each has a guard besides
    assert alive == []

    with boxwright_train(*words, "--resume") as driver:
        line = read_until(driver, "Resuming from step")
        driver.terminate()
    assert 0 < int(line.split("step ")[1].split()[0]) < 400


def boxwright_train(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "boxwright", "train", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def read_until(driver: subprocess.Popen[str], words: str) -> str:
    assert driver.stderr is not None
    lines = []
    for line in driver.stderr:
        lines.append(line)
        if words in line:
            return line
    raise AssertionError(f"It never said {words!r}: {''.join(lines)}")


def is_worker(process: psutil.Process) -> bool:
    """Whether a process is a worker of a Ray actor, and not one that a test beside this has started."""
    if "boxwright.launchers.worker" not in (process.info["cmdline"] or []):
        return False
    return any(parent.name().startswith("ray::") for parent in process.parents())


@RAY
@pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders and loggers
def test_the_trainer_gives_the_same_weights_on_ray(ray_cluster: RayCluster):
    from boxwright.accel.trainer import Trainer

    values = torch.sin(torch.arange(64, dtype=torch.float32)).reshape(16, 4)
    weights = []
    for strategy in ("subprocess", "ray"):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 1)
        rule = torch.optim.SGD(net.parameters(), lr=0.1)
        model = Trainer.compile(net, torch.nn.functional.mse_loss, rule)
        data = torch.utils.data.TensorDataset(values, values.sum(1, keepdim=True))
        trainer = Trainer(
            num_processes=2, strategy=strategy, max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
        weights.append(net.weight.detach().clone())

    assert torch.allclose(*weights, atol=1e-6, rtol=0)
    assert not torch.allclose(weights[0], torch.zeros(1))
