"""Tables of pyarrow, Spark and Ray as the Estimator's data: each row once, in order, by whatever workers."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.clusters import further
from support.estimation import assert_same_weights, make_estimator, make_model, make_set, train_plainly
from torch import Tensor, nn

from boxwright.core.errors import DataError, UsageError

# The engines' own words about their versions and settings.
pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]
FEATURES: dict[str, Any] = {"feature_cols": ["x"]}
COLUMNS: dict[str, Any] = {**FEATURES, "label_cols": ["y"]}


def make_table(samples: int = 20) -> pa.Table:
    x, y = make_set(samples).tensors
    return pa.table({"name": [f"row {i}" for i in range(samples)], "x": x.tolist(), "y": y.tolist()})


def expect(samples: int = 20) -> np.ndarray[Any, Any]:
    return make_model({})(make_set(samples).tensors[0]).detach().numpy()


def test_an_unshuffled_table_gives_the_weights_of_a_plain_loop() -> None:
    for workers in (1, 2):
        with make_estimator(workers_per_node=workers) as estimator:
            estimator.fit(make_table(), epochs=2, batch_size=4, shuffle=False, **COLUMNS)
            assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, 20))


def test_a_folder_of_parquet_files_is_read_where_it_is(tmp_path: Path) -> None:
    table = make_table(21)
    for number, part in enumerate((table.slice(0, 8), table.slice(8))):
        pq.write_table(part, tmp_path / f"part-{number}.parquet", row_group_size=3)
    with make_estimator(workers_per_node=2) as estimator:
        stats = estimator.fit(tmp_path, epochs=1, batch_size=4, validation_data=tmp_path, **COLUMNS)
        assert stats[0]["num_samples"] == 22, "shared out evenly: one row comes again"
        assert stats[0]["val_num_samples"] == 21
        found = estimator.predict(str(tmp_path), batch_size=4, **FEATURES)
    assert found["name"].to_pylist() == [f"row {i}" for i in range(21)]
    trained = estimator.get_state_dict()
    model = make_model({})
    model.load_state_dict(trained)
    np.testing.assert_allclose(found["prediction"].to_pylist(), model(make_set(21).tensors[0]).tolist(), atol=1e-6)


class TwoInputs(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        return {"sum": first + second, "pair": torch.stack([first, second], 1)}


def test_several_features_and_outputs_become_arguments_and_columns() -> None:
    table = pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "note": ["x", "y", "z"]})
    with make_estimator(model=lambda config: TwoInputs()) as estimator:
        found = estimator.predict(table, batch_size=2, feature_cols=["a", "b"])
    assert found.column_names == ["a", "b", "note", "prediction_sum", "prediction_pair"]
    assert found["prediction_sum"].to_pylist() == [1.5, 3.5, 5.5]
    assert found["prediction_pair"].to_pylist() == [[1.0, 0.5], [2.0, 1.5], [3.0, 2.5]]


def test_predictions_never_get_the_name_of_a_column_that_is_there(tmp_path: Path) -> None:
    def fail(config: dict[str, Any]) -> nn.Module:
        raise AssertionError("it is refused before the workers start")

    table = pa.table({"a": [1.0, 2.0], "b": [1.0, 2.0], "prediction": [0.5, 0.5]})
    pq.write_table(table, tmp_path / "rows.parquet")
    with make_estimator(model=fail) as estimator:
        for data in (table, tmp_path):
            with pytest.raises(UsageError, match="has a column 'prediction'"):
                estimator.predict(data, batch_size=2, feature_cols=["a"])
        with pytest.raises(AssertionError, match="before the workers start"):
            estimator.evaluate(table, batch_size=2, feature_cols=["a"])
    with (
        make_estimator(model=lambda config: TwoInputs()) as estimator,
        pytest.raises(UsageError, match="has a column 'prediction_sum'"),
    ):
        estimator.predict(table.rename_columns(["a", "b", "prediction_sum"]), batch_size=2, feature_cols=["a", "b"])


def test_a_cache_folder_holds_the_table_once_and_is_left_clean(tmp_path: Path) -> None:
    table = make_table()
    estimator = make_estimator(cache_dir=tmp_path / "cache")
    for _ in range(2):
        estimator.evaluate(table, batch_size=4, **COLUMNS)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    estimator.shutdown()
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(UsageError, match="shut down"):
        estimator.evaluate(table, batch_size=4, **COLUMNS)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"feature_cols": ["x"], "label_cols": ["z"]}, "no column 'z'. It has: name, x, y"),
        ({"feature_cols": "x"}, r"Give a list: \['x'\]"),
        ({"label_cols": ["y"]}, "needs feature_cols"),
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, Any], message: str) -> None:
    with make_estimator() as estimator, pytest.raises(UsageError, match=message):
        estimator.fit(make_table(), batch_size=4, **columns)


def test_values_that_are_no_tensor_are_named() -> None:
    ragged = pa.table({"x": [[1.0], [1.0, 2.0]], "y": [1.0, None]})
    with make_estimator() as estimator:
        with pytest.raises(DataError, match="lists in column 'x' have different lengths"):
            estimator.predict(ragged, batch_size=2, **FEATURES)
        with pytest.raises(DataError, match="column 'y' has 1 missing"):
            estimator.predict(ragged, batch_size=2, feature_cols=["y"])
        with pytest.raises(DataError, match="no rows"):
            estimator.predict(ragged.slice(0, 0), batch_size=2, **FEATURES)


@pytest.mark.parametrize("backend", [*further("subprocess"), "spark"])
def test_a_spark_data_frame_is_fitted_scored_and_predicted(spark_here: None, backend: str) -> None:
    from pyspark.sql import SparkSession

    frame = SparkSession.builder.getOrCreate().createDataFrame(make_table()).repartition(3)
    with make_estimator(workers_per_node=2, backend=backend, metrics=[nn.functional.l1_loss]) as estimator:
        before = estimator.evaluate(frame, batch_size=3, **COLUMNS)
        assert before["num_samples"] == 20
        x, y = make_set(20).tensors
        assert before["l1_loss"] == pytest.approx(nn.functional.l1_loss(make_model({})(x), y).item(), rel=1e-5)
        answer = estimator.predict(frame, batch_size=3, **FEATURES)
        found = answer.toArrow()
        with pytest.raises(UsageError, match="has a column 'prediction'"):
            estimator.predict(answer, batch_size=3, **FEATURES)
        stats = estimator.fit(frame, epochs=1, batch_size=4, **COLUMNS)
        assert stats[0]["num_samples"] == 20
    by_name = dict(zip(found["name"].to_pylist(), found["prediction"].to_pylist(), strict=True))
    np.testing.assert_allclose([by_name[f"row {i}"] for i in range(20)], expect(), atol=1e-6)


def test_a_label_of_sparks_map_type_becomes_a_dict_of_tensors(spark_here: None) -> None:
    from pyspark.sql import SparkSession

    rows = [(x.tolist(), {"sum": y.item()}) for x, y in make_set(20)]
    frame = SparkSession.builder.getOrCreate().createDataFrame(rows, "x array<float>, y map<string,double>")
    with make_estimator(
        loss=lambda outputs, targets: nn.functional.mse_loss(outputs[:, 0], targets["sum"])
    ) as estimator:
        scored = estimator.evaluate(frame, batch_size=20, **COLUMNS)
        x, y = make_set(20).tensors
        assert scored["loss"] == pytest.approx(nn.functional.mse_loss(make_model({})(x), y).item(), rel=1e-5)
        named = estimator.predict(frame, batch_size=4, output_cols=["total"], **FEATURES)
        assert named.columns == ["x", "y", "total"]


@pytest.mark.parametrize("backend", [*further("subprocess"), "ray"])
def test_a_ray_dataset_is_fitted_scored_and_predicted(ray_here: None, backend: str) -> None:
    import ray.data

    data = ray.data.from_arrow([make_table().slice(0, 7), make_table().slice(7)])
    with make_estimator(workers_per_node=2, backend=backend) as estimator:
        assert estimator.evaluate(data, batch_size=3, **COLUMNS)["num_samples"] == 20
        answer = estimator.predict(data, batch_size=3, **FEATURES)
        rows = answer.take_all()
        with pytest.raises(UsageError, match="has a column 'prediction'"):
            estimator.predict(answer, batch_size=3, **FEATURES)
        stats = estimator.fit(data, epochs=1, batch_size=4, **COLUMNS)
        assert stats[0]["num_samples"] == 20
    by_name = {row["name"]: row["prediction"] for row in rows}
    np.testing.assert_allclose([by_name[f"row {i}"] for i in range(20)], expect(), atol=1e-6)
