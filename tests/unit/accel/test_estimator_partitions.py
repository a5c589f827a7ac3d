"""XShards, lists of partitions, pandas data frames and columns of maps as the Estimator's data."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from support.estimation import assert_same_weights, make_estimator, make_model, make_set, train_plainly
from torch import Tensor, nn

from boxwright.core.errors import DataError, UsageError

pytestmark = pytest.mark.usefixtures("one_torch_thread")
COLUMNS: dict[str, Any] = {"feature_cols": ["x"], "label_cols": ["y"]}


def make_arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, y = make_set(20).tensors
    return x.double().numpy(), y.numpy()


def make_partitions() -> list[dict[str, Any]]:
    x, y = make_arrays()
    return [{"x": x[:7], "y": y[:7]}, {"x": x[7:8], "y": y[7:8]}, {"x": x[8:], "y": y[8:]}]


class Shards:
    """What XShards offer: their partitions."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self.rdd = self

    def collect(self) -> list[Any]:
        return self._parts


def expect() -> np.ndarray[Any, Any]:
    return make_model({})(make_set(20).tensors[0]).detach().numpy()


def make_frames() -> list[pd.DataFrame]:
    x, y = make_arrays()
    frame = pd.DataFrame({"x": list(x), "y": list(y), "note": [f"row {i}" for i in range(20)]}, index=range(100, 120))
    return [frame.iloc[:7], frame.iloc[7:]]


@pytest.mark.parametrize("wrap", [list, Shards])
def test_partitions_of_arrays_are_fitted_scored_and_predicted(wrap: Any) -> None:
    data = wrap(make_partitions())
    estimator = make_estimator()
    scored = estimator.evaluate(data, batch_size=3)
    assert scored["num_samples"] == 20
    found = estimator.predict(data, batch_size=3)
    assert [len(part["prediction"]) for part in found] == [7, 1, 12]
    assert [part["y"] is given["y"] for part, given in zip(found, make_partitions(), strict=True)] == [False] * 3
    np.testing.assert_allclose(np.concatenate([part["prediction"] for part in found]), expect(), atol=1e-6)
    named = estimator.predict([{"x": part["x"]} for part in make_partitions()], batch_size=3, output_cols=["sum"])
    assert [set(part) for part in named] == [{"x", "sum"}] * 3
    stats = estimator.fit(data, epochs=2, batch_size=4, shuffle=False, validation_data=data)
    assert stats[0]["val_num_samples"] == 20
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, 20), bound=1e-6)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_model({})

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(torch.cat([first, second], 1)), first.sum(1)


def test_several_arrays_become_inputs_and_targets() -> None:
    x, y = make_arrays()
    parts = [{"x": (x[:9, :2], x[:9, 2:]), "y": [y[:9], y[:9]]}, {"x": (x[9:, :2], x[9:, 2:]), "y": [y[9:], y[9:]]}]

    def loss(outputs: Any, targets: Any) -> Tensor:
        assert len(targets) == 2
        return nn.functional.mse_loss(outputs[0], targets[1])

    estimator = make_estimator(model=lambda config: TwoInputs(), loss=loss)
    assert estimator.evaluate(parts, batch_size=4)["num_samples"] == 20
    found = estimator.predict(parts, batch_size=4)
    np.testing.assert_allclose(np.concatenate([part["prediction"][0] for part in found]), expect(), atol=1e-6)
    named = estimator.predict(parts, batch_size=4, output_cols=["value", "total"])
    np.testing.assert_allclose(named[1]["total"], x[9:, :2].sum(1), rtol=1e-5)


def test_a_pandas_frame_gets_its_predictions_as_a_column() -> None:
    whole = pd.concat(make_frames())
    with make_estimator() as estimator:
        found = estimator.predict(whole, batch_size=3, feature_cols=["x"])
        assert list(found.columns) == ["x", "y", "note", "prediction"]
        assert list(found.index) == list(range(100, 120))
        assert "prediction" not in whole
        np.testing.assert_allclose(np.stack(found["prediction"]), expect(), atol=1e-6)
        estimator.fit(whole, epochs=2, batch_size=4, shuffle=False, **COLUMNS)
        assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, 20), bound=1e-6)


@pytest.mark.parametrize("wrap", [list, Shards])
def test_partitions_of_pandas_frames_come_back_as_such(wrap: Any) -> None:
    with make_estimator() as estimator:
        frames = wrap(make_frames())
        assert estimator.evaluate(frames, batch_size=3, **COLUMNS)["num_samples"] == 20
        found = estimator.predict(frames, batch_size=3, feature_cols=["x"], output_cols=["sum"])
        assert [len(frame) for frame in found] == [7, 13]
        np.testing.assert_allclose(np.concatenate([np.stack(frame["sum"]) for frame in found]), expect(), atol=1e-6)


def sum_of_errors(outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
    return nn.functional.mse_loss(outputs, targets["near"]) + (outputs[:, 0] - targets["far"]).square().mean()


def test_a_label_of_maps_becomes_a_dict_of_tensors() -> None:
    x, y = make_arrays()
    labels = [[("near", [value]), ("far", [value])] for value in y[:, 0].tolist()]
    labels[3].reverse()  # a map has no order
    table = pa.table({"x": x.tolist(), "y": pa.array(labels, pa.map_(pa.string(), pa.list_(pa.float32())))})
    flat = pa.table(
        {
            "x": x.tolist(),
            "y": pa.array([[("near", v), ("far", v)] for v in y[:, 0].tolist()], pa.map_(pa.string(), pa.float64())),
        }
    )
    outputs, target = torch.from_numpy(expect()), torch.from_numpy(y)
    single = nn.functional.mse_loss(outputs, target).item()

    def loss_of_flat(outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
        assert targets["near"].shape == (len(outputs),)
        return sum_of_errors(outputs, {"near": targets["near"][:, None], "far": targets["far"]})

    def loss_of_lists(outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
        return sum_of_errors(outputs, {"near": targets["near"], "far": targets["far"][:, 0]})

    for data, loss in ((table, loss_of_lists), (flat, loss_of_flat)):
        with make_estimator(loss=loss) as estimator:
            scored = estimator.evaluate(data, batch_size=20, **COLUMNS)
            assert scored["loss"] == pytest.approx(2 * single, rel=1e-4)
            assert estimator.fit(data, batch_size=4, **COLUMNS)[0]["num_samples"] == 20
    odd = pa.table({"x": x[:2].tolist(), "y": pa.array([[("a", 1.0)], []], pa.map_(pa.string(), pa.float64()))})
    with make_estimator() as estimator, pytest.raises(DataError, match="the keys a"):
        estimator.evaluate(odd, batch_size=2, **COLUMNS)


def test_what_does_not_fit_is_refused() -> None:
    parts = make_partitions()
    estimator = make_estimator()
    for data, settings, message in (
        (parts, {}, "Partitions need a batch_size"),
        ([*parts, {"x": parts[0]["x"]}], {"batch_size": 4}, "another number of arrays under 'y'"),
        ([{"x": np.zeros((3, 4)), "y": np.zeros(2)}], {"batch_size": 4}, "2, 3 rows"),
        ([{"x": np.zeros((3, 4))}, {"x": np.zeros((3, 5))}], {"batch_size": 4}, "under 'x' can't become one tensor"),
        (parts, {"batch_size": 4, "feature_cols": ["x"]}, "are for tables"),
    ):
        with pytest.raises((UsageError, DataError), match=message):
            estimator.evaluate(data, **settings)  # type: ignore[arg-type]
    for data, names, message in (
        (parts, ["a", "b"], "names 2 outputs, but the model returns 1"),
        (parts, "a", "is one name"),
        (make_set(), ["a"], "is for tables and partitions"),
    ):
        with pytest.raises(UsageError, match=message):
            estimator.predict(data, batch_size=4, output_cols=names)
