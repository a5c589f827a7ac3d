"""Data in partitions, as Orca's XShards hold it: dicts of arrays under "x" and "y", or pandas data frames."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from boxwright.core.errors import DataError, UsageError
from boxwright.core.packages import is_from

_KEYS = ({"x"}, {"x", "y"})
_DTYPES = {np.dtype(np.float64): np.float32, np.dtype(np.float16): np.float32}
PREDICTION = "prediction"
"""What outputs are called beside the data that they belong to."""


def collect(data: Any) -> Any:
    """Return the partitions of an XShards or RDD as a list; anything else as it is."""
    fetch = getattr(data, "collect", None)
    has_partitions = (
        hasattr(data, "rdd") or hasattr(data, "num_partitions") or is_from(data, "pyspark.rdd", "pyspark.core")
    )
    return list(fetch()) if callable(fetch) and has_partitions and not is_from(data, "pyspark.sql") else data


def is_partitions(data: Any) -> bool:
    """Return whether data is a list of partitions: dicts of arrays, or data frames.

    Dicts of tensors are batches, not partitions.
    """
    if not isinstance(data, list) or not data:
        return False
    return all(map(_is_arrays, data)) or all(is_from(one, "pandas") for one in data)


def is_frames(data: Any) -> bool:
    """Return whether the partitions of a list are pandas data frames."""
    return isinstance(data, list) and bool(data) and is_from(data[0], "pandas")


def _is_arrays(part: Any) -> bool:
    if not isinstance(part, Mapping) or set(part) not in _KEYS:
        return False
    return all(isinstance(one, np.ndarray) for value in part.values() for one in _arrays(value))


def _arrays(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


class PartitionedArrays(Dataset[Any]):
    """The samples of partitions {"x": array or arrays, "y": array or arrays}: the inputs, then the target.

    Floats become float32; several arrays under "y" are a tuple.

    Raises:
        DataError: partitions differ in form, or arrays in length.

    Example:
        >>> first, second = {"x": np.zeros((2, 3)), "y": np.ones(2, int)}, {"x": np.ones((1, 3)), "y": np.array([3])}
        >>> data = PartitionedArrays([first, second])
        >>> len(data), data[2]
        (3, (tensor([1., 1., 1.]), tensor(3)))
    """

    def __init__(self, parts: Sequence[Mapping[str, Any]]) -> None:
        self._inputs = _join("x", parts)
        self._targets = _join("y", parts) if "y" in parts[0] else ()
        self._one_target = bool(self._targets) and not isinstance(parts[0]["y"], list | tuple)
        lengths = {len(array) for array in (*self._inputs, *self._targets)}
        if len(lengths) != 1:
            raise DataError(
                f"The arrays of the partitions have {', '.join(map(str, sorted(lengths)))} rows in all. "
                'Give "x" and "y" one row per sample.'
            )
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Any:
        inputs = tuple(array[row] for array in self._inputs)
        targets = tuple(array[row] for array in self._targets)
        if not targets:
            return inputs[0] if len(inputs) == 1 else inputs
        return (*inputs, targets[0] if self._one_target else targets)


def _join(key: str, parts: Sequence[Mapping[str, Any]]) -> tuple[Tensor, ...]:
    """Return the arrays under a key, those of all partitions joined."""
    forms = {len(_arrays(part[key])) if key in part else 0 for part in parts}
    if len(forms) != 1:
        raise DataError(f"Some partitions have another number of arrays under {key!r} than others. Give all the same.")
    joined = []
    for columns in zip(*(_arrays(part[key]) for part in parts), strict=True):
        try:
            array = np.concatenate(columns)
            joined.append(torch.from_numpy(array.astype(_DTYPES.get(array.dtype, array.dtype))))
        except (ValueError, TypeError) as error:
            raise DataError(f"The arrays under {key!r} can't become one tensor: {error}.") from error
    return tuple(joined)


def split(outputs: Any, lengths: Sequence[int]) -> list[Any]:
    """Return outputs by partition.

    Example:
        >>> split(np.arange(3), [2, 1])
        [array([0, 1]), array([2])]
    """
    ends = list(accumulate(lengths))
    return [_cut(outputs, end - length, end) for end, length in zip(ends, lengths, strict=True)]


def _cut(outputs: Any, start: int, end: int) -> Any:
    if isinstance(outputs, Mapping):
        return {name: _cut(value, start, end) for name, value in outputs.items()}
    if isinstance(outputs, tuple):
        parts = [_cut(value, start, end) for value in outputs]
        return type(outputs)(*parts) if hasattr(outputs, "_fields") else tuple(parts)
    return outputs[start:end]


def name_outputs(outputs: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """Return outputs by the names of their columns: those given, else `prediction` or `prediction_<name>`.

    Raises:
        UsageError: there is another number of names than of outputs.
    """
    if isinstance(outputs, Mapping):
        named = {f"{PREDICTION}_{name}": value for name, value in outputs.items()}
    elif isinstance(outputs, tuple):
        own = getattr(outputs, "_fields", range(len(outputs)))
        named = {f"{PREDICTION}_{name}": value for name, value in zip(own, outputs, strict=True)}
    else:
        named = {PREDICTION: outputs}
    if names is None:
        return named
    if len(names) != len(named):
        raise UsageError(
            f"output_cols={list(names)!r} names {len(names)} outputs, but the model returns {len(named)}. Name "
            "each, in the order in which it returns them."
        )
    return dict(zip(names, named.values(), strict=True))
