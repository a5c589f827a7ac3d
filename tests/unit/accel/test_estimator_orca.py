"""The call forms of Orca: arguments by position, its names of arguments and numbers, its checkpoints."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.estimation import assert_same_weights, make_estimator, make_loader

from boxwright.accel.estimator import Accuracy, Estimator, ModelCheckpoint
from boxwright.core.errors import UsageError


def test_arguments_are_taken_by_position_and_by_orcas_names(tmp_path: Path) -> None:
    estimator = make_estimator(sync_stats=True, use_tqdm=False)
    fitted = estimator.fit(make_loader, 2, 4, profile=False, reduce_results=True, info=None, callbacks=None)
    assert len(fitted) == 2
    scored = estimator.evaluate(make_loader, 4, num_steps=None, callbacks=None)
    assert estimator.predict(make_loader, 4, profile=False, callbacks=None).shape == (22, 1)
    estimator.save(model_path=tmp_path / "weights.pt")  # type: ignore[call-arg]
    estimator.save_checkpoint(model_path=tmp_path / "state.pt")  # type: ignore[call-arg]
    other = make_estimator()
    other.load(model_path=tmp_path / "weights.pt")  # type: ignore[call-arg]
    assert other.evaluate(make_loader, 4) == scored
    assert other.load_checkpoint(model_path=tmp_path / "state.pt") == 2  # type: ignore[call-arg]
    other.shutdown(force=True)


def test_numbers_are_found_under_orcas_names() -> None:
    estimator = make_estimator(
        metrics=[Accuracy(threshold=0)], loss=lambda outputs, targets: (outputs - targets).mean()
    )
    (fitted,) = estimator.fit(binary_loader, 1, 4, validation_data=binary_loader)
    scored = estimator.evaluate(binary_loader, 4)
    assert scored["val_loss"] == scored["loss"] == fitted["val_loss"]
    assert fitted["val_accuracy"] == fitted["val_Accuracy"] == scored["accuracy"] == scored["Accuracy"]
    assert set(scored) == {"loss", "Accuracy", "num_samples"}
    with pytest.raises(KeyError, match="val_recall"):
        scored["val_recall"]


def binary_loader(config: dict[str, Any], batch_size: int | None) -> list[Any]:
    return [(x, (y > 0).float()) for x, y in make_loader(config, batch_size)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_estimator(use_tqdm=True), "use_tqdm=True is not possible. The numbers of each epoch are logged"),
        (lambda: make_estimator(log_level=logging.INFO), r"log_level=20 is not possible.*setLevel"),
        (lambda: make_estimator().fit(make_loader, 1, 4, profile=True), "torch.profiler"),
        (lambda: make_estimator().fit(make_loader, 1, 4, info={"a": 1}), r"from_torch\(config="),
        (lambda: make_estimator().fit(make_loader, 1, 4, colour=1), "Unknown argument 'colour'"),
        (lambda: make_estimator().evaluate(make_loader, 4, num_steps=2), "All data is scored"),
        (lambda: make_estimator().evaluate(make_loader, 4, reduce_results=False), "of all workers together"),
        (lambda: ModelCheckpoint("{epoch}", interval=0), "interval=0 is not possible"),
    ],
)
def test_what_asks_for_something_else_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def test_weights_of_every_second_epoch_are_loaded_as_a_checkpoint(tmp_path: Path) -> None:
    estimator = make_estimator()
    kept = ModelCheckpoint(str(tmp_path / "test-{epoch}"), save_weights_only=True, interval=2)
    estimator.fit(make_loader, 3, 4, callbacks=[kept])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "test-epoch=2.ckpt"]
    other = make_estimator()
    assert other.load_checkpoint(Estimator.latest_checkpoint(tmp_path)) == 0
    assert_same_weights(other.get_state_dict(), estimator.get_state_dict(), bound=0)
