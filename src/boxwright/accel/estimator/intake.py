"""From what a user gives as data to a source that can be sent to the workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from boxwright.accel.estimator.checks import check_count
from boxwright.accel.estimator.sources import CreatorSource, LoaderSource, Source, divide_batch
from boxwright.core.errors import UsageError
from boxwright.core.packages import require

_TABLE_HOMES = ("pyspark.sql", "ray.data", "pyarrow")
Columns = tuple[Sequence[str] | None, Sequence[str] | None]


class Intake:
    """Takes in creators, loaders and tables; what it writes for the workers is removed by `close`."""

    def __init__(self, *, elsewhere: bool, cache_dir: str | None, seed: int) -> None:
        self._elsewhere, self._cache_dir, self._seed = elsewhere, cache_dir, seed
        self._tables: Any = None

    def for_training(
        self, data: Any, batch_size: int | None, workers: int, columns: Columns, *, shuffle: bool | None
    ) -> Source:
        """Return a source of training batches; `batch_size` is for all workers together.

        Raises:
            UsageError: the arguments do not fit the kind of data.
        """
        part = None if batch_size is None else divide_batch(check_count("batch_size", batch_size), workers)
        if _is_table(data):
            size = _need_batch_size(part, "table")
            table: Source = self._open_tables().source(data, size, columns, shuffle=shuffle is not False)
            return table
        if _is_set(data):
            return self._from_set(data, None if part is None else part * workers, columns, shuffle is not False)
        if shuffle is not None:
            raise UsageError(
                f"shuffle={shuffle!r} is for tables and data sets. A loader or creator decides on the order itself."
            )
        return self._from_code(data, part, columns)

    def for_scoring(self, data: Any, batch_size: int | None, columns: Columns, *, whole_rows: bool = False) -> Source:
        """Return a source of batches for scoring; `batch_size` is that of one forward pass.

        Raises:
            UsageError: the arguments do not fit the kind of data.
        """
        if batch_size is not None:
            batch_size = check_count("batch_size", batch_size)
        if _is_table(data):
            size = _need_batch_size(batch_size, "table")
            table: Source = self._open_tables().source(data, size, columns, whole_rows=whole_rows)
            return table
        if _is_set(data):
            return self._from_set(data, batch_size, columns, shuffle=False)
        return self._from_code(data, batch_size, columns)

    def has_batches(self, data: Any) -> bool:
        """Return whether the data comes in batches of its own."""
        return not callable(data) and not _is_table(data) and not _is_set(data)

    def give_back(self, data: Any, outputs: Any) -> Any:
        """Return outputs in the form of the data: as columns beside a table's, otherwise as they are."""
        return self._open_tables().attach(data, outputs) if _is_table(data) else outputs

    def close(self) -> None:
        """Remove what was written."""
        if self._tables is not None:
            self._tables.close()

    def _from_set(self, data: Any, batch_size: int | None, columns: Columns, shuffle: bool) -> Source:
        loader: DataLoader[Any] = DataLoader(data, batch_size=_need_batch_size(batch_size, "data set"), shuffle=shuffle)
        return self._from_code(loader, None, columns)

    def _from_code(self, data: Any, batch_size: int | None, columns: Columns) -> Source:
        if any(columns):
            raise UsageError("feature_cols and label_cols are for tables. Loaders and creators give ready batches.")
        if isinstance(data, DataLoader) or (not callable(data) and hasattr(data, "__iter__")):
            if batch_size is not None:
                raise UsageError(
                    f"batch_size={batch_size!r} can't be used with a {type(data).__name__}, which has its own. Leave "
                    "it out, or give a creator f(config, batch_size)."
                )
            return LoaderSource(loader=data, seed=self._seed)
        if not callable(data):
            raise UsageError(
                f"data is a {type(data).__name__}. Give a creator f(config, batch_size), a DataLoader or Dataset, a "
                "Spark DataFrame, a Ray Dataset, a pyarrow Table, or a path of parquet files."
            )
        return CreatorSource(creator=data, batch_size=batch_size, seed=self._seed)

    def _open_tables(self) -> Any:
        if self._tables is None:
            require("pyarrow", extra="spark", by="Training on a table")
            from boxwright.accel.estimator.tables import Tables

            self._tables = Tables(elsewhere=self._elsewhere, cache_dir=self._cache_dir, seed=self._seed)
        return self._tables


def _need_batch_size(batch_size: int | None, kind: str) -> int:
    if batch_size is None:
        raise UsageError(f"A {kind} needs a batch_size.")
    return batch_size


def _is_set(data: Any) -> bool:
    """Return whether data is a torch `Dataset` of single samples; one that can be iterated gives batches."""
    return isinstance(data, Dataset) and not hasattr(data, "__iter__")


def _is_table(data: Any) -> bool:
    """Return whether data is a table, told by where its class lives: no engine is imported for it."""
    if isinstance(data, str | Path):
        return True
    homes = {kind.__module__ for kind in type(data).__mro__}
    return any(home == root or home.startswith(f"{root}.") for home in homes for root in _TABLE_HOMES)
