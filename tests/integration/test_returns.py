"""What a run in several processes leaves in the caller's objects is what one process leaves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.decorator import nano
from boxwright.accel.nano import TorchNano
from boxwright.accel.trainer import Trainer

PROCESSES = [1, 2]


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def make_loader(batch: int) -> DataLoader[Any]:
    x = torch.sin(torch.arange(64, dtype=torch.float32)).reshape(16, 4)
    return DataLoader(TensorDataset(x, 0.1 * x.sum(1, keepdim=True)), batch_size=batch)


class Bag:
    """A plain object, as a user's own framework has them."""

    def __init__(self) -> None:
        self.net = make_net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.rounds = 0
        self.parts = {"teacher": [nn.Linear(2, 2)]}


class Everything(TorchNano):
    """Trains what a plain object holds, and changes everything that can be changed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.history: list[float] = []
        self.best = 0.0

    def train(self, bag: Bag, grown: nn.Module, batch: int) -> Any:
        model, optimizer, loader = self.setup(bag.net, bag.optimizer, make_loader(batch))
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            self.backward(loss)
            optimizer.step()
            self.history.append(float(self.all_reduce(loss.detach())))
        bag.scheduler.step()
        bag.rounds += 1
        self.best = self.history[-1]
        self.unsendable = (step for step in range(3))
        with torch.no_grad():
            bag.parts["teacher"][0].weight.fill_(7.0)
        grown.head = nn.Linear(8, 2)
        grown.classes = ["a", "b"]
        nn.init.ones_(grown.head.weight)
        grown[0].requires_grad_(False)
        grown.eval()
        return {"model": model, "again": [bag.net], "optimizer": optimizer, "bag": bag}


def run_everything(processes: int) -> dict[str, Any]:
    bag, grown, runner = Bag(), make_net(), Everything(num_processes=processes)
    first, keep = grown[0].weight, runner.history
    result = runner.train(bag, grown, 16 // processes)
    assert grown[0].weight is first
    assert runner.history is keep
    assert result["bag"] is bag
    assert result["again"] == [bag.net]
    assert result["optimizer"] is bag.optimizer
    assert bag.optimizer.param_groups[0]["params"] == list(bag.net.parameters())
    assert bag.scheduler.optimizer is bag.optimizer
    assert grown.head.weight.eq(1).all()
    assert result["model"](torch.ones(1, 4)).shape == (1, 1)
    return {
        "net": bag.net.state_dict(),
        "teacher": bag.parts["teacher"][0].weight,
        "moments": [bag.optimizer.state[p]["exp_avg"] for p in bag.net.parameters()],
        "steps": [float(bag.optimizer.state[p]["step"]) for p in bag.net.parameters()],
        "rate": (bag.optimizer.param_groups[0]["lr"], bag.scheduler.last_epoch),
        "rounds": (bag.rounds, len(runner.history), grown.classes, runner.best == runner.history[-1]),
        "kinds": (grown.training, [p.requires_grad for p in grown.parameters()], len(list(grown.children()))),
    }  # fmt: skip


def test_plain_objects_grown_models_optimizers_and_results_come_back_as_from_one_process() -> None:
    alone, together = run_everything(1), run_everything(2)
    for name in ("net", "moments", "teacher"):
        torch.testing.assert_close(together[name], alone[name], rtol=0, atol=1e-6)
    for name in ("steps", "rate", "rounds", "kinds"):
        assert together[name] == alone[name], name


class Tagged(torch.optim.LBFGS):
    """An optimizer with an attribute of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1, max_iter=2)
        self.tag = "mine"
        self.calls = 0


def closures(model: nn.Module, optimizer: Tagged, loader: DataLoader[Any]) -> tuple[str, int]:
    for x, y in loader:

        def compute(x: Any = x, y: Any = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(compute)
        optimizer.calls += 1
    return optimizer.tag, optimizer.calls


def test_optimizers_keep_their_attributes_both_ways() -> None:
    found = {}
    for processes in PROCESSES:
        net = make_net()
        optimizer = Tagged(net.parameters())
        assert nano(num_processes=processes)(closures)(net, optimizer, make_loader(16 // processes)) == ("mine", 1)
        assert (optimizer.tag, optimizer.calls) == ("mine", 1)
        closures(net, optimizer, make_loader(16))
        found[processes] = (net.state_dict(), optimizer.state[net[0].weight]["func_evals"])
    for name, value in found[1][0].items():
        torch.testing.assert_close(found[2][0][name], value, rtol=0, atol=1e-5)
    assert found[1][1] == found[2][1]


QUIET: dict[str, Any] = {
    "enable_progress_bar": False, "enable_model_summary": False, "logger": False, "max_epochs": 2,
}  # fmt: skip


class Lit(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.epochs_seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.epochs_seen += 1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)}


class Counting(Callback):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs.append(trainer.current_epoch)


def fit_twice(processes: int, folder: Path) -> dict[str, Any]:
    counting, stopping = Counting(), EarlyStopping("loss", patience=50, check_on_train_epoch_end=True)
    trainer = Trainer(num_processes=processes, callbacks=[counting, stopping], enable_checkpointing=False, **QUIET)
    model, loader = Lit(), make_loader(16 // processes)
    trainer.fit(model, loader)
    trainer.save_checkpoint(folder / f"{processes}.ckpt")
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, loader)
    return {
        "saved": torch.load(folder / f"{processes}.ckpt", weights_only=False),
        "counts": (trainer.current_epoch, trainer.global_step, model.epochs_seen, counting.epochs, trainer.should_stop),
        "best": float(stopping.best_score),
        "logged": {k: float(v) for k, v in trainer.logged_metrics.items()},
        "net": model.state_dict(),
    }


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_saves_and_goes_on_after_a_fit_in_two_processes_as_after_one(tmp_path: Path) -> None:
    alone, together = fit_twice(1, tmp_path), fit_twice(2, tmp_path)
    assert together["counts"] == alone["counts"] == (3, 3, 3, [0, 1, 2], False)
    assert together["best"] == pytest.approx(alone["best"], rel=1e-4)
    assert together["logged"].keys() == alone["logged"].keys()
    torch.testing.assert_close(together["net"], alone["net"], rtol=0, atol=1e-5)
    one, two = alone["saved"], together["saved"]
    assert two.keys() == one.keys()
    for name in ("epoch", "global_step", "lr_schedulers", "loops"):
        assert two[name] == one[name], name
    assert two["callbacks"].keys() == one["callbacks"].keys()
    for mine, theirs in zip(two["optimizer_states"], one["optimizer_states"], strict=True):
        torch.testing.assert_close(mine["state"], theirs["state"], rtol=0, atol=1e-5)
        assert mine["param_groups"] == theirs["param_groups"]


@pytest.mark.more
@pytest.mark.filterwarnings("ignore")
def test_early_stopping_in_two_processes_is_known_afterwards() -> None:
    stopping = EarlyStopping("loss", stopping_threshold=1e9, check_on_train_epoch_end=True)
    trainer = Trainer(num_processes=2, callbacks=[stopping], enable_checkpointing=False, **(QUIET | {"max_epochs": 9}))
    trainer.fit(Lit(), make_loader(4))
    assert trainer.should_stop
    assert (trainer.current_epoch, stopping.stopped_epoch) == (1, 0)
