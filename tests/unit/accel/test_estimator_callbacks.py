"""The Estimator's callbacks: every hook at its moment, a main callback that replaces steps, and the ready-made ones."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.estimation import SAMPLES, assert_same_weights, make_estimator, make_loader, make_set, train_plainly
from torch import nn

from boxwright.accel.estimator import (
    Callback,
    Estimator,
    MainCallback,
    ModelCheckpoint,
    Run,
    TensorBoardCallback,
)
from boxwright.core.errors import CheckpointError, UsageError

pytestmark = pytest.mark.usefixtures("one_torch_thread")

STEPS = 6  # batches of 4 in 22 samples


class Recorder(MainCallback):
    """Writes down its hooks in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []


def _record(name: str) -> Callable[[Recorder, Run], None]:
    def hook(self: Recorder, run: Run) -> None:
        self.seen.append(name)
        getattr(super(Recorder, self), name)(run)

    return hook


HOOKS = [name for kind in (Callback, MainCallback) for name in vars(kind) if name[:3] in ("bef", "aft", "on_")]
for hook in HOOKS:
    setattr(Recorder, hook, _record(hook))


def train_iteration() -> list[str]:
    return [
        *("before_train_iter", "before_iteration", "before_iter", "on_train_forward", "on_iter_forward"),
        *("on_iter_backward", "after_train_iter", "after_iteration", "after_iter"),
    ]


def val_iteration() -> list[str]:
    return ["before_val_iter", "before_iter", "on_val_forward", "on_iter_forward", "after_val_iter", "after_iter"]


def test_every_hook_is_called_at_its_moment() -> None:
    one = {"config": {"samples": 4}}
    recorder = Recorder()
    make_estimator(**one).fit(make_loader, batch_size=4, validation_data=make_loader, callbacks=[recorder])
    assert recorder.seen == [
        *("before_run", "before_train_epoch", "before_epoch", *train_iteration()),
        *("before_val_epoch", *val_iteration(), "after_val_epoch"),
        *("on_lr_adjust", "after_train_epoch", "after_epoch", "after_run"),
    ]
    recorder = Recorder()
    make_estimator(**one).evaluate(make_loader, batch_size=4, callbacks=[recorder])
    assert recorder.seen == ["before_val_epoch", *val_iteration(), "after_val_epoch"]
    fitted, recorder = set(recorder.seen), Recorder()
    make_estimator(**one).predict(make_loader, batch_size=4, callbacks=[recorder])
    assert recorder.seen == [
        *("before_pred_epoch", "before_pred_iter", "before_iter", "on_pred_forward", "after_pred_iter", "after_iter"),
        "after_pred_epoch",
    ]
    assert fitted | set(recorder.seen) | {*train_iteration()} < set(HOOKS)


def test_a_main_callback_that_only_calls_the_default_changes_nothing() -> None:
    estimator = make_estimator()
    estimator.fit(make_loader, epochs=2, batch_size=4, callbacks=[Recorder()])
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, SAMPLES), bound=0)


class Twice(MainCallback):
    """Trains on twice the loss; at half the rate that is the same."""

    def on_iter_forward(self, run: Run) -> None:
        x, run.target = run.batch
        run.output = run.model(x)
        run.loss = 2 * run.criterion(run.output, run.target)


def test_a_forward_of_ones_own_replaces_the_step_in_training_and_scoring() -> None:
    estimator = make_estimator(config={"lr": 0.05})
    stats = estimator.fit(make_loader, epochs=2, batch_size=4, validation_data=make_loader, callbacks=[Twice()])
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, SAMPLES), bound=1e-6)
    plain = estimator.evaluate(make_loader, batch_size=4)
    assert estimator.evaluate(make_loader, batch_size=4, callbacks=[Twice()])["loss"] == pytest.approx(
        2 * plain["loss"]
    )
    assert stats[-1]["val_loss"] == pytest.approx(2 * plain["loss"])


class Frozen(MainCallback):
    def on_iter_backward(self, run: Run) -> None:
        assert run.loss is not None
        run.optimizer.zero_grad()
        run.loss.backward()  # and no step


def test_a_backward_of_ones_own_replaces_the_optimizers_step() -> None:
    estimator = make_estimator()
    before = estimator.get_state_dict()
    estimator.fit(make_loader, epochs=1, batch_size=4, callbacks=[Frozen()])
    assert_same_weights(estimator.get_state_dict(), before, bound=0)
    with pytest.raises(UsageError, match="on_iter_backward"):
        make_estimator(precision=16).fit(make_loader, epochs=1, batch_size=4, callbacks=[Frozen()])


class OwnRate(MainCallback):
    def on_lr_adjust(self, run: Run) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + run.epoch)


def test_a_learning_rate_of_ones_own_needs_no_scheduler() -> None:
    stats = make_estimator().fit(make_loader, epochs=2, batch_size=4, callbacks=[OwnRate()])
    assert [entry["lr"] for entry in stats] == [0.1, 0.05]


class Doubled(MainCallback):
    def on_pred_forward(self, run: Run) -> None:
        run.output = 2 * run.model(run.batch[0])


def test_a_prediction_of_ones_own_is_what_is_returned() -> None:
    estimator = make_estimator()
    plain = estimator.predict(make_loader, batch_size=4)
    assert estimator.predict(make_loader, batch_size=4, callbacks=[Doubled()]) == pytest.approx(2 * plain)


class NoLoss(MainCallback):
    def on_train_forward(self, run: Run) -> None:
        run.output = run.model(run.batch[0])


class Orphan(Callback):
    def on_iter_forward(self, run: Run) -> None: ...


class Misspelt(MainCallback):
    def on_iter_foward(self, run: Run) -> None: ...


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([NoLoss()], "set run.loss"),
        ([Orphan()], "only a MainCallback may have"),
        ([Misspelt()], "'on_iter_foward', which is never called. Choose from: .*on_iter_forward"),
        ([Twice(), Frozen()], r"2 main callbacks \(Twice, Frozen\)"),
    ],
)
def test_callbacks_that_can_not_work_are_refused(callbacks: list[Callback], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_estimator().fit(make_loader, epochs=1, batch_size=4, callbacks=callbacks)


class StopAt(Callback):
    def __init__(self, step: int, *, at_once: bool) -> None:
        self._step, self._at_once = step, at_once

    def after_train_iter(self, run: Run) -> None:
        assert not run.stop or run.global_step > self._step
        if run.global_step == self._step and self._at_once:
            run.stop = True  # type: ignore[assignment]
        elif run.global_step == self._step:
            run.stop()


def test_a_run_stops_after_the_iteration_or_after_the_epoch() -> None:
    for at_once, steps in ((True, 3), (False, STEPS)):
        stats = make_estimator().fit(make_loader, epochs=3, batch_size=4, callbacks=[StopAt(3, at_once=at_once)])
        assert [entry["batch_count"] for entry in stats] == [steps]


class Keeper(Callback):
    """Uses the store of a run, and what it shows under Orca's names."""

    def before_run(self, run: Run) -> None:
        run.put("steps", 0)
        with pytest.raises(UsageError, match="update"):
            run.put("steps", 1)

    def after_iter(self, run: Run) -> None:
        run.update("steps", run.get("steps") + 1)
        assert run.batch_idx == run.get("steps") - 1
        assert run.global_step == run.iteration == run.get("steps")

    def after_train_epoch(self, run: Run) -> None:
        assert (run.epochs, run.num_epochs, run.rank) == (1, 1, 0)
        assert run.epoch_stats["batch_count"] == run.get("steps") == STEPS
        run.remove("steps")
        with pytest.raises(UsageError, match="no value 'steps'"):
            run.get("steps")


def test_values_are_kept_from_hook_to_hook() -> None:
    make_estimator().fit(make_loader, batch_size=4, callbacks=[Keeper()])


def test_steps_may_end_a_training_within_an_epoch() -> None:
    estimator = make_estimator()
    stats = estimator.fit(make_loader, max_steps=STEPS + 2, batch_size=4)
    assert [(entry["epoch"], entry["batch_count"]) for entry in stats] == [(1, STEPS), (2, 2)]
    assert [entry["batch_count"] for entry in estimator.fit(make_loader, max_steps=1, batch_size=4)] == [1]

    def take(batches: int) -> Iterator[Any]:
        x, y = make_set().tensors
        return zip(x.split(4)[:batches], y.split(4)[:batches], strict=True)

    model = make_estimator().get_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in (STEPS, 2, 1):
        for x, y in take(epoch):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    assert_same_weights(estimator.get_state_dict(), model.state_dict(), bound=0)
    for wrong in ({"max_steps": 0}, {"max_steps": 2, "epochs": 2}):
        with pytest.raises(UsageError, match="max_steps="):
            estimator.fit(make_loader, batch_size=4, **wrong)  # type: ignore[arg-type]


def test_a_checkpoint_of_every_epoch_can_be_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    estimator = make_estimator()
    estimator.fit(make_loader, epochs=2, batch_size=4, callbacks=[ModelCheckpoint(f"{folder}/a-{{epoch:02d}}")])
    assert sorted(path.name for path in folder.iterdir()) == ["a-epoch=01.ckpt", "a-epoch=02.ckpt", "last.ckpt"]
    assert Estimator.latest_checkpoint(folder) == str(folder / "last.ckpt")
    resumed = make_estimator()
    assert resumed.load_checkpoint(folder / "a-epoch=01.ckpt") == 1
    resumed.fit(make_loader, epochs=1, batch_size=4)
    assert_same_weights(resumed.get_state_dict(), estimator.get_state_dict(), bound=0)
    assert make_estimator().load_checkpoint(Estimator.latest_checkpoint(folder)) == 2
    (folder / "last.ckpt").unlink()
    assert Estimator.latest_checkpoint(folder) == str(folder / "a-epoch=02.ckpt")
    with pytest.raises(UsageError, match="holds checkpoints already"):
        make_estimator().fit(make_loader, batch_size=4, callbacks=[ModelCheckpoint(f"{folder}/{{epoch}}")])


def test_weights_alone_are_for_load(tmp_path: Path) -> None:
    estimator = make_estimator()
    kept = ModelCheckpoint(str(tmp_path / "{epoch}"), save_weights_only=True)
    estimator.fit(make_loader, epochs=1, batch_size=4, callbacks=[kept])
    other = make_estimator()
    other.load(tmp_path / "epoch=1.ckpt")
    assert_same_weights(other.get_state_dict(), estimator.get_state_dict(), bound=0)
    for wrong in ("runs/last", "runs/{loss}", "{epoch}/{epoch}/x"):
        with pytest.raises(UsageError, match="epoch"):
            ModelCheckpoint(wrong)


def test_the_latest_checkpoint_of_a_model_folder_is_its_last(tmp_path: Path) -> None:
    make_estimator(model_dir=tmp_path).fit(make_loader, epochs=1, batch_size=4)
    assert Estimator.latest_checkpoint(tmp_path) == str(tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        Estimator.latest_checkpoint(tmp_path / "none")


def read_scalars(folder: Path) -> dict[str, list[int]]:
    """Return the steps of each scalar."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [event.step for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numbers_are_written_for_tensorboard(tmp_path: Path) -> None:
    fit: dict[str, Any] = {"epochs": 2, "batch_size": 4, "validation_data": make_loader}
    make_estimator().fit(make_loader, **fit, callbacks=[TensorBoardCallback(tmp_path / "epochs")])
    assert read_scalars(tmp_path / "epochs") == {"lr": [1, 2], "train_loss": [1, 2], "val_loss": [1, 2]}
    make_estimator().fit(make_loader, **fit, callbacks=[TensorBoardCallback(tmp_path / "steps", freq=4)])
    assert read_scalars(tmp_path / "steps") == {"lr": [4, 8, 12], "train_loss": [4, 8, 12]}
    url = f"file://{tmp_path}/far"
    make_estimator().fit(make_loader, **fit, callbacks=[TensorBoardCallback(url, freq="batch")])
    assert read_scalars(tmp_path / "far")["train_loss"] == list(range(1, 2 * STEPS + 1))
    for wrong in ("day", 0, True):
        with pytest.raises(UsageError, match="freq="):
            TensorBoardCallback(tmp_path, freq=wrong)


def test_a_whole_model_is_loaded_only_by_those_who_trust_it(tmp_path: Path) -> None:
    estimator = make_estimator()
    estimator.fit(make_loader, epochs=1, batch_size=4)
    path = estimator.save(tmp_path / "model.pt", entire=True)
    whole = torch.load(path, weights_only=False)
    assert_same_weights(whole.state_dict(), estimator.get_state_dict(), bound=0)
    other = make_estimator()
    with pytest.raises(CheckpointError, match="loaded with trust=True"):
        other.load(path)
    other.load(path, trust=True)
    assert_same_weights(other.get_state_dict(), estimator.get_state_dict(), bound=0)
    with pytest.raises(CheckpointError, match="can't be pickled"):
        make_estimator(model=lambda config: Unpicklable()).save(tmp_path / "odd.pt", entire=True)
    assert not (tmp_path / "odd.pt").exists()


class Unpicklable(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 1)
        self.function = lambda x: x
