"""The images of a batch run: listed, cut into parts, fingerprinted and read."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from boxwright.accel.places import open_arrow
from boxwright.core.errors import DataError, UsageError
from boxwright.core.log import get_logger
from boxwright.tasks.batch.places import list_files
from boxwright.tasks.predict.inputs import Failure, Frame
from boxwright.vision.decode import IMAGE_SUFFIXES, decode_image

_log = get_logger(__name__)
_READERS, _FILES, _ROWS = 4, 8, 32
_SLICES = 32  # a row group is read again for each of its parts; warn above this number


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Rows `start` to `stop` of a row group of a parquet file; the group begins at row `first` of the file."""

    file: str
    group: int
    start: int
    stop: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of the images, as files or as rows of a table, whose results are one file."""

    number: int
    rows: int
    files: tuple[str, ...] = ()
    row_range: RowRange | None = None

    @property
    def name(self) -> str:
        """The file of the results."""
        return f"part-{self.number:05d}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlace:
    """Where the images are, and in which columns of a table; small enough to be sent with every task."""

    place: str
    column: str = ""
    path_column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All images of a run."""

    place: ImagePlace
    parts: tuple[Part, ...]
    fingerprint: str

    @property
    def count(self) -> int:
        """The number of images."""
        return sum(part.rows for part in self.parts)


def list_inputs(place: str, *, part_rows: int, column: str | None = None) -> Inputs:
    """Return the images at a path or URL, cut into parts of `part_rows` images, the same ones each time.

    Raises:
        DataError: there is nothing to read.
        UsageError: the column is not there, or it is not clear which one is meant.
    """
    system, path = open_arrow(place)
    try:
        kind = system.get_file_info(path).type
        files = [system.get_file_info(path)] if kind == pafs.FileType.File else list_files(system, path)
    except OSError as error:
        raise DataError(f"{place!r} can't be listed: {error}") from error
    if kind == pafs.FileType.NotFound:
        raise DataError(f"There is nothing at {place!r}. Check the path.")
    shown = [info for info in files if "/." not in (below := f"/{info.path[len(path) :]}") and "/_" not in below]
    images = [info for info in shown if _suffix(info.path) in IMAGE_SUFFIXES]
    tables = [info for info in shown if _suffix(info.path) == ".parquet"]
    if images and tables:
        raise DataError(
            f"{place!r} holds images ({len(images)}) and parquet files ({len(tables)}). Name a folder with one kind."
        )
    if tables:
        return _from_tables(system, place, path, tables, part_rows, column)
    if not images:
        raise DataError(f"{place!r} holds no image and no .parquet file.")
    if column is not None:
        raise UsageError(f"column={column!r} is for parquet files, and {place!r} holds images. Leave it out.")
    if kind == pafs.FileType.File:
        raise UsageError(f"{place!r} is one image. Name its folder, or leave the engine out.")
    digest = hashlib.sha256()
    for info in images:
        digest.update(f"{info.path[len(path) :]}\0{info.size}\0{info.mtime_ns}\n".encode())
    names = tuple(info.path[len(path) :].lstrip("/") for info in images)
    groups = [names[start : start + part_rows] for start in range(0, len(names), part_rows)]
    parts = tuple(Part(number=number, rows=len(group), files=group) for number, group in enumerate(groups))
    return Inputs(place=ImagePlace(place=place), parts=parts, fingerprint=digest.hexdigest())


def _from_tables(system: Any, place: str, path: str, files: list[Any], part_rows: int, column: str | None) -> Inputs:
    digest = hashlib.sha256()
    parts: list[Part] = []
    found: ImagePlace | None = None
    for info in files:
        name = info.path[len(path) :].lstrip("/")
        try:
            with system.open_input_file(info.path) as stream:
                file = pq.ParquetFile(stream)
                groups = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
                schema = file.schema_arrow
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{info.path!r} can't be read as parquet: {error}") from error
        if found is None:
            path_column = "path" if "path" in schema.names and _is_text(schema.field("path").type) else ""
            image_column = _find_column(schema, column)
            found = ImagePlace(place=place, column=image_column, path_column=path_column)
        for wanted, fits in ((found.column, _holds_bytes), (found.path_column, _is_text)):
            if wanted and (wanted not in schema.names or not fits(schema.field(wanted).type)):
                raise DataError(
                    f"{info.path!r} has no column {wanted!r} like that of the first file. Name a folder whose files "
                    "are alike."
                )
        digest.update(f"{name}\0{info.size}\0{info.mtime_ns}\0{groups}\n".encode())
        if max(groups, default=0) > _SLICES * part_rows:
            _log.warning(
                "%s has %d rows in one row group, which is read again for each part of %d rows. Write it with smaller "
                "row groups, or use larger parts.", name or path, max(groups), part_rows,
            )  # fmt: skip
        first = 0
        for group, rows in enumerate(groups):
            for start in range(0, rows, part_rows):
                stop = min(start + part_rows, rows)
                row_range = RowRange(file=name, group=group, start=start, stop=stop, first=first)
                parts.append(Part(number=len(parts), rows=stop - start, row_range=row_range))
            first += rows
    if found is None or not parts:
        raise DataError(f"The parquet files of {place!r} have no rows.")
    return Inputs(place=found, parts=tuple(parts), fingerprint=digest.hexdigest())


def _find_column(schema: Any, wanted: str | None) -> str:
    """Return the column of encoded images: bytes, or structs with a field `bytes`."""
    fits = [field.name for field in schema if _holds_bytes(field.type)]
    if wanted is not None:
        if wanted not in fits:
            raise UsageError(f"column={wanted!r} holds no images. Columns that may: {', '.join(fits) or 'none'}.")
        return wanted
    if len(fits) != 1:
        raise UsageError(
            f"Which column holds the images? {len(fits)} of {schema.names!r} have bytes"
            f"{': ' + ', '.join(fits) + '. Say which with column (--column NAME)' if fits else ''}."
        )
    return str(fits[0])


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" and _holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _suffix(path: str) -> str:
    return "." + path.rpartition(".")[2].lower()


def read_part(place: ImagePlace, part: Part) -> Iterator[Frame | Failure]:
    """Yield the images of a part in order, with a `Failure` for each that can't be read, also in a damaged table.

    A few threads fetch files ahead, so that the network does not wait for a slow store.

    Raises:
        OSError: the store does not answer; the images may be good.
    """
    rows = _read_files(place, part) if part.row_range is None else _read_rows(place, part.row_range)
    for name, data in rows:
        try:
            if isinstance(data, DataError):
                raise data
            yield Frame(source=name, image=decode_image(data, name))
        except DataError as error:
            yield Failure(source=name, error=error)


def _read_files(place: ImagePlace, part: Part) -> Iterator[tuple[str, bytes | DataError]]:
    system, root = open_arrow(place.place)

    def fetch(name: str) -> bytes | DataError:
        try:
            with system.open_input_stream(f"{root}/{name}") as stream:
                data: bytes = stream.read()
                return data
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            return DataError(f"Cannot read image {f'{place.place}/{name}'!r}: {error}.")

    for name, data in zip(part.files, _ahead(fetch, part.files), strict=True):
        yield f"{place.place}/{name}", data


def _ahead(fetch: Callable[[str], bytes | DataError], names: Sequence[str]) -> Iterator[bytes | DataError]:
    # Several files per task, so that threads switch less often when images are small.
    waiting: deque[Future[list[bytes | DataError]]] = deque()
    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(0, len(names), _FILES):
            waiting.append(pool.submit(lambda group: [fetch(name) for name in group], names[start : start + _FILES]))
            if len(waiting) > _READERS:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _read_rows(place: ImagePlace, rows: RowRange) -> Iterator[tuple[str, bytes | DataError]]:
    system, root = open_arrow(place.place)
    where = f"{root}/{rows.file}" if rows.file else root
    table = f"{place.place}/{rows.file}".rstrip("/")
    columns = [place.column, *([place.path_column] if place.path_column else [])]
    at = rows.start
    try:
        with system.open_input_file(where) as stream:
            seen = 0
            for chunk in pq.ParquetFile(stream).iter_batches(_ROWS, row_groups=[rows.group], columns=columns):
                first, last = max(seen, rows.start), min(seen + len(chunk), rows.stop)
                for row in chunk.slice(first - seen, max(0, last - first)).to_pylist():
                    yield _row(place, table, rows.first + at, row)
                    at += 1
                seen += len(chunk)
                if seen >= rows.stop:
                    break
        reason = "the table has fewer rows than when it was listed"
    except (OSError, pa.ArrowException, KeyError) as error:
        # A damaged local file; if a store does not answer, pyarrow raises the same kind of error.
        is_damaged = isinstance(system, pafs.LocalFileSystem) and getattr(error, "errno", None) is None
        if isinstance(error, OSError) and not is_damaged:
            raise
        reason = str(error).partition("\n")[0]
    for number in range(at, rows.stop):
        name = f"{table}#{rows.first + number}"
        yield name, DataError(f"Cannot read image {name!r}: {reason}.")


def _row(place: ImagePlace, file: str, number: int, row: dict[str, Any]) -> tuple[str, bytes | DataError]:
    value = row[place.column]
    inner = value if isinstance(value, dict) else {"bytes": value}
    name = row.get(place.path_column) or inner.get("path") or f"{file}#{number}"
    data = inner["bytes"]
    return str(name), data if data is not None else DataError(f"Cannot read image {name!r}: the row has no bytes.")
