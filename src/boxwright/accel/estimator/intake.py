"""From what a user gives as data to a source that can be sent to the workers."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import DataLoader, Dataset

from boxwright.accel.estimator.sources import CreatorSource, LoaderSource, Source, divide_batch
from boxwright.core.errors import UsageError
from boxwright.core.packages import is_from, require

if TYPE_CHECKING:
    from boxwright.accel.estimator.tables import Tables

Columns = tuple[Sequence[str] | None, Sequence[str] | None]
"""The names of the features and of the labels, for tables."""
Kind = Literal["table", "data set", "loader", "creator"]


class Intake:
    """Turns creators, loaders and tables into sources; `close` removes what it wrote for the workers."""

    def __init__(self, *, elsewhere: bool, cache_dir: str | None, seed: int) -> None:
        self._elsewhere, self._cache_dir, self._seed = elsewhere, cache_dir, seed
        self._tables: Tables | None = None

    def open(
        self,
        data: Any,
        batch_size: int | None,
        columns: Columns,
        *,
        workers: int | None = None,
        shuffle: bool | None = None,
        whole_rows: bool = False,
    ) -> Source:
        """Return a source of batches.

        Args:
            data: of any kind that `kind_of` knows.
            batch_size: in training that of all workers together, in scoring that of one forward pass.
            columns: of a table.
            workers: how many share a batch in training; None for scoring.
            shuffle: whether training shuffles the rows of a table or data set; None for True, and for other data.
            whole_rows: whether the rows of a table will be returned with predictions.

        Raises:
            UsageError: the arguments do not fit the kind of data.
        """
        kind = kind_of(data)
        part = None if batch_size is None else divide_batch(check_count("batch_size", batch_size), workers or 1)
        if kind == "table" or kind == "data set":
            if part is None:
                raise UsageError(f"A {kind} needs a batch_size.")
            mixed = workers is not None and shuffle is not False
            if kind == "table":
                return self._open_tables().source(data, part, columns, shuffle=mixed, whole_rows=whole_rows)
            data, part = DataLoader(data, batch_size=part * (workers or 1), shuffle=mixed), None
        elif shuffle is not None:
            raise UsageError(
                f"shuffle={shuffle!r} is for tables and data sets. A loader or creator sets the order itself."
            )
        if any(columns):
            raise UsageError("feature_cols and label_cols are for tables. Loaders and creators give ready batches.")
        if kind == "creator":
            return CreatorSource(creator=data, batch_size=part, seed=self._seed)
        if part is not None:
            raise UsageError(
                f"batch_size={batch_size!r} can't be used with a {type(data).__name__}, which has its own. Leave "
                "it out, or give a creator f(config, batch_size)."
            )
        return LoaderSource(loader=data, seed=self._seed)

    def give_back(self, data: Any, outputs: Any) -> Any:
        """Return outputs in the form of the data: as columns beside a table's, otherwise as they are."""
        return self._open_tables().attach(data, outputs) if kind_of(data) == "table" else outputs

    def close(self) -> None:
        """Remove what was written."""
        if self._tables is not None:
            self._tables.close()

    def _open_tables(self) -> "Tables":
        if self._tables is None:
            require("pyarrow", extra="spark", by="Training on a table")
            from boxwright.accel.estimator.tables import Tables

            self._tables = Tables(elsewhere=self._elsewhere, cache_dir=self._cache_dir, seed=self._seed)
        return self._tables


def kind_of(data: Any) -> Kind:
    """Return what kind of data a user gave. The first rule that fits decides.

    1. A path or URL, or an object of pyspark.sql, ray.data or pyarrow, is a table; no engine is imported to see it.
    2. A torch `Dataset` that can't be iterated is a data set of single samples.
    3. A `DataLoader`, or something that can be iterated and not called, is a loader.
    4. Something that can be called is a creator.

    Raises:
        UsageError: no rule fits.
    """
    if isinstance(data, str | Path) or is_from(data, "pyspark.sql", "ray.data", "pyarrow"):
        return "table"
    if isinstance(data, Dataset) and not hasattr(data, "__iter__"):
        return "data set"
    if isinstance(data, DataLoader) or (not callable(data) and hasattr(data, "__iter__")):
        return "loader"
    if callable(data):
        return "creator"
    raise UsageError(
        f"data is a {type(data).__name__}. Give a creator f(config, batch_size), a DataLoader or Dataset, a "
        "Spark DataFrame, a Ray Dataset, a pyarrow Table, or a path of parquet files."
    )


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a count as an int.

    Raises:
        UsageError: it is not an integer, or too small.

    Example:
        >>> check_count("epochs", 3)
        3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UsageError(f"{name}={value!r} is not possible. Use a whole number of at least {least}.")
    return int(value)
