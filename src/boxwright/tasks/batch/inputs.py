"""The images of a batch run: how they are listed, cut into parts, fingerprinted and read."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from boxwright.core.errors import DataError, UsageError
from boxwright.core.log import get_logger
from boxwright.tasks.batch.places import list_files, open_place
from boxwright.tasks.predict.inputs import Failure, Frame
from boxwright.vision.decode import IMAGE_SUFFIXES, decode_image

_log = get_logger(__name__)
_READERS, _FILES, _ROWS = 4, 8, 32
_SLICES = 32  # a row group is read anew for each part of it; more than so many deserve a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows `start` to `stop` of a row group of a parquet file; the group begins at row `first` of the file."""

    file: str
    group: int
    start: int
    stop: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The unit of work and of the results: so many images, as files or as a piece of a table."""

    number: int
    rows: int
    files: tuple[str, ...] = ()
    piece: Piece | None = None

    @property
    def name(self) -> str:
        """The file of the results."""
        return f"part-{self.number:05d}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the images are, and in what form; small enough to travel with every task."""

    place: str
    kind: Literal["images", "parquet"]
    column: str = ""
    path_column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All images of a run."""

    source: Source
    parts: tuple[Part, ...]
    fingerprint: str

    @property
    def count(self) -> int:
        """How many images there are."""
        return sum(part.rows for part in self.parts)


def list_inputs(place: str, *, part_rows: int, column: str | None = None) -> Inputs:
    """Return the images of a folder, a parquet file or a URL, cut into parts, the same ones each time.

    Args:
        place: a settled path or URL.
        part_rows: how many images a part has.
        column: the column of a parquet file that holds the images.

    Raises:
        DataError: there is nothing to read.
        UsageError: the column is not there, or it is not clear which one is meant.
    """
    system, path = open_place(place)
    try:
        kind = system.get_file_info(path).type
        files = [system.get_file_info(path)] if kind == pafs.FileType.File else list_files(system, path)
    except OSError as error:
        raise DataError(f"{place!r} can't be listed: {error}") from error
    if kind == pafs.FileType.NotFound:
        raise DataError(f"There is nothing at {place!r}. Check the path.")
    shown = [info for info in files if not _is_hidden(info.path[len(path) :])]
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
    names = [info.path[len(path) :].lstrip("/") for info in images]
    parts = [Part(number=number, rows=len(some), files=some) for number, some in enumerate(_cut(names, part_rows))]
    return Inputs(source=Source(place=place, kind="images"), parts=tuple(parts), fingerprint=digest.hexdigest())


def _cut(names: list[str], rows: int) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(names), rows):
        yield tuple(names[start : start + rows])


def _from_tables(system: Any, place: str, path: str, files: list[Any], part_rows: int, column: str | None) -> Inputs:
    digest = hashlib.sha256()
    parts: list[Part] = []
    source: Source | None = None
    for info in files:
        name = info.path[len(path) :].lstrip("/")
        try:
            with system.open_input_file(info.path) as stream:
                file = pq.ParquetFile(stream)
                groups = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
                schema = file.schema_arrow
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{info.path!r} can't be read as parquet: {error}") from error
        if source is None:
            source = Source(
                place=place, kind="parquet", column=_find_column(schema, column), path_column=_find_path_column(schema)
            )
        _check_columns(info.path, schema, source)
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
                piece = Piece(file=name, group=group, start=start, stop=stop, first=first)
                parts.append(Part(number=len(parts), rows=stop - start, piece=piece))
            first += rows
    if source is None or not parts:
        raise DataError(f"The parquet files of {place!r} have no rows.")
    return Inputs(source=source, parts=tuple(parts), fingerprint=digest.hexdigest())


def _find_column(schema: Any, wanted: str | None) -> str:
    """Return the column of the encoded images: of bytes, or of structs with `bytes` in them."""
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


def _check_columns(file: str, schema: Any, source: Source) -> None:
    """Refuse a file that is not like the first one."""
    for name, fits in ((source.column, _holds_bytes), (source.path_column, _is_text)):
        if name and (name not in schema.names or not fits(schema.field(name).type)):
            raise DataError(
                f"{file!r} has no column {name!r} like that of the first file. Name a folder whose files are alike."
            )


def _find_path_column(schema: Any) -> str:
    field = schema.field("path") if "path" in schema.names else None
    return "path" if field is not None and _is_text(field.type) else ""


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" and _holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_hidden(relative: str) -> bool:
    return any(word.startswith((".", "_")) for word in relative.split("/"))


def _suffix(path: str) -> str:
    return "." + path.rpartition(".")[2].lower()


def read_part(source: Source, part: Part) -> Iterator[Frame | Failure]:
    """Yield the images of a part in order; one that can't be read comes as a `Failure`, as do rows of a damaged table.

    Files are fetched a little ahead by a few threads, so that a slow store does not keep the network waiting.

    Raises:
        OSError: the store does not answer; that says nothing about the images.
    """
    rows = _read_files(source, part) if part.piece is None else _read_rows(source, part.piece)
    for name, data in rows:
        try:
            if isinstance(data, DataError):
                raise data
            yield Frame(source=name, image=decode_image(data, name))
        except DataError as error:
            yield Failure(source=name, error=error)


def _read_files(source: Source, part: Part) -> Iterator[tuple[str, bytes | DataError]]:
    system, root = open_place(source.place)

    def fetch(name: str) -> bytes | DataError:
        try:
            with system.open_input_stream(f"{root}/{name}") as stream:
                data: bytes = stream.read()
                return data
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            return DataError(f"Cannot read image {f'{source.place}/{name}'!r}: {error}.")

    for name, data in zip(part.files, _ahead(fetch, part.files), strict=True):
        yield f"{source.place}/{name}", data


def _ahead(fetch: Callable[[str], bytes | DataError], names: Sequence[str]) -> Iterator[bytes | DataError]:
    # Several files a turn, so that threads change places less often where images are small.
    turns = (names[start : start + _FILES] for start in range(0, len(names), _FILES))
    waiting: deque[Future[list[bytes | DataError]]] = deque()
    with ThreadPoolExecutor(_READERS) as pool:
        for turn in turns:
            waiting.append(pool.submit(lambda some: [fetch(name) for name in some], turn))
            if len(waiting) > _READERS:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _read_rows(source: Source, piece: Piece) -> Iterator[tuple[str, bytes | DataError]]:
    system, root = open_place(source.place)
    where = f"{root}/{piece.file}" if piece.file else root
    table = f"{source.place}/{piece.file}".rstrip("/")
    columns = [source.column, *([source.path_column] if source.path_column else [])]
    at = piece.start
    try:
        with system.open_input_file(where) as stream:
            seen = 0
            for some in pq.ParquetFile(stream).iter_batches(_ROWS, row_groups=[piece.group], columns=columns):
                first, last = max(seen, piece.start), min(seen + len(some), piece.stop)
                for row in some.slice(first - seen, max(0, last - first)).to_pylist():
                    yield _row(source, table, piece.first + at, row)
                    at += 1
                seen += len(some)
                if seen >= piece.stop:
                    break
        reason = "the table has fewer rows than when it was listed"
    except (OSError, pa.ArrowException, KeyError) as error:
        if isinstance(error, OSError) and not _is_damage(system, error):
            raise
        reason = str(error).partition("\n")[0]
    for number in range(at, piece.stop):
        name = f"{table}#{piece.first + number}"
        yield name, DataError(f"Cannot read image {name!r}: {reason}.")


def _is_damage(system: Any, error: OSError) -> bool:
    """Whether what was read is no table; pyarrow says so by the same kind of error as a store that does not answer."""
    return isinstance(system, pafs.LocalFileSystem) and error.errno is None


def _row(source: Source, file: str, number: int, row: dict[str, Any]) -> tuple[str, bytes | DataError]:
    value = row[source.column]
    inner = value if isinstance(value, dict) else {"bytes": value}
    name = row.get(source.path_column) or inner.get("path") or f"{file}#{number}"
    data = inner["bytes"]
    return str(name), data if data is not None else DataError(f"Cannot read image {name!r}: the row has no bytes.")
