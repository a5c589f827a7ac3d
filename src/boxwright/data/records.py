"""`Records`: the paths of a set's images and their boxes, in packed arrays."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boxwright.core.boxes import area_xyxy
from boxwright.core.errors import DataError, UsageError, shorten

PathText: TypeAlias = str | os.PathLike[str]

# "surrogatepass" keeps every Python string, including file names that are not valid UTF-8.
_ENCODING = ("utf-8", "surrogatepass")

# Each array's type, its columns (0 for a flat one), and what it has a row for; offsets have one more row than images.
_ARRAYS: dict[str, tuple[Any, int, Literal["image", "offset", "box", "byte"]]] = {
    "path_bytes": (np.uint8, 0, "byte"),
    "path_offsets": (np.int64, 0, "offset"),
    "image_ids": (np.int64, 0, "image"),
    "sizes_hw": (np.int32, 2, "image"),
    "boxes_xyxy": (np.float32, 4, "box"),
    "class_ids": (np.int32, 0, "box"),
    "crowd": (np.bool_, 0, "box"),
    "areas": (np.float32, 0, "box"),
    "offsets": (np.int64, 0, "offset"),
}

ARRAY_TYPES: dict[str, Any] = {name: dtype for name, (dtype, _, _) in _ARRAYS.items()}
"""The arrays of `Records` and their types."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """A set of images with their boxes. Image i owns the boxes `offsets[i]` to `offsets[i + 1]`.

    There is no Python object per image or box, so forked workers share the memory (no reference counts change) and
    spawned ones get a few flat buffers. The arrays are read-only.

    Attributes:
        root: the folder that the paths are relative to.
        path_bytes: all paths in UTF-8, concatenated, uint8.
        path_offsets: where each path begins in `path_bytes`, int64 (N + 1,).
        image_ids: the ids that the annotations use, int64 (N,).
        sizes_hw: height and width by the annotations, (0, 0) if unknown, int32 (N, 2).
        boxes_xyxy: corners in pixels of the image as displayed, float32 (M, 4).
        class_ids: index into `names`, int32 (M,).
        crowd: whether a box stands for an uncounted group, bool (M,).
        areas: area of the objects in pixels (of the mask, if the set has masks), float32 (M,).
        offsets: where the boxes of each image begin, int64 (N + 1,).
        names: class names by class id.
        category_ids: the id that the annotations use for each class.
        missing: images that the annotations name but that were not found; they are not among the N.

    Example:
        >>> records = Records.from_lists(
        ...     root="photos", paths=["a.jpg", "b.jpg"], names=["cat", "dog"],
        ...     boxes_xyxy=[[[10, 20, 30, 60]], []], class_ids=[[1], []],
        ... )
        >>> len(records), records.path(1).as_posix(), records.boxes(0).tolist()
        (2, 'photos/b.jpg', [[10.0, 20.0, 30.0, 60.0]])
    """

    root: Path
    path_bytes: NDArray[np.uint8]
    path_offsets: NDArray[np.int64]
    image_ids: NDArray[np.int64]
    sizes_hw: NDArray[np.int32]
    boxes_xyxy: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    crowd: NDArray[np.bool_]
    areas: NDArray[np.float32]
    offsets: NDArray[np.int64]
    names: tuple[str, ...]
    category_ids: tuple[int, ...]
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        images, boxes = len(self.image_ids), len(self.boxes_xyxy)
        lengths = {"image": images, "offset": images + 1, "box": boxes, "byte": len(self.path_bytes)}
        for name, (dtype, columns, per) in _ARRAYS.items():
            array = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            if array.size == 0 and columns:
                array = array.reshape(-1, columns)
            if array.shape != ((lengths[per], columns) if columns else (lengths[per],)):
                raise UsageError(
                    f"Records: {name} has the shape {array.shape!r}, which does not fit {images} images and {boxes} "
                    f"boxes{f' in {columns} columns' if columns else ''}."
                )
            # A view, so that the caller's own array stays writable.
            array = array.view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        for name, offsets, end in (
            ("offsets", self.offsets, boxes),
            ("path_offsets", self.path_offsets, len(self.path_bytes)),
        ):
            if offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
                raise UsageError(
                    f"Records: {name} must rise from 0 to {end}, but goes from {offsets[0]} to {offsets[-1]}."
                )
        if len(self.names) != len(self.category_ids):
            raise UsageError(f"Records: {len(self.names)} class names but {len(self.category_ids)} category ids.")
        if len(set(self.category_ids)) != len(self.category_ids):
            raise UsageError(f"Records: two classes share a category id: {self.category_ids!r}.")
        if boxes and not 0 <= self.class_ids.min() <= self.class_ids.max() < len(self.names):
            raise UsageError(
                f"Records: class ids go from {self.class_ids.min()} to {self.class_ids.max()}, "
                f"but there are {len(self.names)} class names."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor: numpy forgets in a pickle that an array was read-only.
        return partial(Records, **{f.name: getattr(self, f.name) for f in fields(self)}), ()

    @classmethod
    def from_lists(
        cls,
        *,
        root: PathText,
        paths: Sequence[PathText],
        boxes_xyxy: Sequence[ArrayLike],
        class_ids: Sequence[ArrayLike],
        names: Sequence[str],
        category_ids: Sequence[int] | None = None,
        image_ids: Sequence[int] | None = None,
        sizes_hw: Sequence[tuple[int, int]] | None = None,
        crowd: Sequence[ArrayLike] | None = None,
        areas: Sequence[ArrayLike] | None = None,
        missing: Sequence[str] = (),
    ) -> "Records":
        """Return the set that lists with one entry per image describe.

        Defaults: category ids 1, 2, 3 …, image ids 0, 1, 2 …, unknown sizes, no crowds, the boxes' own areas.

        Raises:
            UsageError: the lists don't fit together.
        """
        per_image: dict[str, Sequence[Any] | None] = {
            "boxes_xyxy": boxes_xyxy, "class_ids": class_ids, "image_ids": image_ids,
            "sizes_hw": sizes_hw, "crowd": crowd, "areas": areas,
        }  # fmt: skip
        for name, values in per_image.items():
            if values is not None and len(values) != len(paths):
                raise UsageError(f"Records: {len(paths)} paths but {name} has {len(values)} entries.")
        counts = [np.asarray(boxes).reshape(-1, 4).shape[0] for boxes in boxes_xyxy]
        for i, (ids, count) in enumerate(zip(class_ids, counts, strict=True)):
            if np.asarray(ids).size != count:
                raise UsageError(f"Records: image {i} has {count} boxes but {np.asarray(ids).size} class ids.")
        flat_boxes = _joined(boxes_xyxy, np.float32).reshape(-1, 4)
        path_bytes, path_offsets = pack_paths(paths)
        return cls(
            root=Path(root),
            path_bytes=path_bytes,
            path_offsets=path_offsets,
            image_ids=np.arange(len(paths)) if image_ids is None else np.asarray(image_ids, np.int64),
            sizes_hw=np.zeros((len(paths), 2), np.int32) if sizes_hw is None else np.asarray(sizes_hw, np.int32),
            boxes_xyxy=flat_boxes,
            class_ids=_joined(class_ids, np.int32),
            crowd=np.zeros(len(flat_boxes), np.bool_) if crowd is None else _joined(crowd, np.bool_),
            areas=area_xyxy(flat_boxes).astype(np.float32) if areas is None else _joined(areas, np.float32),
            offsets=_offsets(counts),
            names=tuple(names),
            category_ids=tuple(range(1, len(names) + 1)) if category_ids is None else tuple(category_ids),
            missing=tuple(missing),
        )

    def __len__(self) -> int:
        return len(self.image_ids)

    def relative_path(self, i: int) -> str:
        """Return the path of image i below `root`, as the annotations wrote it."""
        i = self._checked(i)
        return self.path_bytes[self.path_offsets[i] : self.path_offsets[i + 1]].tobytes().decode(*_ENCODING)

    def path(self, i: int) -> Path:
        """Return the path of image i."""
        return self.root / self.relative_path(i)

    def size_hw(self, i: int) -> tuple[int, int]:
        """Return height and width of image i by the annotations, (0, 0) if unknown."""
        height, width = self.sizes_hw[i].tolist()
        return height, width

    def boxes(self, i: int) -> NDArray[np.float32]:
        """Return the corners of the boxes of image i, a view (K, 4)."""
        return self.boxes_xyxy[self._span(i)]

    def class_ids_of(self, i: int) -> NDArray[np.int32]:
        """Return the class ids of the boxes of image i, a view (K,)."""
        return self.class_ids[self._span(i)]

    def crowd_of(self, i: int) -> NDArray[np.bool_]:
        """Return which boxes of image i stand for uncounted groups, a view (K,)."""
        return self.crowd[self._span(i)]

    def areas_of(self, i: int) -> NDArray[np.float32]:
        """Return the areas of the objects of image i, a view (K,)."""
        return self.areas[self._span(i)]

    def select(self, indices: Sequence[int] | NDArray[Any]) -> "Records":
        """Return the chosen images in the given order, by indices or mask; all classes stay."""
        array = np.asarray(indices)
        index = np.arange(len(self))[array if array.size else array.astype(np.int64)]
        letters, path_offsets = _gather(self.path_offsets, index)
        rows, offsets = _gather(self.offsets, index)
        chosen = {"image": index, "box": rows}
        arrays = {name: getattr(self, name)[chosen[per]] for name, (_, _, per) in _ARRAYS.items() if per in chosen}
        return replace(self, path_bytes=self.path_bytes[letters], path_offsets=path_offsets, offsets=offsets, **arrays)

    def with_names(self, names: Sequence[str]) -> "Records":
        """Return the set with its classes in another order, matched by name; new names may come in.

        Known classes keep their category ids, new ones get free ids.

        Raises:
            DataError: a class that has boxes is not among the names.
            UsageError: a name is given twice.

        Example:
            >>> cats = Records.from_lists(
            ...     root=".", paths=["a.jpg"], boxes_xyxy=[[[0, 0, 9, 9]]], class_ids=[[0]], names=["cat", "dog"]
            ... )
            >>> turned = cats.with_names(["dog", "cow", "cat"])
            >>> turned.class_ids.tolist(), turned.category_ids
            ([2], (2, 3, 1))
        """
        if tuple(names) == self.names:
            return self
        if len(set(names)) != len(names):
            raise UsageError(f"names={list(names)!r}: a class is named twice.")
        new_id = {name: n for n, name in enumerate(names)}
        class_ids = np.array([new_id.get(name, -1) for name in self.names], np.int32)[self.class_ids]
        lost = [self.names[i] for i in np.unique(self.class_ids[class_ids < 0])]
        if lost:
            raise DataError(
                f"The set has boxes of {shorten(lost)}, which is not among the classes {shorten(list(names))}. "
                "Add it to them."
            )
        known = dict(zip(self.names, self.category_ids, strict=True))
        free = itertools.count(max(self.category_ids, default=0) + 1)
        category_ids = tuple(known[name] if name in known else next(free) for name in names)
        return replace(self, class_ids=class_ids, names=tuple(names), category_ids=category_ids)

    def _checked(self, i: int) -> int:
        if not -len(self) <= i < len(self):
            raise IndexError(f"image {i} of {len(self)}")
        return i % len(self)

    def _span(self, i: int) -> slice:
        i = self._checked(i)
        return slice(int(self.offsets[i]), int(self.offsets[i + 1]))


def pack_paths(paths: Sequence[PathText]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the two arrays that hold paths in `Records`: the bytes, and where each path begins.

    Example:
        >>> data, offsets = pack_paths(["a.jpg", "bc.jpg"])
        >>> data.tobytes(), offsets.tolist()
        (b'a.jpgbc.jpg', [0, 5, 11])
    """
    encoded = [os.fspath(path).encode(*_ENCODING) for path in paths]
    return np.frombuffer(b"".join(encoded), np.uint8), _offsets([len(e) for e in encoded])


def unpack_paths(records: Records) -> list[str]:
    """Return all relative paths at once, which is faster than one after the other.

    Example:
        >>> two = Records.from_lists(root="x", paths=["a", "bc"], boxes_xyxy=[[]] * 2, class_ids=[[]] * 2, names=[])
        >>> unpack_paths(two)
        ['a', 'bc']
    """
    data = records.path_bytes.tobytes()
    ends = records.path_offsets.tolist()
    return [data[start:end].decode(*_ENCODING) for start, end in itertools.pairwise(ends)]


def _offsets(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _gather(offsets: NDArray[np.int64], index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that the chosen images own, and the offsets of those rows when they lie side by side."""
    counts = offsets[index + 1] - offsets[index]
    packed = _offsets(counts)
    rows = np.arange(packed[-1]) + np.repeat(offsets[index] - packed[:-1], counts)
    return rows, packed


def _joined(parts: Sequence[ArrayLike], dtype: Any) -> NDArray[Any]:
    # An empty array first: concatenate refuses an empty list.
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(part, dtype).reshape(-1) for part in parts)])
