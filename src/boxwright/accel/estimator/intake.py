"""From what a user gives to what reaches the workers: sources of batches, a launcher, log levels."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch.utils.data import DataLoader, Dataset

from boxwright.accel.estimator.partitions import (
    PREDICTION,
    PartitionedArrays,
    is_frames,
    is_partitions,
    name_outputs,
    split,
)
from boxwright.accel.estimator.sources import BatchSource, CreatorSource, LoaderSource, divide_batch
from boxwright.accel.nano import TorchNano
from boxwright.accel.strategy import make_launcher
from boxwright.core.errors import UsageError
from boxwright.core.packages import is_from, require
from boxwright.launchers.base import Launcher
from boxwright.launchers.placement import ELSEWHERE

if TYPE_CHECKING:
    from boxwright.accel.estimator.tables import Tables

_MAX_RESTARTS = 2
_A = {"table": "A table needs", "data set": "A data set needs", "partitions": "Partitions need"}
T = TypeVar("T")
Columns = tuple[Sequence[str] | None, Sequence[str] | None]
"""The names of the features and of the labels, for tables."""
Kind = Literal["table", "data set", "partitions", "loader", "creator"]


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
        output_cols: Sequence[str] | None = None,
    ) -> BatchSource:
        """Return a source of batches.

        Args:
            data: of any kind that `kind_of` knows.
            batch_size: in training that of all workers together, in scoring that of one forward pass.
            columns: of a table.
            workers: how many share a batch in training; None for scoring.
            shuffle: whether training shuffles the rows of a table or data set; None for True, and for other data.
            whole_rows: whether the rows of a table will be returned with predictions.
            output_cols: what the columns of predictions will be called.

        Raises:
            UsageError: the arguments do not fit the kind of data.
        """
        kind = kind_of(data)
        part = None if batch_size is None else divide_batch(check_count("batch_size", batch_size), workers or 1)
        if kind in ("table", "data set", "partitions"):
            if part is None:
                raise UsageError(f"{_A[kind]} a batch_size.")
            mixed = workers is not None and shuffle is not False
            if kind == "table":
                return self._open_tables().source(
                    data, part, columns, shuffle=mixed, whole_rows=whole_rows, output_cols=output_cols
                )
            if kind == "partitions":
                data = PartitionedArrays(data)
            data, part = DataLoader(data, batch_size=part * (workers or 1), shuffle=mixed), None
        elif shuffle is not None:
            raise UsageError(
                f"shuffle={shuffle!r} is for tables and data sets. A loader or creator sets the order itself."
            )
        if output_cols is not None and kind not in ("table", "partitions"):
            raise UsageError(
                f"output_cols={list(output_cols)!r} is for tables and partitions, which get columns. Leave it out: "
                f"outputs of a {kind} are returned as arrays."
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

    def give_back(self, data: Any, outputs: Any, output_cols: Sequence[str] | None = None) -> Any:
        """Return outputs in the form of the data: as columns of a table, in each partition, otherwise as they are."""
        kind = kind_of(data)
        if kind == "table":
            return self._open_tables().attach(data, outputs, output_cols)
        if kind == "partitions":
            parts = split(outputs, [len(PartitionedArrays([part])) for part in data])
            return [
                {**part, **name_outputs(own, output_cols)} if output_cols else {**part, PREDICTION: own}
                for part, own in zip(data, parts, strict=True)
            ]
        return outputs

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

    1. A path or URL, or an object of pyspark.sql, ray.data, pyarrow or pandas, or a list of pandas data frames, is a
       table; no engine is imported to see it.
    2. A list of dicts of numpy arrays under "x" and "y" is a list of partitions.
    3. A torch `Dataset` that can't be iterated is a data set of single samples.
    4. A `DataLoader`, or something that can be iterated and not called, is a loader.
    5. Something that can be called is a creator.

    Raises:
        UsageError: no rule fits.
    """
    if isinstance(data, str | Path) or is_from(data, "pyspark.sql", "ray.data", "pyarrow", "pandas"):
        return "table"
    if is_partitions(data):
        return "table" if is_frames(data) else "partitions"
    if isinstance(data, Dataset) and not hasattr(data, "__iter__"):
        return "data set"
    if isinstance(data, DataLoader) or (not callable(data) and hasattr(data, "__iter__")):
        return "loader"
    if callable(data):
        return "creator"
    raise UsageError(
        f"data is a {type(data).__name__}. Give a creator f(config, batch_size), a DataLoader or Dataset, a "
        "Spark or pandas DataFrame, a Ray Dataset, a pyarrow Table, a path of parquet files, or XShards."
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


def choose_launcher(backend: str | Launcher, workers: int, num_nodes: int, max_restarts: int | None) -> str | Launcher:
    """Return what starts the workers and restarts them."""
    if not isinstance(backend, str) and (isinstance(backend, type) or not hasattr(backend, "run")):
        raise UsageError(
            f"backend={backend!r} is not a launcher. Give the name of one: subprocess, spawn, ray or spark; or an "
            "object such as RayLauncher(cores_per_worker=4)."
        )
    if max_restarts is not None:
        max_restarts = check_count("max_restarts", max_restarts, least=0)
    name = backend if isinstance(backend, str) else backend.name
    if num_nodes > 1 and name not in ELSEWHERE:
        raise UsageError(
            f"num_nodes={num_nodes!r} is not possible with backend={name!r}, which starts its workers on this machine. "
            f"Use num_nodes=1, or one of: {', '.join(ELSEWHERE)}."
        )
    if not isinstance(backend, str):
        if max_restarts is not None:
            raise UsageError(f"max_restarts={max_restarts!r} and a configured launcher: give it restart=Restart(…).")
        return backend
    if workers == 1 and name not in ELSEWHERE:
        if max_restarts is not None:
            raise UsageError(
                f"max_restarts={max_restarts!r}: one worker runs in this process, which can't restart itself. "
                "Leave it out, or use workers_per_node=2 or more."
            )
        return backend
    return make_launcher(backend, max_restarts=_MAX_RESTARTS if max_restarts is None else max_restarts)


def read_levels() -> dict[str, tuple[int, bool]]:
    """Return the levels of this program's loggers, and whether they have a handler; "" is the root."""
    known: dict[str, Any] = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    loggers = {name: one for name, one in known.items() if isinstance(one, logging.Logger)}
    return {name: (one.level, bool(one.handlers)) for name, one in loggers.items() if one.level or one.handlers}


def run_with_levels(
    nano: TorchNano, levels: Mapping[str, tuple[int, bool]], function: Callable[..., T], *args: Any
) -> T:
    """Run one of the estimator's jobs in a worker, with the caller's log levels if it is another process.

    A new interpreter does not know them. A logger that has a handler there writes to stderr here, which the caller
    sees.
    """
    if nano.plan.strategy != "none" and not nano.is_external:
        for name, (level, shown) in levels.items():
            logger = logging.getLogger(name)
            if level != logging.NOTSET:
                logger.setLevel(level)
            if shown and not logger.handlers:
                handler = logging.StreamHandler(sys.stderr)
                handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
                logger.addHandler(handler)
    return function(nano, *args)
