"""The Estimator in two workers: what its users asked for, and the same numbers as a loop written by hand."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.clusters import further
from support.estimation import (
    SAMPLES,
    Diary,
    KillOnce,
    assert_same_weights,
    make_estimator,
    make_loader,
    make_model,
    make_set,
    train_plainly,
)
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from boxwright.accel.estimator import Callback, Estimator, MainCallback, ModelCheckpoint, Run, Sharded
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.launchers.base import WorkerFailed

TWO: dict[str, Any] = {"workers_per_node": 2}


def halve_rate(optimizer: Any, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


@pytest.mark.parametrize("backend", ["subprocess", *further("spawn")])
def test_two_workers_reach_the_weights_of_a_plain_loop_with_the_same_batch(backend: str) -> None:
    estimator = make_estimator(
        **TWO, backend=backend, scheduler_creator=halve_rate, config={"samples": 20}, metrics=[nn.functional.l1_loss]
    )
    stats = estimator.fit(make_loader, epochs=2, batch_size=4, validation_data=make_loader)
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, 20, halve_rate))
    assert [(s["epoch"], s["lr"], s["num_samples"], s["val_num_samples"]) for s in stats] == [
        (1, 0.1, 20, 20),
        (2, 0.05, 20, 20),
    ]
    x, y = make_set(20).tensors
    outputs = estimator.get_model()(x)
    assert stats[-1]["val_loss"] == pytest.approx(nn.functional.mse_loss(outputs, y).item(), rel=1e-5)
    assert stats[-1]["val_l1_loss"] == pytest.approx(nn.functional.l1_loss(outputs, y).item(), rel=1e-5)


def test_a_loader_of_the_callers_is_cut_so_that_its_batch_is_everyones() -> None:
    estimator = make_estimator(**TWO)
    loader = DataLoader(make_set(20), batch_size=4)
    estimator.fit(loader, epochs=1)
    estimator.fit(loader, epochs=1)
    assert estimator.epoch == 2
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, 20))


# The three requests.


def to_metres(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch[0] / 100, batch[1]


def load_centimetres(config: dict[str, Any], batch_size: int | None) -> DataLoader[Any]:
    x, y = make_set(20).tensors
    return DataLoader(list(zip(100 * x, y, strict=True)), batch_size=batch_size)


def test_batches_can_be_preprocessed_between_loader_and_forward() -> None:
    estimator = make_estimator(**TWO, preprocess=to_metres)
    estimator.fit(load_centimetres, epochs=2, batch_size=4)
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, 20), bound=1e-5)
    outputs = estimator.predict(load_centimetres, batch_size=4)
    expected = estimator.get_model()(make_set(20).tensors[0]).detach().numpy()
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


class OwnLoss(nn.Module):
    """Returns its losses in training, outputs otherwise, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_model({})

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        outputs = self.net(x)
        if y is None:
            return outputs
        half = nn.functional.mse_loss(outputs, y) / 2
        return {"first": half, "second": half} if self.training else {"total_loss": 2 * half, "outputs": outputs}


def step_own_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
    losses = model(*batch)
    outputs = losses.pop("outputs", None)
    return losses, outputs, batch[1]


@pytest.mark.parametrize(("workers", "step"), [(2, None), (1, step_own_loss), *further((2, step_own_loss))])
def test_a_model_that_owns_its_loss_needs_no_loss_in_fit_and_in_evaluate(workers: int, step: Any) -> None:
    estimator = make_estimator(
        workers_per_node=workers, model=lambda config: OwnLoss(), loss=None, step=step, config={"samples": 20}
    )
    stats = estimator.fit(make_loader, epochs=2, batch_size=4)
    plain = train_plainly(2, 4, 20)
    assert_same_weights(estimator.get_state_dict(), {f"net.{name}": value for name, value in plain.items()})
    assert stats[-1]["train_loss"] == pytest.approx(2 * stats[-1]["train_first"])
    scored = estimator.evaluate(make_loader, batch_size=3)
    x, y = make_set(20).tensors
    model = make_model({})
    model.load_state_dict(plain)
    assert scored["loss"] == pytest.approx(nn.functional.mse_loss(model(x), y).item(), rel=1e-4)
    assert scored["num_samples"] == 20


class Spread:
    """The standard deviation of the outputs: no mean of batches gives it."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.values += outputs.flatten().tolist()

    def state(self) -> list[float]:
        return self.values

    def merge(self, state: list[float]) -> None:
        self.values = self.values + state

    def compute(self) -> dict[str, float]:
        return {"spread": float(np.std(self.values)), "seen": len(self.values)}


@pytest.mark.parametrize("samples", [1, 9, *further(SAMPLES)])
def test_metrics_are_of_the_whole_set_and_count_each_sample_once(samples: int) -> None:
    from torchmetrics import MeanSquaredError
    from torchmetrics.regression import PearsonCorrCoef

    metrics = {
        "outputs": Spread(),
        "mse": MeanSquaredError(),
        "correlation": PearsonCorrCoef(),
        "mean": nn.functional.l1_loss,
    }
    if samples == 1:
        del metrics["correlation"]  # it needs two samples
    numbers = [
        make_estimator(workers_per_node=workers, metrics=metrics, config={"samples": samples}).evaluate(
            make_loader, batch_size=4
        )
        for workers in (1, 2)
    ]
    assert numbers[0]["num_samples"] == numbers[0]["outputs_seen"] == samples
    assert numbers[0].keys() == numbers[1].keys()
    for name, value in numbers[0].items():
        exact = name in ("num_samples", "outputs_seen", "loss", "mean")
        assert numbers[1][name] == (value if exact else pytest.approx(value, rel=1e-6)), name
    x, y = make_set(samples).tensors
    outputs = make_model({})(x).detach()
    assert numbers[1]["outputs_spread"] == pytest.approx(float(outputs.numpy().std()), rel=1e-5)
    assert numbers[1]["mse"] == pytest.approx(nn.functional.mse_loss(outputs, y).item(), rel=1e-5)


# The problems.


class ToLogger:
    """A writer as YOLOX puts it in place of stdout: it can write, and nothing else."""

    def write(self, text: str) -> None:
        if text.strip():
            logging.getLogger("mine").info("caught: %s", text.rstrip())


def talk(batch: Any) -> Any:
    print("plain line")
    logging.getLogger("mine").info("logged line")
    stdout, sys.stdout = sys.stdout, ToLogger()  # type: ignore[assignment]
    print("redirected line")
    sys.stdout = stdout
    return batch


def test_every_line_of_a_worker_reaches_the_driver_with_its_rank(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("mine")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        make_estimator(**TWO, preprocess=talk, config={"samples": 2}).evaluate(make_loader, batch_size=1)
        out, err = capsys.readouterr()
        seen: list[str] = []
        monkeypatch.setattr(ToLogger, "write", lambda self, text: seen.append(text))
        monkeypatch.setattr(sys, "stdout", ToLogger())
        make_estimator(**TWO, preprocess=talk, config={"samples": 2}).evaluate(make_loader, batch_size=1)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    for rank in (0, 1):
        assert f"[rank {rank}] plain line\n" in out
        assert f"[rank {rank}] INFO logged line\n" in err
        assert f"[rank {rank}] INFO caught: redirected line\n" in err
        assert f"[rank {rank}] plain line\n" in "".join(seen), "the driver's own redirected stdout"


class Pairs(BatchSampler):
    def __init__(self, count: int) -> None:
        super().__init__(SequentialSampler(range(count)), 2, drop_last=False)


def load_pairs(config: dict[str, Any], batch_size: int | None) -> DataLoader[Any]:
    assert batch_size is None
    return DataLoader(make_set(10), batch_sampler=Pairs(10))


@pytest.mark.parametrize("swapped", [False, *further(True)])
def test_a_loader_with_a_batch_sampler_and_no_batch_size_works(swapped: bool) -> None:
    estimator = make_estimator(**TWO)
    live = DataLoader(make_set(10), batch_sampler=BatchSampler(SequentialSampler(range(10)), 2, drop_last=False))
    assert live.batch_size is None
    fitted, scored = (live, load_pairs) if swapped else (load_pairs, live)
    assert estimator.fit(fitted, epochs=1)[0]["num_samples"] == 12, "5 batches for 2 workers: one comes again"
    assert estimator.evaluate(scored)["num_samples"] == 10
    assert estimator.predict(live).shape == (10, 1)


def test_all_cores_are_used_unless_told_otherwise() -> None:
    cpu = read_cpu()
    for workers in range(1, min(len(cpu.cores), 4) + 1):
        plan = make_estimator(workers_per_node=workers).plan
        used = [one for worker in plan.workers for one in worker.cores]
        assert sorted(used) == sorted(cpu.allowed)
        if cpu.quota is None:
            assert sum(worker.threads for worker in plan.workers) == len(cpu.cores)


# Predictions.


class Both(NamedTuple):
    value: Tensor
    sign: Tensor


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_model({})

    def forward(self, x: Tensor) -> Both:
        value = self.net(x)
        return Both(value, value.sign().long())


@pytest.mark.parametrize("data", [make_loader, DataLoader(make_set(), batch_size=3)], ids=["creator", "loader"])
def test_predictions_come_in_the_order_of_the_data_with_several_outputs(data: Any) -> None:
    estimator = make_estimator(**TWO, model=lambda config: TwoHeads())
    outputs = estimator.predict(data, batch_size=3 if callable(data) else None)
    expected = make_model({})(make_set().tensors[0]).detach()
    np.testing.assert_allclose(outputs.value, expected.numpy(), atol=1e-6)
    assert outputs.sign.dtype == np.int64
    assert (outputs.sign == expected.sign().numpy()).all()


def own_part(config: dict[str, Any], batch_size: int | None) -> Sharded:
    rank = int(os.environ.get("RANK", "0"))
    x, y = make_set(7).tensors
    part = slice(0, 5) if rank == 0 else slice(5, 7)
    return Sharded(DataLoader(list(zip(x[part], y[part], strict=True)), batch_size=2))


def test_a_creator_may_split_the_data_itself_even_unevenly() -> None:
    estimator = make_estimator(**TWO)
    assert estimator.evaluate(own_part)["num_samples"] == 7
    stats = estimator.fit(own_part, epochs=1)
    assert stats[0]["num_samples"] == 4, "one step of 2 + 2: after it the second worker has no batch left"


def split_at_random(config: dict[str, Any], batch_size: int | None) -> DataLoader[Any]:
    _, held_out = torch.utils.data.random_split(make_set(), [10, SAMPLES - 10])
    return DataLoader(held_out, batch_size=batch_size)


def test_a_creator_that_splits_at_random_makes_the_same_split_in_every_worker_and_call() -> None:
    estimator = make_estimator(**TWO, metrics=[Spread()])
    stats = estimator.fit(make_loader, batch_size=4, validation_data=split_at_random, validation_batch_size=5)
    scored = estimator.evaluate(split_at_random, batch_size=5)
    assert scored["Spread_seen"] == SAMPLES - 10
    assert {f"val_{name}": value for name, value in scored.items()}.items() <= stats[0].items()


# Callbacks.


def test_callbacks_are_called_around_run_epoch_and_iteration_in_every_worker(tmp_path: Path) -> None:
    make_estimator(**TWO, config={"samples": 8}).fit(make_loader, epochs=2, batch_size=4, callbacks=[Diary(tmp_path)])
    epochs = [
        [f"before_epoch {e} {2 * (e - 1)}"]
        + [
            line
            for i in (2 * e - 2, 2 * e - 1)
            for line in (f"before_iteration {e} {i}", f"after_iteration {e} {i + 1}")
        ]
        + [f"after_epoch {e} {2 * e}"]
        for e in (1, 2)
    ]
    for rank in (0, 1):
        lines = (tmp_path / f"{rank}.txt").read_text().splitlines()
        assert lines == ["before_run 0 0", *epochs[0], *epochs[1], "after_run 2 4"]


class StopSecond(Callback):
    def after_epoch(self, run: Run) -> None:
        if run.nano.global_rank == 1 and run.epoch == 2:
            run.stop()


class SpareHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_model({})
        self.spare = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        return outputs


def test_any_worker_may_stop_the_training_also_of_a_model_that_leaves_parameters_out() -> None:
    estimator = make_estimator(**TWO, model=lambda config: SpareHead(), find_unused_parameters=True)
    assert len(estimator.fit(make_loader, epochs=5, batch_size=4, callbacks=[StopSecond()])) == 2
    assert estimator.epoch == 2


# Faults.


@pytest.mark.parametrize("epoch", [3, *further(1)])
def test_a_killed_worker_is_survived_with_the_result_of_a_run_resumed_by_hand(
    tmp_path: Path, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {
        **TWO,
        "config": {"samples": 20, "shuffle": True, "norm": True},
        "scheduler_creator": halve_rate,
        "model_dir": tmp_path / "model",
    }
    fit: dict[str, Any] = {"batch_size": 4, "validation_data": make_loader}
    # Something older lies in the folder: it must not be taken up.
    older = settings | {"config": {"samples": 8, "norm": True}, "workers_per_node": 1}
    make_estimator(**older).fit(make_loader, epochs=1, batch_size=4)

    killed = make_estimator(**settings)
    stats = killed.fit(make_loader, epochs=4, callbacks=[KillOnce(tmp_path / "flag", epoch)], **fit)
    assert (tmp_path / "flag").exists()
    assert "was killed by signal 9" in caplog.text

    by_hand = make_estimator(**settings | {"model_dir": tmp_path / "hand"})
    first = by_hand.fit(make_loader, epochs=2, **fit)
    resumed = make_estimator(**settings | {"model_dir": tmp_path / "hand"})
    assert resumed.load_checkpoint() == 2
    second = resumed.fit(make_loader, epochs=2, **fit)
    assert_same_weights(killed.get_state_dict(), resumed.get_state_dict(), bound=0)
    assert stats == [*first, *second]


class KillAlways(Callback):
    def __init__(self, file: Path) -> None:
        self._file = file

    def before_run(self, run: Run) -> None:
        if run.nano.is_global_zero:
            with self._file.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)


def test_retries_are_bounded(tmp_path: Path) -> None:
    estimator = make_estimator(**TWO, max_restarts=1)
    with pytest.raises(WorkerFailed, match="Worker 0 was killed by signal 9"):
        estimator.fit(make_loader, epochs=1, batch_size=4, callbacks=[KillAlways(tmp_path / "starts")])
    assert (tmp_path / "starts").read_text() == "xx"


def test_an_exception_of_the_users_is_shown_once_whole_with_its_rank_and_not_retried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(batch: Any) -> Any:
        if os.environ["RANK"] == "1":
            with (tmp_path / "calls").open("a") as file:
                file.write("x")
            raise LookupError("no such colour")
        return batch

    with pytest.raises(WorkerFailed) as caught:
        make_estimator(**TWO, preprocess=fail).fit(make_loader, epochs=1, batch_size=4)
    assert caught.value.rank == 1
    assert str(caught.value).startswith("Worker 1 failed: LookupError: no such colour")
    assert 'raise LookupError("no such colour")' in str(caught.value), "the user's own line"
    assert isinstance(caught.value.__cause__, LookupError)
    assert (tmp_path / "calls").read_text() == "x"
    assert "no such colour" not in "".join(capsys.readouterr())


def test_a_model_that_leaves_parameters_out_is_told_what_to_do() -> None:
    with pytest.raises(WorkerFailed, match=r"'spare.weight'.*find_unused_parameters=True"):
        make_estimator(**TWO, model=lambda config: SpareHead()).fit(make_loader, epochs=1, batch_size=4)


class Halved(MainCallback):
    """Half the loss at twice the rate is the same training; each worker must call every hook."""

    def on_iter_forward(self, run: Run) -> None:
        x, y = run.batch
        run.output = run.model(x)
        run.loss = run.criterion(run.output, y) / 2

    def on_iter_backward(self, run: Run) -> None:
        assert run.loss is not None
        run.optimizer.zero_grad()
        run.loss.backward()
        run.optimizer.step()

    def after_train_iter(self, run: Run) -> None:
        if run.rank == 1 and run.global_step == 5:
            run.stop = True  # type: ignore[assignment]


def test_a_main_callback_shares_gradients_and_one_worker_can_stop_all(tmp_path: Path) -> None:
    estimator = make_estimator(**TWO, config={"samples": 20, "lr": 0.2})
    kept = ModelCheckpoint(str(tmp_path / "{epoch}"))
    stats = estimator.fit(make_loader, epochs=9, batch_size=4, callbacks=[Halved(), kept])
    assert [entry["batch_count"] for entry in stats] == [5], "the worker's wish ended the run with the first epoch"
    assert_same_weights(estimator.get_state_dict(), train_plainly(1, 4, 20))
    assert make_estimator().load_checkpoint(Estimator.latest_checkpoint(tmp_path)) == 1


def around_the_wrapper(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
    outputs = model.net(batch[0])
    return nn.functional.mse_loss(outputs, batch[1]), outputs


def test_a_step_through_a_part_of_the_model_shares_gradients_too() -> None:
    estimator = make_estimator(**TWO, model=lambda config: OwnLoss(), loss=None, step=around_the_wrapper)
    alone = make_estimator(model=lambda config: OwnLoss(), loss=None)
    for one, batch_size in ((estimator, 4), (alone, 4)):
        one.fit(make_loader, epochs=1, batch_size=batch_size)
    assert_same_weights(estimator.get_state_dict(), alone.get_state_dict())


def changes_its_own_weights(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
    with torch.no_grad():
        next(model.parameters()).add_(os.getpid())
    return around_the_wrapper(model, batch)


def test_a_step_that_lets_the_workers_weights_drift_apart_is_refused() -> None:
    estimator = make_estimator(**TWO, model=lambda config: OwnLoss(), loss=None, step=changes_its_own_weights)
    with pytest.raises(WorkerFailed, match="drifted apart") as caught:
        estimator.fit(make_loader, epochs=1, batch_size=4)
    assert isinstance(caught.value.__cause__, UsageError)
