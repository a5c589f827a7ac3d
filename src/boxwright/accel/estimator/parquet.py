"""Parquet files as workers read them: which rows, row group by row group, columns turned into tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from boxwright.accel.loaders import NanoLoader, move
from boxwright.accel.nano import TorchNano
from boxwright.accel.places import open_arrow
from boxwright.core.errors import DataError, UsageError

WINDOW = 16
"""How many row groups are mixed with each other at a time; as many are held in memory."""

Rows = NDArray[np.int64]
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


Stored = str | bytes
"""A table on its way to the workers: a file, folder or URL that they can all read, or the bytes of the file itself."""


def open_files(stored: Stored) -> list[Any]:
    """Return the parquet files, in the order of their names."""
    if isinstance(stored, bytes):
        return [pq.ParquetFile(pa.BufferReader(stored))]
    try:
        system, path = open_arrow(stored)
        paths = [path]
        if system.get_file_info(path).type == pafs.FileType.Directory:
            inside = system.get_file_info(pafs.FileSelector(path, recursive=True))
            paths = sorted(info.path for info in inside if info.path.endswith(".parquet"))
        files = [pq.ParquetFile(system.open_input_file(one)) for one in paths]
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"The table {stored!r} can't be read here: {error}. Every worker must be able to read it: use a shared "
            "folder or a URL."
        ) from error
    if not files:
        raise DataError(f"The folder {stored!r} holds no .parquet file.")
    return files


class TableReader:
    """Rows of parquet files by number; the row groups used last stay in memory."""

    def __init__(self, stored: Stored, columns: Sequence[str]) -> None:
        self._files = open_files(stored)
        known = self._files[0].schema_arrow.names
        check_columns(columns, known)
        self._columns = list(columns)
        self._groups = [(file, g) for file in self._files for g in range(file.num_row_groups)]
        self.group_sizes = [file.metadata.row_group(g).num_rows for file, g in self._groups]
        self._starts = np.cumsum([0, *self.group_sizes])
        self._read_group = lru_cache(WINDOW + 1)(self._load_group)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, rows: Rows) -> dict[str, Any]:
        """Return the columns of these rows, in their order, as tensors; text and bytes as lists."""
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        parts, places = [], []
        for group in np.unique(groups):
            at = np.flatnonzero(groups == group)
            parts.append(self._read_group(int(group)).take(pa.array(rows[at] - self._starts[group])))
            places.append(at)
        back = np.argsort(np.concatenate(places))
        table = pa.concat_tables(parts).take(pa.array(back))
        return {name: to_tensor(name, table[name]) for name in self._columns}

    def _load_group(self, group: int) -> Any:
        file, number = self._groups[group]
        return file.read_row_group(number, columns=self._columns)


def check_columns(columns: Sequence[str], known: Sequence[str]) -> None:
    """Check that a table has these columns."""
    missing = [name for name in columns if name not in known]
    if missing:
        raise UsageError(f"The table has no column {missing[0]!r}. It has: {', '.join(known)}.")


def to_tensor(name: str, column: Any) -> Any:
    """Return a column as a tensor: numbers (N,), lists of numbers (N, length); text and bytes as a list.

    A column of maps becomes a dict with such a tensor for each key.

    Floats become float32, integers int64.
    """
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ChunkedArray):  # combine_chunks leaves one where there was none
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if column.null_count:
        raise DataError(f"The column {name!r} has {column.null_count} missing values. Fill or leave out these rows.")
    kind, types = column.type, pa.types
    if any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string, *_BYTES)):
        return column.to_pylist()
    if types.is_map(kind):
        return _split_maps(name, column)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        flat = to_tensor(name, column.flatten())
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) > 1:
            raise DataError(
                f"The lists in column {name!r} have different lengths ({min(lengths)} to {max(lengths)}), so they "
                "can't become a tensor. Make them equally long."
            )
        if isinstance(flat, list):
            raise DataError(f"The column {name!r} holds lists of text, which can't become a tensor.")
        return flat.reshape(len(column), *([lengths[0]] if lengths else [0]), *flat.shape[1:])
    for is_kind, dtype in ((types.is_boolean, np.bool_), (types.is_floating, np.float32), (types.is_integer, np.int64)):
        if is_kind(kind):
            return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype(dtype))
    raise DataError(
        f"The column {name!r} has the type {kind}, which can't become a tensor. Use numbers, lists of numbers, text or "
        "bytes; a Spark ML vector becomes a list by vector_to_array()."
    )


def _split_maps(name: str, column: Any) -> dict[str, Any]:
    """Return a column of maps as a dict of columns; all rows must have the same keys."""
    rows = [dict(row) for row in column.to_pylist()]
    keys = list(rows[0]) if rows else []
    if any(row.keys() != set(keys) for row in rows):
        known = sorted({str(key) for row in rows for key in row})
        raise DataError(
            f"The maps in column {name!r} do not all have the keys {', '.join(known)}, so they can't become tensors. "
            "Give all rows the same keys."
        )
    item = column.type.item_type
    return {str(key): to_tensor(f"{name}[{key}]", pa.array([row[key] for row in rows], item)) for key in keys}


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """Batches of a stored table: the features, then the labels (one, or a tuple of several).

    Attributes:
        stored: where the table is.
        features: the columns that are the model's inputs.
        labels: the columns that are its targets.
        batch_size: of one worker.
        shuffle: whether training sees the rows in a new order each epoch.
        seed: of that order.
    """

    stored: Stored = field(repr=False)
    features: tuple[str, ...]
    labels: tuple[str, ...]
    batch_size: int
    shuffle: bool
    seed: int

    def open_training(self, nano: TorchNano, config: dict[str, Any]) -> NanoLoader:  # noqa: ARG002
        """Return this worker's share of each epoch."""
        return NanoLoader(_TrainingBatches(self, nano.global_rank, nano.world_size), nano.device)

    def open_whole(self, nano: TorchNano, config: dict[str, Any]) -> Iterator[tuple[int, Any]]:  # noqa: ARG002
        """Return this worker's numbered batches; each row comes once."""
        reader = self.open_reader()
        for number, rows in deal_in_order(len(reader), self.batch_size, nano.global_rank, nano.world_size):
            yield number, move(self.make_batch(reader.read(rows)), nano.device)

    def open_reader(self) -> TableReader:
        """Return a reader of the columns that make up a batch."""
        return TableReader(self.stored, [*self.features, *self.labels])

    def make_batch(self, columns: dict[str, Any]) -> tuple[Any, ...]:
        """Return the columns in the order of a batch."""
        inputs = tuple(columns[name] for name in self.features)
        if not self.labels:
            return inputs
        targets = tuple(columns[name] for name in self.labels)
        return (*inputs, targets[0] if len(targets) == 1 else targets)


class _TrainingBatches:
    """One worker's batches of each epoch."""

    def __init__(self, source: TableSource, rank: int, workers: int) -> None:
        self._source, self._rank, self._workers = source, rank, workers
        self._reader = source.open_reader()
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return sum(1 for _ in self._rows())

    def __iter__(self) -> Iterator[Any]:
        for rows in self._rows():
            yield self._source.make_batch(self._reader.read(rows))

    def _rows(self) -> Iterator[Rows]:
        source = self._source
        if not source.shuffle:
            return share_in_order(len(self._reader), source.batch_size, self._rank, self._workers)
        order = order_rows(self._reader.group_sizes, seed=source.seed, epoch=self._epoch)
        return share_shuffled(order, source.batch_size, self._rank, self._workers)


def order_rows(group_sizes: Sequence[int], *, seed: int, epoch: int) -> Rows:
    """Return all row numbers shuffled: the groups first, then the rows within each 16 groups.

    A table of up to 16 row groups is shuffled completely. Of a larger one, few groups are in memory at a time.

    Example:
        >>> sorted(order_rows([3, 2], seed=0, epoch=1).tolist())
        [0, 1, 2, 3, 4]
    """
    random = np.random.default_rng([seed, epoch])
    starts = np.cumsum([0, *group_sizes])
    groups = random.permutation(len(group_sizes))
    windows = []
    for first in range(0, len(groups), WINDOW):
        window = [np.arange(starts[g], starts[g + 1], dtype=np.int64) for g in groups[first : first + WINDOW]]
        windows.append(random.permutation(np.concatenate(window)))
    return np.concatenate(windows) if windows else np.zeros(0, np.int64)


def share_shuffled(order: Rows, batch: int, rank: int, workers: int) -> Iterator[Rows]:
    """Yield a worker's batches of a shuffled epoch: one stretch per worker, all of one length, so few groups are read.

    If the rows can't be divided evenly, the first ones come again.
    """
    each = -(-len(order) // workers)
    whole = np.resize(order, each * workers)  # begins again at its end
    share = whole[rank * each : (rank + 1) * each]
    return (share[start : start + batch] for start in range(0, each, batch))


def share_in_order(count: int, batch: int, rank: int, workers: int) -> Iterator[Rows]:
    """Yield a worker's batches of an unshuffled epoch: its part of the rows of each step.

    A step's rows are the same whatever the number of workers. If those of the last step can't be divided evenly, some
    of the first ones come again.
    """
    for start in range(0, count, batch * workers):
        step = np.arange(start, min(start + batch * workers, count), dtype=np.int64)
        each = -(-len(step) // workers)
        missing = each * workers - len(step)
        padded = np.concatenate([step, np.resize(np.arange(count, dtype=np.int64), missing)])
        yield padded[rank * each : (rank + 1) * each]


def deal_in_order(count: int, batch: int, rank: int, workers: int) -> Iterator[tuple[int, Rows]]:
    """Yield a worker's numbered batches for scoring: consecutive whole batches; over all workers each row comes once.

    Example:
        >>> [(number, rows.tolist()) for number, rows in deal_in_order(5, 2, rank=1, workers=2)]
        [(2, [4])]
    """
    batches = -(-count // batch)
    first, last = ((batches * r + workers - 1) // workers for r in (rank, rank + 1))
    for number in range(first, last):
        yield number, np.arange(number * batch, min((number + 1) * batch, count), dtype=np.int64)
