"""Tables of Spark, Ray and pyarrow, written once as parquet where the workers can read them.

Rows come to this process one partition at a time and go straight into the file. Without `cache_dir`, workers on this
machine read a temporary file; workers elsewhere receive the file itself, which must then be small.
"""

import io
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from boxwright.accel.estimator.parquet import Stored, TableSource, check_columns, open_files
from boxwright.accel.estimator.partitions import PREDICTION, is_frames, name_outputs, split
from boxwright.accel.places import locate, open_arrow
from boxwright.core.errors import DataError, UsageError
from boxwright.core.packages import is_from

GROUP_ROWS = 1024
"""Rows of one row group: small, so that a shuffle mixes well and a worker reads little that it does not need."""
SHIP_LIMIT_BYTES = 64 * 2**20
"""The largest parquet file that is sent to workers with the job."""


class Tables:
    """The tables that one estimator was given; each is written once."""

    def __init__(self, *, elsewhere: bool, cache_dir: str | None, seed: int) -> None:
        self._elsewhere, self._cache_dir, self._seed = elsewhere, cache_dir, seed
        self._written: list[str] = []
        self._remove_folder: Callable[[], Any] | None = None
        # The table itself is kept too: as long as it lives, no other object has its id.
        self._known: dict[tuple[int, tuple[str, ...]], tuple[Any, Stored]] = {}

    def source(
        self,
        data: Any,
        batch_size: int,
        columns: tuple[Sequence[str] | None, Sequence[str] | None],
        *,
        shuffle: bool = False,
        whole_rows: bool = False,
        output_cols: Sequence[str] | None = None,
    ) -> TableSource:
        """Return a source of a table's batches.

        Args:
            data: a table, or a path or URL of parquet files.
            batch_size: rows of one worker's batch.
            columns: names of the features and of the labels.
            shuffle: whether training shuffles the rows.
            whole_rows: whether all columns are written, because the rows will be returned with predictions.
            output_cols: what the columns of predictions will be called.
        """
        features, labels = (_names(kind, value) for kind, value in zip(("feature", "label"), columns, strict=True))
        if not features:
            raise UsageError("A table needs feature_cols: the names of the columns that are the model's inputs.")
        if whole_rows:
            # The names of several outputs are known only afterwards; the name of one is known now.
            _check_free(output_cols or [PREDICTION], _column_names(data))
        wanted = () if whole_rows else (*features, *labels)
        return TableSource(
            stored=self.store(data, wanted),
            features=features,
            labels=labels,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=self._seed,
        )

    def store(self, data: Any, columns: Sequence[str]) -> Stored:
        """Return where the workers find these columns of a table (no names mean all), writing them once."""
        if isinstance(data, str | Path):
            return locate(data)
        key = (id(data), tuple(columns))
        if key not in self._known:
            self._known[key] = (data, self._write(data, columns))
        return self._known[key][1]

    def attach(self, data: Any, outputs: Any, output_cols: Sequence[str] | None = None) -> Any:
        """Return a table like `data` with the outputs as columns; those of a path come as a pyarrow Table."""
        if is_from(data, "pandas"):
            (frame,) = _attach_frames([data], outputs, output_cols)
            return frame
        if is_frames(data):
            return _attach_frames(data, outputs, output_cols)
        files = open_files(self.store(data, ()))
        table = pa.concat_tables([file.read() for file in files])
        named = name_outputs(outputs, output_cols)
        _check_free(list(named), table.column_names)
        for name, values in named.items():
            table = table.append_column(name, _to_column(values))
        if is_from(data, "pyspark.sql"):
            return data.sparkSession.createDataFrame(table)
        if is_from(data, "ray.data"):
            return import_module("ray.data").from_arrow(table)
        return table

    def close(self) -> None:
        """Remove what was written."""
        self._known.clear()
        for url in self._written:
            system, path = open_arrow(url)
            system.delete_file(path)
        self._written.clear()
        if self._remove_folder is not None:
            self._remove_folder()

    def _write(self, data: Any, columns: Sequence[str]) -> Stored:
        parts = read_parts(data, columns)
        if self._cache_dir is None and self._elsewhere:
            buffer = io.BytesIO()
            write_parts(parts, buffer, limit=SHIP_LIMIT_BYTES)
            return buffer.getvalue()
        if self._cache_dir is None:
            self._cache_dir = tempfile.mkdtemp(prefix="boxwright-tables-")
            self._remove_folder = weakref.finalize(self, shutil.rmtree, self._cache_dir, ignore_errors=True)
        url = locate(self._cache_dir, f"boxwright-{uuid4().hex}.parquet")
        system, path = open_arrow(url)
        system.create_dir(str(Path(path).parent), recursive=True)
        with system.open_output_stream(path) as sink:
            write_parts(parts, sink)
        self._written.append(url)
        return url


def write_parts(parts: Iterator[Any], sink: Any, *, limit: int | None = None) -> None:
    """Write tables as one parquet file of small row groups."""
    writer = None
    rows = 0
    rest: Any = None
    try:
        for part in parts:
            rows += part.num_rows
            writer = writer or pq.ParquetWriter(sink, part.schema)
            # Partitions are regrouped: row groups of a few rows would make reading slow.
            rest = part if rest is None else pa.concat_tables([rest, part])
            whole = rest.num_rows - rest.num_rows % GROUP_ROWS
            if whole:
                writer.write_table(rest.slice(0, whole), row_group_size=GROUP_ROWS)
                rest = rest.slice(whole)
            if limit is not None and sink.tell() > limit:
                raise UsageError(
                    f"The table is larger than the {limit >> 20} MiB that are sent to workers on other machines. Give "
                    "from_torch() a cache_dir: a folder or URL that all of them can read."
                )
        if writer is not None and rest is not None and rest.num_rows:
            writer.write_table(rest, row_group_size=GROUP_ROWS)
    finally:
        if writer is not None:
            writer.close()
    if not rows:
        raise DataError("The table has no rows.")


def read_parts(data: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield a table as pyarrow Tables, partition by partition; no names mean all columns."""
    check_columns(columns, _column_names(data))
    if isinstance(data, pa.Table):
        yield data.select(list(columns)) if columns else data
    elif is_from(data, "pandas"):
        chosen = data[list(columns)] if columns else data
        try:
            yield pa.Table.from_pandas(chosen, preserve_index=False)
        except pa.ArrowException as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise DataError(
                f"The pandas DataFrame can't be read: {reason}. Use columns of one kind: numbers, lists, text or bytes."
            ) from error
    elif is_frames(data):
        for frame in data:
            check_columns(_column_names(data[0]), _column_names(frame))
            yield from read_parts(frame, columns)
    elif is_from(data, "pyspark.sql"):
        chosen = data.select(*columns) if columns else data
        # One partition at a time, as Arrow: collecting would need memory for the whole table.
        for row in chosen.mapInArrow(_to_ipc, "part binary").toLocalIterator(prefetchPartitions=True):
            yield pa.ipc.open_stream(bytes(row["part"])).read_all()
    else:
        chosen = data.select_columns(list(columns)) if columns else data
        yield from chosen.iter_batches(batch_size=None, batch_format="pyarrow")


def _column_names(data: Any) -> Sequence[str]:
    names: Sequence[str]
    if isinstance(data, str | Path):
        names = open_files(locate(data))[0].schema_arrow.names
    elif isinstance(data, pa.Table):
        names = data.column_names
    elif is_from(data, "pandas"):
        names = [str(name) for name in data.columns]
    elif is_frames(data):
        names = _column_names(data[0])
    elif is_from(data, "pyspark.sql"):
        names = data.columns
    elif is_from(data, "ray.data"):
        names = data.columns() or []  # None for a data set without rows
    else:
        raise UsageError(
            f"A {type(data).__name__} is not a known kind of table. Give a Spark DataFrame or Ray Dataset."
        )
    return names


def _to_ipc(batches: Iterator[Any]) -> Iterator[Any]:
    """Turn record batches into rows of bytes; runs in Spark's workers."""
    import pyarrow

    for batch in batches:
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([sink.getvalue().to_pybytes()])], names=["part"])


def _check_free(names: Sequence[str], known: Sequence[str]) -> None:
    taken = [name for name in names if name in known]
    if taken:
        raise UsageError(
            f"The table has a column {taken[0]!r}, which is what the model's outputs would be called. Rename or drop "
            "it before predict()."
        )


def _names(kind: str, value: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(value, str):
        raise UsageError(f"{kind}_cols={value!r} is one name. Give a list: [{value!r}].")
    return tuple(value or ())


def _attach_frames(frames: Sequence[Any], outputs: Any, output_cols: Sequence[str] | None) -> list[Any]:
    """Return pandas data frames with their outputs as columns; the index is kept."""
    attached = []
    for frame, own in zip(frames, split(outputs, [len(frame) for frame in frames]), strict=True):
        named = name_outputs(own, output_cols)
        _check_free(list(named), _column_names(frame))
        attached.append(frame.assign(**{name: list(values) for name, values in named.items()}))
    return attached


def _to_column(values: Any) -> Any:
    """Return an array as a column of numbers, or of nested lists for more dimensions."""
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return pa.array(values)
    return pa.array(values.tolist() if isinstance(values, np.ndarray) else values)
