"""Lightning's Trainer on a simulated Gaudi, which Lightning itself no longer knows, and the Estimator."""

import json
from pathlib import Path

import pytest
import torch
from support.hpu.fit import fit
from support.hpu.process import run_on_hpu

from boxwright.accel.trainer import Trainer
from boxwright.core.errors import MissingDependencyError, UsageError

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders
@pytest.mark.parametrize(("processes", "precision"), [("1", "32"), ("2", "bf16")])
def test_a_fit_gives_the_weights_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str, precision: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
    words = ("-m", "support.hpu.fit")
    ours = run_on_hpu(*words, tmp_path / "hpu.pt", "hpu", processes, precision, folder=tmp_path)
    assert ours.code == 0, ours.err
    found = torch.load(tmp_path / "hpu.pt", weights_only=True)
    expected = fit("cpu", 1, "32", batch=4 * int(processes))  # one process with the batch of all
    tolerance = 1e-5 if precision == "32" else 0.05
    for key in ("loss", "validated"):
        assert found[key] == pytest.approx(expected[key], rel=tolerance)
    torch.testing.assert_close(found["predicted"], expected["predicted"], rtol=tolerance, atol=tolerance)
    # The mode was asked for by device_options.
    assert any("lazy mode" in line for line in found["plan"])
    assert found["where"] == ["hpu"], "validated and predicted on a card too, also after a fit in two processes"
    assert found["metric"] == pytest.approx(found["validated"])
    assert any("in one process, on one hpu" in line for line in found["plan"]) == (processes == "2")
    for key, value in found["weights"].items():
        torch.testing.assert_close(value, expected["weights"][key], rtol=tolerance, atol=tolerance)
    steps = 8 if processes == "1" else 4
    marks = [record["mark_steps"] for record in ours.records if record["mark_steps"]]
    assert marks == [2 * steps] * int(processes)


def test_an_estimator_on_two_cards_counts_each_sample_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
    finished = run_on_hpu("-m", "support.hpu.estimate", tmp_path / "found", "hpu", folder=tmp_path)
    assert finished.code == 0, finished.err
    found = json.loads((tmp_path / "found").read_text())
    assert found["scored"]["num_samples"] == 11
    assert found["fitted"]["train_loss"] > found["scored"]["loss"]
    assert found["scored"]["loss"] == pytest.approx(found["expected"], rel=1e-5)  # of the plain model on the CPU


def test_without_the_plugin_the_trainer_says_what_is_missing() -> None:
    with pytest.raises(MissingDependencyError, match="needs habana_frameworks"):
        Trainer(device="hpu")
    with pytest.raises(UsageError, match="mean the same thing"):
        Trainer(device="hpu", accelerator="cpu")
