"""What a COCO json says, as packed arrays: `read_labels`."""

import itertools
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import area_xyxy, xywh_to_xyxy
from boxwright.core.errors import DataError
from boxwright.core.files import read_bytes, require_file
from boxwright.data.formats.json_pieces import cut_list
from boxwright.data.records import Records, pack_paths

KEYS = ("images", "annotations", "categories")
"""The lists of a COCO json."""

NEGATIVE = "negative-area"
"""The rule that matters to the linter alone."""

_BOM = b"\xef\xbb\xbf"
_MOST_SHOWN = 80
_BIG = 1e12  # leaves room for sums and areas in float32


class Flaw(NamedTuple):
    """Something wrong in a json.

    Attributes:
        rule: the linter's name for it.
        message: what is wrong, a sentence.
        image: the position of the image that it is about, None for none that the set has.
        name: the image's name if the set does not have it.
    """

    rule: str
    message: str
    image: int | None = None
    name: str | None = None


@dataclass(slots=True)
class CocoLabels:
    """The content of a json.

    Attributes:
        records: all images that it lists, whether they exist or not; the root is empty.
        images: what is wrong with entries of images.
        labels: what is wrong with annotations and sizes.
    """

    records: Records
    images: list[Flaw] = field(default_factory=list)
    labels: list[Flaw] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.images and not self.labels


class _Image(msgspec.Struct, gc=False):
    id: int
    file_name: str
    height: int | None = None
    width: int | None = None


class _Annotation(msgspec.Struct, gc=False):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    area: float | None = None
    iscrowd: int | None = None


class _Top(msgspec.Struct):
    images: msgspec.Raw
    annotations: msgspec.Raw
    categories: msgspec.Raw


class _Columns(NamedTuple):
    """The usable annotations of a part of the json, with the position of each one's image."""

    owners: NDArray[np.int64]
    class_ids: NDArray[np.int32]
    boxes_xyxy: NDArray[np.float32]
    areas: NDArray[np.float32]
    crowd: NDArray[np.bool_]


_Rows: TypeAlias = list[dict[str, Any]]

_images_decoder = msgspec.json.Decoder(list[_Image])
_annotations_decoder = msgspec.json.Decoder(list[_Annotation])


def read_labels(file: Path) -> CocoLabels:
    """Return the images and boxes that a COCO json lists; what can't be used is left out and described.

    A typed decoder skips the fields that are not used, and takes the annotations piece by piece. A piece in which it
    finds something unusual is decoded again without types, to say what is wrong and to use what is unusual but right.

    Raises:
        DataError: the file is malformed, or lists no images or no categories.
    """
    where = f"{str(file)!r}:"
    try:
        require_file(file)
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        data = memoryview(mapped)
        top = msgspec.json.decode(data[len(_BOM) :] if data[: len(_BOM)] == _BOM else data, type=_Top)
        try:
            listed: list[_Image] | _Rows = _images_decoder.decode(top.images)
        except msgspec.ValidationError:
            listed = _list_of_rows(json.loads(bytes(top.images)))
        categories = _list_of_rows(json.loads(bytes(top.categories)))
        if listed and categories:
            # What has been read stays in the system's cache, but no longer counts as memory of this process.
            pieces = partial(cut_list, memoryview(top.annotations), done=partial(mapped.madvise, mmap.MADV_DONTNEED))
            return _collect(listed, pieces, categories, where)
    except (OSError, ValueError, RecursionError):
        pass  # reading it again, whole and without types, says what is wrong
    listed, annotations, categories = _load(file)
    return _collect(listed, annotations, categories, where)


def _collect(
    listed: "list[_Image] | _Rows",
    annotations: Callable[..., Iterator[_Columns]] | _Rows,
    categories: _Rows,
    where: str,
) -> CocoLabels:
    parse = _Parse(where, categories)
    parse.take_images(listed)
    if not parse.names:
        nothing = Records.from_lists(root="", paths=[], boxes_xyxy=[], class_ids=[], names=[])
        return CocoLabels(records=nothing, images=parse.of_images)
    taken = [parse.take_rows(annotations)] if isinstance(annotations, list) else [*annotations(parse.take)]
    columns = _Columns(*map(np.concatenate, zip(*taken, strict=True))) if taken else parse.take_rows([])
    order = np.argsort(columns.owners, kind="stable")
    path_bytes, path_offsets = pack_paths(parse.names)
    records = Records(
        root=Path(),
        path_bytes=path_bytes,
        path_offsets=path_offsets,
        image_ids=parse.image_ids,
        sizes_hw=parse.sizes_hw,
        boxes_xyxy=columns.boxes_xyxy[order],
        class_ids=columns.class_ids[order],
        crowd=columns.crowd[order],
        areas=columns.areas[order],
        offsets=np.searchsorted(columns.owners[order], np.arange(len(parse.names) + 1)),
        names=tuple(str(c["name"]) for c in sorted(categories, key=lambda c: int(c["id"]))),
        category_ids=tuple(parse.category_ids.tolist()),
    )
    return CocoLabels(records=records, images=parse.of_images, labels=[*parse.of_boxes, *parse.of_sizes])


class _Parse:
    """What is known of a json while its annotations are taken, and what was found wrong so far."""

    def __init__(self, where: str, categories: _Rows) -> None:
        self._where = where
        self.category_ids = np.array(_category_ids(categories, where), np.int64)
        self.names: list[str] = []
        self.image_ids, self.sizes_hw = np.zeros(0, np.int64), np.zeros((0, 2), np.int32)
        self.of_images: list[Flaw] = []
        self.of_boxes: list[Flaw] = []
        self.of_sizes: list[Flaw] = []

    def take_images(self, listed: list[_Image] | _Rows) -> None:
        """Set names, ids and sizes of the usable images."""
        rows: list[tuple[Any, Any, Any, Any]] = [_image_row(image) for image in listed]
        index: set[int] = set()
        sizes = []
        for image_id, name, height, width in rows:
            if not _is_id(image_id):
                problem = f"the image id {image_id!r} is not an integer"
            elif not name:
                problem = f"image {image_id} has no 'file_name'"
            elif image_id in index:
                problem = f"several images have the id {image_id}"
            else:
                index.add(image_id)
                self.names.append(_file_name(name))
                sizes.append((image_id, height or 0, width or 0))
                continue
            self.of_images.append(Flaw("bad-label", f"{self._where} {problem}.", name=name and str(name)))
        self.image_ids = np.array([row[0] for row in sizes], np.int64)
        self._order = np.argsort(self.image_ids)
        self._sorted_ids = self.image_ids[self._order]
        self.sizes_hw = np.zeros((len(sizes), 2), np.int32)
        for n, (_, *size) in enumerate(sizes):
            try:
                self.sizes_hw[n] = size
            except (ValueError, TypeError, OverflowError):
                message = (
                    f"{self._where} height and width of {self.names[n]!r} are {tuple(size)!r} where whole numbers "
                    "should be."
                )
                self.of_sizes.append(Flaw("bad-label", message, n))

    def take(self, piece: bytes) -> _Columns:
        """Return the usable annotations of a json list.

        Raises:
            ValueError: it is not valid json, or not a list of objects.
        """
        try:
            rows = _annotations_decoder.decode(piece)
            found = self._columns(rows)
        except (msgspec.DecodeError, OverflowError):
            found = None
        return self.take_rows(_list_of_rows(json.loads(piece))) if found is None else found

    def _columns(self, rows: list[_Annotation]) -> _Columns | None:
        """Return typed annotations as columns; None if something is wrong with one of them."""
        count = len(rows)
        owners, known = _look_up(np.fromiter((a.image_id for a in rows), np.int64, count), self._sorted_ids)
        class_ids, named = _look_up(np.fromiter((a.category_id for a in rows), np.int64, count), self.category_ids)
        corners = itertools.chain.from_iterable([a.bbox for a in rows])
        boxes_xywh = np.fromiter(corners, np.float64, 4 * count).reshape(-1, 4)
        given = np.fromiter((math.nan if a.area is None else a.area for a in rows), np.float64, count)
        crowd = np.fromiter((a.iscrowd or 0 for a in rows), np.int64, count)
        if not (known.all() and named.all() and ((crowd == 0) | (crowd == 1)).all()):
            return None
        if not (np.abs(boxes_xywh) < _BIG).all():
            return None
        boxes_xyxy = xywh_to_xyxy(boxes_xywh).astype(np.float32)
        areas = np.where(np.isnan(given), area_xyxy(boxes_xyxy), given)
        if not ((areas >= 0) & (areas < _BIG)).all():
            return None
        return _Columns(
            self._order[owners], class_ids.astype(np.int32), boxes_xyxy, areas.astype(np.float32), crowd == 1
        )

    def take_rows(self, annotations: _Rows) -> _Columns:
        """Return the usable annotations of untyped objects."""
        index = dict(zip(self.image_ids.tolist(), range(len(self.image_ids)), strict=True))
        class_of = dict(zip(self.category_ids.tolist(), range(len(self.category_ids)), strict=True))
        owners, classes = _places(annotations, "image_id", index), _places(annotations, "category_id", class_of)
        boxes_xywh = _numbers([a.get("bbox") for a in annotations], (4,))
        boxes_xyxy = xywh_to_xyxy(boxes_xywh).astype(np.float32)
        # Without an area in the file, that of the box.
        given = (a.get("area") for a in annotations)
        own = area_xyxy(boxes_xyxy)
        areas = _numbers([o if g is None else g for g, o in zip(given, own.tolist(), strict=True)], ())
        crowd = _numbers([a.get("iscrowd") or 0 for a in annotations], ())
        usable = (owners >= 0) & (classes >= 0) & np.isfinite(areas) & np.isfinite(boxes_xywh).all(axis=1)
        usable &= (crowd == 0) | (crowd == 1)
        for n in np.flatnonzero(~usable).tolist():
            rule, problem = _problem(annotations[n], owners[n] >= 0, classes[n] >= 0, boxes_xywh[n], areas[n])
            self._note(rule, annotations[n], problem, int(owners[n]))
        for n in np.flatnonzero(usable & (areas < 0)).tolist():
            self._note(NEGATIVE, annotations[n], f"has the area {areas[n]:g}; its box is used", int(owners[n]))
        areas = np.where(areas < 0, own, areas)
        return _Columns(
            owners[usable], classes[usable].astype(np.int32), boxes_xyxy[usable],
            areas[usable].astype(np.float32), crowd[usable] == 1,
        )  # fmt: skip

    def _note(self, rule: str, annotation: Mapping[str, Any], problem: str, owner: int) -> None:
        message = f"{self._where} annotation {annotation.get('id')!r} {problem}."
        self.of_boxes.append(Flaw(rule, message, owner if owner >= 0 else None))


def _look_up(ids: NDArray[np.int64], known: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the place of each id among the known ones, which are sorted, and whether it is there."""
    places = np.searchsorted(known, ids).clip(0, len(known) - 1)
    return places, known[places] == ids


def _image_row(image: _Image | dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    if isinstance(image, _Image):
        return image.id, image.file_name, image.height, image.width
    return image.get("id"), image.get("file_name"), image.get("height"), image.get("width")


def _load(file: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the images, annotations and categories of a json."""
    try:
        content = json.loads(read_bytes(file))
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}. Check the path.") from error
    except (ValueError, RecursionError) as error:  # a JSONDecodeError names line and column
        raise DataError(f"{str(file)!r} is not valid json: {error}. Export or copy it again.") from error
    parts: list[Any] = [content.get(key) if isinstance(content, dict) else None for key in KEYS]
    for key, part in zip(KEYS, parts, strict=True):
        if not isinstance(part, list) or not all(isinstance(entry, dict) for entry in part):
            raise DataError(f"{str(file)!r} is not a COCO json: it has no list of {key!r}. Use an instances json.")
    images, annotations, categories = parts
    if not images or not categories:
        what = "categories: boxes need classes" if images else "images: an empty set can't be used"
        raise DataError(f"{str(file)!r} lists no {what}.")
    return images, annotations, categories


def _category_ids(categories: _Rows, where: str) -> list[int]:
    """Return the category ids, sorted."""
    for category in categories:
        if not _is_id(category.get("id")):
            raise DataError(f"{where} the category id {category.get('id')!r} is not an integer. Number them 1, 2, 3 …")
        if category.get("name") is None:
            raise DataError(f"{where} category {category['id']} has no 'name'. Correct it or take it out.")
    ids = sorted(category["id"] for category in categories)
    twice = next((a for a, b in itertools.pairwise(ids) if a == b), None)
    if twice is not None:
        raise DataError(f"{where} several categories have the id {twice}. Give each its own.")
    return ids


def _list_of_rows(value: Any) -> _Rows:
    """Return a value that is a list of objects.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError("not a list of objects")
    return value


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _places(annotations: Sequence[Mapping[str, Any]], key: str, index: Mapping[Any, int]) -> NDArray[np.int64]:
    """Return the place that each annotation's id has in an index, -1 where it has none."""
    # Not every value can be looked up: there may be a list where an id should be.
    ids = (a.get(key) for a in annotations)
    return np.array([index.get(i, -1) if isinstance(i, int | float) else -1 for i in ids], np.int64)


def _numbers(values: Sequence[Any], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the numbers of each value, NaN for a value that does not consist of so many finite numbers."""
    if not values:
        return np.zeros((0, *shape))
    try:
        array = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        array = np.zeros(())
    if array.shape == (len(values), *shape):
        # The bound leaves room for sums and areas in float32.
        return np.where(np.abs(array) < 1e12, array, np.nan)
    if len(values) == 1:
        return np.full((1, *shape), np.nan)
    return np.concatenate([_numbers([value], shape) for value in values])


def _file_name(value: Any) -> str:
    # The system would follow a link before it goes up; the check of what is inside goes by the names alone.
    name = str(value)
    return os.path.normpath(name) if os.pardir in name else name


def _problem(
    annotation: Mapping[str, Any], has_image: bool, has_class: bool, box: NDArray[np.float64], area: float
) -> tuple[str, str]:
    """Return rule and words for what is wrong with an annotation."""
    if not has_image:
        return "bad-label", f"belongs to image {annotation.get('image_id')!r}, which the file does not have"
    if not has_class:
        return "unknown-class", f"belongs to category {annotation.get('category_id')!r}, which the file does not have"
    if not np.isfinite(box).all():
        return "bad-label", f"has bbox {_show(annotation.get('bbox'))} where 4 finite numbers should be"
    if not np.isfinite(area) and annotation.get("area") is None:
        return "bad-label", f"has bbox {_show(annotation.get('bbox'))}, which is too large"
    if not np.isfinite(area):
        return "bad-label", f"has area {_show(annotation.get('area'))} where a finite number should be"
    return "bad-label", f"has iscrowd {_show(annotation.get('iscrowd'))} where 0 or 1 should be"


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
