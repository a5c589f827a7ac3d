"""Parquet files, as workers read them: row group by row group, columns turned into tensors."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import torch

from boxwright.accel.estimator.rows import WINDOW, Rows, deal_in_order, order_rows, share_in_order, share_shuffled
from boxwright.accel.loaders import NanoLoader, move
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import DataError, UsageError


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A table on its way to the workers: a place they can all read, or the file itself.

    Attributes:
        url: a parquet file, a folder of them, or a URL of either; "" where the file travels.
        file: the bytes of a parquet file.
    """

    url: str = ""
    file: bytes = field(default=b"", repr=False)

    def open(self) -> list[Any]:
        """Return the parquet files, in the order of their names.

        Raises:
            DataError: nothing can be read there.
        """
        if not self.url:
            return [pq.ParquetFile(pa.BufferReader(self.file))]
        try:
            system, path = find_file_system(self.url)
            info = system.get_file_info(path)
            if info.type == pafs.FileType.Directory:
                inside = system.get_file_info(pafs.FileSelector(path, recursive=True))
                paths = sorted(i.path for i in inside if i.path.endswith(".parquet"))
            else:
                paths = [path]
            files = [pq.ParquetFile(system.open_input_file(one)) for one in paths]
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"The table {self.url!r} can't be read here: {error}. Every worker must be able to read it: use a "
                "shared folder or a URL."
            ) from error
        if not files:
            raise DataError(f"The folder {self.url!r} holds no .parquet file.")
        return files


def find_file_system(url: str) -> tuple[Any, str]:
    """Return pyarrow's file system of a path or URL, and the path on it; fsspec serves what pyarrow does not know."""
    if "://" not in url:
        return pafs.LocalFileSystem(), str(Path(url).absolute())
    try:
        system, path = pafs.FileSystem.from_uri(url)
    except pa.ArrowInvalid:
        import fsspec  # torch brings it

        other, path = fsspec.core.url_to_fs(url)
        return pafs.PyFileSystem(pafs.FSSpecHandler(other)), path
    return system, path


class TableReader:
    """Rows of parquet files by number; the row groups read last are kept."""

    def __init__(self, stored: Stored, columns: Sequence[str]) -> None:
        self._files = stored.open()
        known = self._files[0].schema_arrow.names
        missing = [name for name in columns if name not in known]
        if missing:
            raise UsageError(f"The table has no column {missing[0]!r}. It has: {', '.join(known)}.")
        self._columns = list(columns)
        self._groups = [(file, g) for file in self._files for g in range(file.num_row_groups)]
        self.group_sizes = [file.metadata.row_group(g).num_rows for file, g in self._groups]
        self._starts = np.cumsum([0, *self.group_sizes])
        self._kept: OrderedDict[int, Any] = OrderedDict()

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

    def _read_group(self, group: int) -> Any:
        if group not in self._kept:
            file, number = self._groups[group]
            self._kept[group] = file.read_row_group(number, columns=self._columns)
            while len(self._kept) > WINDOW + 1:
                self._kept.popitem(last=False)
        self._kept.move_to_end(group)
        return self._kept[group]


def to_tensor(name: str, column: Any) -> Any:
    """Return a column as a tensor: numbers (N,), lists of numbers (N, length); text and bytes as a list.

    Floats become float32, whole numbers int64.

    Raises:
        DataError: a value is missing, the lists have different lengths, or the type is another.
    """
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ChunkedArray):  # combine_chunks leaves one where there was none
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if column.null_count:
        raise DataError(f"The column {name!r} has {column.null_count} missing values. Fill or leave out these rows.")
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or _is_large(kind):
        return column.to_pylist()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        flat = to_tensor(name, column.flatten())
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) > 1:
            raise DataError(
                f"The lists in column {name!r} have different lengths ({min(lengths)} to {max(lengths)}), so they are "
                "no tensor. Make them as long as each other."
            )
        if isinstance(flat, list):
            raise DataError(f"The column {name!r} holds lists of text, which are no tensor.")
        return flat.reshape(len(column), *([lengths[0]] if lengths else [0]), *flat.shape[1:])
    if pa.types.is_boolean(kind):
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
    if pa.types.is_floating(kind):
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype(np.float32))
    if pa.types.is_integer(kind):
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype(np.int64))
    raise DataError(
        f"The column {name!r} is of type {kind}, which is no tensor. Use numbers, lists of numbers, text or bytes; "
        "a Spark ML vector becomes a list by vector_to_array()."
    )


def _is_large(kind: Any) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


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

    stored: Stored
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
    """One worker's batches, anew for each epoch."""

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
