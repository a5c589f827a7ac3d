"""The Estimator in this process: what it refuses, saves, loads and gives back."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.estimation import SAMPLES, Diary, assert_same_weights, make_estimator, make_loader, make_set, train_plainly
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from boxwright.accel.checkpoint import save_checkpoint
from boxwright.accel.estimator import Accuracy, Callback, Estimator, Sharded
from boxwright.accel.estimator.metrics import name_metrics
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.launchers.local import SubprocessLauncher

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_one_worker_gives_exactly_what_a_plain_loop_gives() -> None:
    estimator = make_estimator()
    estimator.fit(make_loader, epochs=2, batch_size=4)
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, 22), bound=0)


def test_random_numbers_of_the_caller_are_left_as_they_were() -> None:
    states = []
    for _ in range(2):
        numpy_state: Any = np.random.get_state()  # noqa: NPY002 - the global generator is what users' code draws from
        states.append((torch.get_rng_state().tolist(), random.getstate(), numpy_state[1].tolist()))
        make_estimator(config={"shuffle": True}).fit(make_loader, epochs=1, batch_size=4)
    assert states[0] == states[1]


def test_two_calls_of_fit_are_one_of_twice_the_length_and_a_checkpoint_carries_on(tmp_path: Path) -> None:
    def cosine(optimizer: Any, config: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)

    settings: dict[str, Any] = {"config": {"shuffle": True}, "scheduler_creator": cosine}
    once = make_estimator(**settings)
    stats = once.fit(make_loader, epochs=4, batch_size=4)
    twice = make_estimator(**settings)
    first = twice.fit(make_loader, epochs=2, batch_size=4)
    path = twice.save_checkpoint(tmp_path / "half.pt")
    second = twice.fit(make_loader, epochs=2, batch_size=4)
    assert [*first, *second] == stats
    assert_same_weights(twice.get_state_dict(), once.get_state_dict(), bound=0)

    resumed = make_estimator(**settings)
    assert resumed.load_checkpoint(path) == 2
    resumed.fit(make_loader, epochs=2, batch_size=4)
    assert_same_weights(resumed.get_state_dict(), once.get_state_dict(), bound=0)


def test_weights_are_saved_for_torch_and_loaded_from_it(tmp_path: Path) -> None:
    trained = make_estimator()
    trained.fit(make_loader, epochs=1, batch_size=4)
    weights = trained.get_state_dict()
    assert_same_weights(torch.load(trained.save(tmp_path / "ours.pt"), weights_only=True), weights, bound=0)
    torch.save(weights, tmp_path / "theirs.pt")
    trained.save_checkpoint(tmp_path / "checkpoint.pt")
    for name in ("ours.pt", "theirs.pt", "checkpoint.pt"):
        other = make_estimator()
        other.load(tmp_path / name)
        assert_same_weights(other.get_model().state_dict(), weights, bound=0)
        assert other.epoch == 0, "training begins anew"


def test_files_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    estimator = make_estimator()
    before = estimator.get_state_dict()
    torch.save({"0.weight": torch.zeros(1)}, tmp_path / "other.pt")
    (tmp_path / "torn.pt").write_bytes(b"PK\x03\x04 not a checkpoint at all, but long enough to have a footer")
    with pytest.raises(CheckpointError, match="do not fit the model"):
        estimator.load(tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="can't be read"):
        estimator.load(tmp_path / "torn.pt")
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        estimator.load_checkpoint(tmp_path / "none.pt")
    save_checkpoint(tmp_path / "numbers.pt", {"epoch": 3})
    with pytest.raises(CheckpointError, match="not a checkpoint of an estimator's training"):
        estimator.load_checkpoint(tmp_path / "numbers.pt")
    with pytest.raises(UsageError, match="needs a model_dir"):
        estimator.load_checkpoint()
    assert_same_weights(estimator.get_state_dict(), before, bound=0)


def test_a_folder_for_checkpoints_gets_one_after_each_epoch(tmp_path: Path) -> None:
    estimator = make_estimator(model_dir=tmp_path)
    estimator.fit(make_loader, epochs=2, batch_size=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.previous.pt", "last.pt"]
    assert make_estimator(model_dir=tmp_path).load_checkpoint() == 2
    assert make_estimator().load_checkpoint(tmp_path) == 2


def test_checkpoints_may_lie_at_a_url(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far/away"
    estimator = make_estimator(model_dir=url)
    with pytest.raises(CheckpointError, match="There is no checkpoint 'file://"):
        estimator.load_checkpoint()
    estimator.fit(make_loader, epochs=2, batch_size=4)
    folder = tmp_path / "far" / "away"
    assert sorted(p.name for p in folder.iterdir()) == ["last.previous.pt", "last.pt"]
    other = make_estimator(model_dir=url)
    assert other.load_checkpoint() == 2
    assert_same_weights(other.get_state_dict(), estimator.get_state_dict(), bound=0)
    (folder / "last.pt").write_bytes(b"torn")
    assert make_estimator(model_dir=url).load_checkpoint() == 1, "the one before it"
    with pytest.raises(CheckpointError, match="can't be opened"):
        make_estimator(model_dir="nowhere://x").fit(make_loader, epochs=1, batch_size=4)


def test_weights_may_lie_at_a_url(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far/weights.pt"
    estimator = make_estimator()
    with pytest.raises(CheckpointError, match="The weights 'file://"):
        estimator.load(url)
    estimator.fit(make_loader, epochs=1, batch_size=4)
    assert estimator.save(url) == url
    assert (tmp_path / "far" / "weights.pt").is_file()
    other = make_estimator()
    other.load(url)
    assert_same_weights(other.get_state_dict(), estimator.get_state_dict(), bound=0)


def test_a_rate_on_a_plateau_follows_the_validation_loss() -> None:
    def plateau(optimizer: Any, config: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0, threshold_mode="abs")

    stats = make_estimator(scheduler_creator=plateau).fit(
        make_loader, epochs=3, batch_size=4, validation_data=make_loader
    )
    assert [s["lr"] for s in stats] == pytest.approx([0.1, 0.1, 0.01])


def test_a_scheduler_may_count_iterations() -> None:
    def halve(optimizer: Any, config: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)

    estimator = make_estimator(scheduler_creator=halve, scheduler_pace="iteration", config={"samples": 12})
    assert [s["lr"] for s in estimator.fit(make_loader, epochs=2, batch_size=2)] == pytest.approx([0.025, 0.00625])


def test_a_list_of_one_entry_a_sample_is_predicted_as_a_list() -> None:
    class Found(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [row[row > 0] for row in x]

    outputs = make_estimator(model=lambda config: Found()).predict(make_loader, batch_size=4)
    x = make_set().tensors[0]
    assert [len(one) for one in outputs] == [int((row > 0).sum()) for row in x]


@pytest.mark.parametrize("answer", [torch.tensor(1.0), [torch.zeros(4), torch.zeros(4)], torch.zeros(2, 4)])
def test_outputs_that_are_not_one_entry_a_sample_are_refused(answer: Any) -> None:
    estimator = make_estimator(loss=None, step=lambda model, batch: (None, answer))
    with pytest.raises(UsageError, match="one entry per sample"):
        estimator.predict(make_loader, batch_size=4)


class Detector(nn.Module):
    """Takes a list of images of different sizes and a list of targets, as torchvision's do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)

    def forward(self, images: Any, targets: Any = None) -> Any:
        outputs = [self.net(image.mean().reshape(1)) for image in images]
        if targets is None:
            return outputs
        return {"loss": torch.stack([(o - t["label"]) ** 2 for o, t in zip(outputs, targets, strict=True)]).mean()}


def load_scenes(config: dict[str, Any], batch_size: int | None) -> DataLoader[Any]:
    scenes: Any = [(torch.ones(3, 8, 8 + i), {"label": torch.tensor([float(i)])}) for i in range(10)]
    return DataLoader(scenes, batch_size=batch_size, collate_fn=lambda samples: tuple(zip(*samples, strict=True)))


def test_lists_of_images_are_counted_weighted_and_predicted_by_image() -> None:
    estimator = make_estimator(model=lambda config: Detector(), loss=None, config={"lr": 0.0})
    answer = estimator.get_model()([torch.ones(3, 2, 2)])[0].item()
    expected = np.mean([(answer - i) ** 2 for i in range(10)])
    stats = estimator.fit(load_scenes, batch_size=4)[0]
    scored = estimator.evaluate(load_scenes, batch_size=4)
    assert (stats["num_samples"], scored["num_samples"]) == (10, 10)
    assert (stats["train_loss"], scored["loss"]) == pytest.approx((expected, expected), rel=1e-5)
    assert len(estimator.predict(load_scenes, batch_size=4)) == 10


def load_named(config: dict[str, Any], batch_size: int | None) -> list[dict[str, torch.Tensor]]:
    x = make_set(10).tensors[0]
    return [{"size": torch.tensor([4, 4, 4]), "x": part} for part in x.split(batch_size or 1)]


def step_named(model: nn.Module, batch: dict[str, torch.Tensor]) -> Any:
    outputs = model(batch["x"])
    return outputs.square().mean(), outputs


def test_the_number_of_samples_can_be_stated_and_a_doubt_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"loss": None, "step": step_named}
    make_estimator(**settings).fit(load_named, epochs=2, batch_size=4, validation_data=load_named)
    assert caplog.text.count("different lengths (size 3, x 4): it is counted as 3 samples") == 1
    caplog.clear()
    assert make_estimator(**settings).predict(load_named, batch_size=4).shape == (10, 1), "as many as one tensor has"
    estimator = make_estimator(**settings, count_samples=lambda batch: len(batch["x"]))
    assert estimator.fit(load_named, batch_size=4)[0]["num_samples"] == 10
    assert estimator.evaluate(load_named, batch_size=4)["num_samples"] == 10
    assert estimator.predict(load_named, batch_size=4).shape == (10, 1)
    assert "different lengths" not in caplog.text
    for wrong in (-1, 2.5, torch.zeros(2)):
        with pytest.raises(UsageError, match=r"count_samples\(batch\) returned"):
            make_estimator(**settings, count_samples=lambda batch, wrong=wrong: wrong).evaluate(load_named)
    with pytest.raises(UsageError, match=r"for a batch of 3 samples\..*count_samples"):
        make_estimator(**settings, count_samples=lambda batch: 3).predict(load_named, batch_size=4)


def test_accuracy_counts_and_merges() -> None:
    first, second = Accuracy(), Accuracy()
    first.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    second.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    first.merge(second.state())
    assert first.compute() == pytest.approx(2 / 3)


SCORES = torch.tensor([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1], [0.2, 0.1, 0.7], [0.6, 0.3, 0.1]])  # classes 1, 0, 2, 0


@pytest.mark.parametrize(
    ("outputs", "targets", "threshold"),
    [
        (SCORES, torch.tensor([1, 0, 2, 1]), 0.5),
        (SCORES, torch.tensor([[1], [0], [2], [1]]), 0.5),
        (SCORES, torch.tensor([1.0, 0.0, 2.0, 1.0]), 0.5),
        (SCORES, nn.functional.one_hot(torch.tensor([1, 0, 2, 1])), 0.5),
        (SCORES, nn.functional.one_hot(torch.tensor([1, 0, 2, 1])).float(), 0.5),
        (SCORES.argmax(1), torch.tensor([1, 0, 2, 1]), 0.5),
        (torch.tensor([[0.9], [0.2], [0.6], [0.4]]), torch.tensor([[1.0], [0.0], [1.0], [1.0]]), 0.5),
        (torch.tensor([[0.9], [0.2], [0.6], [0.4]]), torch.tensor([1, 0, 1, 1]), 0.5),
        (torch.tensor([0.9, 0.2, 0.6, 0.4]), torch.tensor([[1.0], [0.0], [1.0], [1.0]]), 0.5),
        (torch.tensor([[3.0], [-2.0], [0.3], [-0.1]]), torch.tensor([[1.0], [0.0], [1.0], [1.0]]), 0.0),
        (SCORES.T[None], torch.tensor([[1, 0, 2, 1]]), 0.5),  # one picture of four elements
    ],
)
def test_accuracy_is_three_of_four_in_every_form(
    outputs: torch.Tensor, targets: torch.Tensor, threshold: float
) -> None:
    metric = Accuracy(threshold)
    metric.update(outputs, targets)
    assert metric.compute() == 0.75


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (SCORES, torch.tensor([1, 0, 2]), r"\(4, 3\) with targets of the shape \(3,\)"),
        (SCORES, torch.tensor([[1, 0], [0, 1], [0, 0], [1, 1]]), r"\(4, 2\)"),
        (SCORES, torch.tensor(1), r"\(\)"),
        (SCORES, [1, 0, 2, 1], "as list"),
        (SCORES, torch.ones(4, 3), "not one-hot"),
        (SCORES, SCORES, "not one-hot"),
        (torch.rand(4, 1), torch.rand(4, 1), "targets other than 0 and 1"),
        (torch.rand(4, 1), torch.tensor([0, 1, 2, 1]), "targets other than 0 and 1"),
        (torch.rand(4, 1), torch.ones(8), r"\(4, 1\) with targets of the shape \(8,\)"),
        (torch.tensor([[3.0], [-2.0]]), torch.ones(2, 1), r"For logits use Accuracy\(threshold=0\)"),
    ],
)
def test_accuracy_refuses_what_it_can_not_mean(outputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Accuracy().update(outputs, targets)


class Several:
    """A metric of several numbers."""

    def __init__(self, **numbers: float) -> None:
        self._numbers = numbers

    def update(self, outputs: Any, targets: Any) -> None: ...

    def state(self) -> None: ...

    def merge(self, state: Any) -> None: ...

    def compute(self) -> dict[str, float]:
        return self._numbers


def test_the_numbers_of_a_metric_carry_its_name_and_none_replaces_another() -> None:
    plain = make_estimator().evaluate(make_loader, batch_size=4)
    named = {"near": Several(loss=5.0, best=1.0), "far": Several(best=2.0)}
    scored = make_estimator(metrics=named).evaluate(make_loader, batch_size=4)
    assert scored == plain | {"near_loss": 5.0, "near_best": 1.0, "far_best": 2.0}

    for metrics, message in (
        ({"near": Several(best=1.0), "near_best": lambda outputs, targets: 0.0}, "are called 'near_best'"),
        ({"loss": Several()}, "A metric is called 'loss'"),
        ({1: Several(), "1": Several()}, "Two metrics are called '1'"),
    ):
        with pytest.raises(UsageError, match=message):
            make_estimator(metrics=metrics).evaluate(make_loader, batch_size=4)


def test_metrics_without_a_name_or_a_form_are_refused() -> None:
    with pytest.raises(UsageError, match="Two metrics are called 'Accuracy'"):
        name_metrics([Accuracy(), Accuracy()])
    with pytest.raises(UsageError, match=r"is a class. Give an object: Accuracy\("):
        name_metrics([Accuracy])
    with pytest.raises(UsageError, match="without update, state, merge, compute"):
        name_metrics({"odd": 3})
    assert list(name_metrics([Accuracy(), nn.functional.l1_loss])) == ["Accuracy", "l1_loss"]


def test_orcas_log_to_driver_is_what_happens_anyway() -> None:
    assert Estimator.from_torch(model=lambda config: nn.Linear(1, 1), log_to_driver=True).epoch == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": nn.Linear(1, 1)}, "model is a Linear. Give a function"),
        ({"optimizer": 3}, "optimizer is a int"),
        ({"loss": nn.MSELoss(), "step": lambda model, batch: None}, "Give one of them"),
        ({"scheduler_pace": "day"}, "Choose from: epoch, iteration"),
        ({"num_processes": 2}, "use backend, workers_per_node"),
        ({"workers_per_nod": 2}, "Unknown setting 'workers_per_nod'. Did you mean 'workers_per_node'"),
        ({"log_to_driver": False}, "always reaches this process"),
        ({"backend": "rey"}, "Did you mean 'ray'"),
        ({"num_nodes": 2}, "starts its workers on this machine"),
        ({"max_restarts": 2}, "can't restart itself"),
        ({"max_restarts": "2", "workers_per_node": 2}, "max_restarts='2' is not possible"),
        ({"workers_per_node": None}, "workers_per_node=None is not possible"),
        ({"workers_per_node": 0}, "workers_per_node=0 is not possible"),
        ({"num_nodes": 1.5}, "num_nodes=1.5 is not possible"),
        ({"backend": None}, "backend=None is not a launcher.*subprocess, spawn, ray or spark"),
        ({"backend": SubprocessLauncher}, "is not a launcher"),
        ({"preprocess": 3}, "preprocess is a int. Give a function"),
        ({"step": 3}, "step is a int. Give a function"),
        ({"count_samples": 3}, "count_samples is a int. Give a function"),
        ({"backend": SubprocessLauncher(), "workers_per_node": 2, "max_restarts": 2}, "restart=Restart"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Estimator.from_torch(**{"model": lambda config: nn.Linear(1, 1)} | settings)


def test_a_scheduler_that_needs_an_epoch_s_loss_does_not_step_by_iterations() -> None:
    def plateau(optimizer: Any, config: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    with pytest.raises(UsageError, match=r"ReduceLROnPlateau.*Use scheduler_pace='epoch'"):
        make_estimator(scheduler_creator=plateau, scheduler_pace="iteration").fit(make_loader, batch_size=4)


class Misnamed(Callback):
    def on_epoch_end(self, run: Any) -> None: ...


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (make_loader, {"batch_size": 4, "epochs": 0}, "epochs=0"),
        (make_loader, {"batch_size": 4, "epochs": "2"}, "epochs='2' is not possible"),
        (make_loader, {"batch_size": 4, "epochs": 1.5}, "epochs=1.5"),
        (make_loader, {"batch_size": 4, "epochs": True}, "epochs=True"),
        (make_loader, {"batch_size": 0}, "batch_size=0"),
        (make_loader, {"batch_size": "8"}, "batch_size='8' is not possible"),
        (
            make_loader,
            {"batch_size": 4, "validation_data": make_loader, "validation_batch_size": 2.0},
            "validation_batch_size=2.0",
        ),
        (
            make_loader,
            {"batch_size": 4, "callbacks": [print]},
            r"callbacks\[0\] is a builtin_function.*class that inherits",
        ),
        (
            make_loader,
            {"batch_size": 4, "callbacks": [Callback]},
            r"callbacks\[0\] is a class. Give an object: Callback\(",
        ),
        (
            make_loader,
            {"batch_size": 4, "callbacks": [Misnamed()]},
            r"callbacks\[0\] has a method 'on_epoch_end', which is never called. Choose from: before_run",
        ),
        (make_loader, {"batch_size": 4, "callbacks": Callback()}, "callbacks is a Callback. Give a list"),
        (make_loader, {"batch_size": 4, "feature_cols": ["x"]}, "are for tables"),
        (make_loader, {"batch_size": 4, "shuffle": True}, "shuffle=True is for tables and data sets"),
        (make_loader, {"batch_size": 4, "validation_batch_size": 4}, "needs validation_data"),
        (DataLoader(make_set()), {"batch_size": 4}, "has its own"),
        (3, {"batch_size": 4}, "data is a int"),
        (lambda config, batch_size: 3, {}, "creator returned a int"),
        (make_loader, {}, "would give single samples. Give a batch_size"),
        (lambda config, batch_size: [], {}, "gave no batch"),
    ],
)
def test_data_and_settings_that_do_not_fit_are_refused(data: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_estimator().fit(data, **settings)


class Halves(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return zip(*(tensor.split(11) for tensor in make_set().tensors), strict=True)


@pytest.mark.parametrize(
    "data",
    [
        lambda config, batch_size: DataLoader(Halves(), batch_size=batch_size),
        lambda config, batch_size: Sharded(DataLoader(list(Halves()), batch_size=batch_size)),
        lambda config, batch_size: DataLoader(
            make_set(), batch_size=None, sampler=BatchSampler(SequentialSampler(make_set()), 11, drop_last=False)
        ),
        DataLoader(list(Halves()), batch_size=None),
    ],
    ids=["iterable", "sharded", "sampler of batches", "loader"],
)
def test_data_that_comes_in_whole_batches_needs_no_batch_size(data: Any) -> None:
    assert make_estimator().evaluate(data)["num_samples"] == SAMPLES


def test_a_data_set_and_a_batch_size_are_enough() -> None:
    data = make_set()
    estimator = make_estimator()
    stats = estimator.fit(data, epochs=2, batch_size=4, shuffle=False, validation_data=data)
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, SAMPLES), bound=0)
    assert stats[-1]["val_num_samples"] == estimator.evaluate(data, batch_size=5)["num_samples"] == SAMPLES
    expected = estimator.get_model()(data.tensors[0]).detach().numpy()
    np.testing.assert_allclose(estimator.predict(data, batch_size=5), expected, atol=1e-6)
    shuffled = make_estimator()
    shuffled.fit(data, epochs=2, batch_size=4)
    assert not torch.equal(shuffled.get_state_dict()["0.weight"], estimator.get_state_dict()["0.weight"])
    with pytest.raises(UsageError, match="A data set needs a batch_size"):
        estimator.evaluate(data)


def test_validation_without_batches_is_refused_before_the_training(tmp_path: Path) -> None:
    loader = DataLoader(make_set(), batch_size=4)
    with pytest.raises(UsageError, match="validation_batch_size for validation_data"):
        make_estimator().fit(loader, validation_data=make_loader, callbacks=[Diary(tmp_path)])
    assert list(tmp_path.iterdir()) == [], "nothing was trained"
    stats = make_estimator().fit(loader, validation_data=make_loader, validation_batch_size=4)
    assert stats[0]["val_num_samples"] == SAMPLES


def test_a_batch_size_that_can_not_be_is_refused_in_scoring_too() -> None:
    for wrong in (0, "8"):
        with pytest.raises(UsageError, match=f"batch_size={wrong!r} is not possible"):
            make_estimator().evaluate(make_loader, batch_size=wrong)  # type: ignore[arg-type]
    stats = make_estimator().fit(make_loader, epochs=np.int64(1), batch_size=np.int64(4))  # type: ignore[arg-type]
    assert len(stats) == 1, "a whole number of numpy's is one"


def test_training_without_a_loss_or_an_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="no loss to train on"):
        make_estimator(loss=None, step=lambda model, batch: (None, model(batch[0]))).fit(make_loader, batch_size=4)
    with pytest.raises(UsageError, match="needs an optimizer"):
        make_estimator(optimizer=None).fit(make_loader, batch_size=4)
