"""Value ranges of a network's tensors, measured on real inputs, and the 8-bit scales that fit them."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from boxwright.core.cpu import read_cpu
from boxwright.core.signature import Array
from boxwright.runtimes.calibrate import Calibration

Floats = NDArray[np.float64]
_BINS = 1024
_VALUES = 1 << 16  # of one tensor and sample that go into the histogram
_SHIFT_SAMPLES = 24
_SHARES = np.linspace(1.0, 0.15, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What was seen of one tensor.

    Attributes:
        lows: the least value of each channel (axis 1).
        highs: the greatest value of each channel.
        means: the mean of each channel.
        shifts: how much the mean of each channel moves when its values are put on the best grid.
        scale: of that grid.
        zero: of that grid.
    """

    lows: Floats
    highs: Floats
    means: Floats
    shifts: Floats
    scale: Floats
    zero: Floats

    @property
    def grid(self) -> "Grid":
        """The 8-bit steps with the least square error."""
        return Grid(scale=float(self.scale), zero=int(self.zero))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """8-bit steps: value = (level - zero) * scale, levels 0 to 255."""

    scale: float
    zero: int

    @classmethod
    def over(cls, low: float, high: float) -> "Grid":
        """Return the steps that reach from `low` to `high`; 0 is always one of their values.

        Example:
            >>> Grid.over(0, 255)
            Grid(scale=1.0, zero=0)
        """
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255 or 1.0
        return cls(scale=scale, zero=round(-low / scale))

    def apply(self, values: Array) -> Array:
        """Return the values as the steps give them back."""
        levels = np.clip(np.rint(values / self.scale) + self.zero, 0, 255)
        return np.asarray((levels - self.zero) * self.scale)


def measure(model: onnx.ModelProto, tensors: Iterable[str], calibration: Calibration) -> dict[str, Statistics]:
    """Return the statistics of float tensors over all samples, from the cache if they were measured before."""
    names = sorted(set(tensors))
    cached = None
    if calibration.cache is not None:
        content = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()[:16]
        cached = calibration.cache / f"onnx-{content}-{calibration.fingerprint()}.npz"
        if cached.is_file():
            found = _read(cached)
            if set(names) <= set(found):
                return found
    result = _measure(model, names, calibration)
    if cached is not None:
        _write(result, cached)
    return result


def best_grid(counts: Floats, low: float, high: float) -> Grid:
    """Return the steps with the least mean square error for a histogram of values from `low` to `high`.

    Rare extremes are cut off where finer steps for all other values are worth more.
    """
    kept = counts > 0
    step = (high - low) / len(counts)
    values: Floats = (low + step * (np.arange(len(counts), dtype=np.float64) + 0.5))[kept]
    weights = counts[kept]

    def error(grid: Grid) -> float:
        return float(np.sum(weights * (grid.apply(values) - values) ** 2))

    lows = low * _SHARES if low < 0 else np.zeros(1)
    return min((Grid.over(float(a), float(b)) for a in lows for b in high * _SHARES), key=error)


def channel_grids(lows: Floats, highs: Floats) -> tuple[Floats, int]:
    """Return a scale for each channel and the one zero they share, so that every channel's range is covered.

    The scales are as fine as that allows, by their geometric mean.
    """
    lows, highs = np.minimum(lows, 0), np.maximum(highs, 0)
    choices = range(1 if lows.min() < 0 else 0, 255 if highs.max() > 0 else 256)

    def scales(zero: int) -> Floats:
        return np.maximum(np.maximum(-lows / max(zero, 1), highs / max(255 - zero, 1)), 1e-6)

    best = min(choices, key=lambda zero: float(np.log(scales(zero)).sum()))
    return scales(best), best


def _measure(model: onnx.ModelProto, names: Sequence[str], calibration: Calibration) -> dict[str, Statistics]:
    session = _session_with_outputs(model, names)
    lows: list[Any] = [np.inf] * len(names)
    highs: list[Any] = [-np.inf] * len(names)
    means: list[Any] = [0.0] * len(names)
    for arrays in _run(session, names, calibration.samples):
        for i, array in enumerate(arrays):
            others = tuple(axis for axis in range(array.ndim) if axis != 1)
            lows[i] = np.minimum(lows[i], array.min(axis=others))
            highs[i] = np.maximum(highs[i], array.max(axis=others))
            means[i] = means[i] + _channel_mean(array) / len(calibration.samples)
    # Bins of the right width need the extremes first, and the shifts need the grids.
    counts = np.zeros((len(names), _BINS))
    for arrays in _run(session, names, calibration.samples):
        for i, array in enumerate(arrays):
            values = array.reshape(-1)
            values = values[:: max(1, len(values) // _VALUES)]
            low, high = lows[i].min(), highs[i].max()
            bins = np.minimum((values - low) * (_BINS / ((high - low) or 1.0)), _BINS - 1)
            counts[i] += np.bincount(bins.astype(np.int64), minlength=_BINS)
    grids = [best_grid(counts[i], float(lows[i].min()), float(highs[i].max())) for i in range(len(names))]
    few = min(_SHIFT_SAMPLES, len(calibration.samples))
    shifts: list[Any] = [0.0] * len(names)
    for arrays in _run(session, names, islice(calibration.samples, few)):
        for i, array in enumerate(arrays):
            shifts[i] = shifts[i] + _channel_mean(grids[i].apply(array) - array) / few
    return {
        name: Statistics(
            lows=np.atleast_1d(np.asarray(lows[i], np.float64)),
            highs=np.atleast_1d(np.asarray(highs[i], np.float64)),
            means=np.atleast_1d(means[i]),
            shifts=np.atleast_1d(shifts[i]),
            scale=np.asarray(grids[i].scale),
            zero=np.asarray(float(grids[i].zero)),
        )
        for i, name in enumerate(names)
    }


def _channel_mean(array: Array) -> Floats:
    return np.asarray(array.mean(axis=tuple(a for a in range(array.ndim) if a != 1), dtype=np.float64))


def _run(session: Any, names: Sequence[str], samples: Iterable[tuple[Array, ...]]) -> Iterator[list[Array]]:
    """Yield the values of the tensors for each sample."""
    inputs = [i.name for i in session.get_inputs()]
    inner = [name for name in names if name not in inputs]
    for sample in samples:
        feeds = dict(zip(inputs, sample, strict=True))
        values = feeds | dict(zip(inner, session.run(inner, feeds) if inner else [], strict=True))
        yield [values[name] for name in names]


def _session_with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> Any:
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    given = {value.name for value in (*opened.graph.output, *opened.graph.input)}
    for name in names:
        if name not in given:
            opened.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = read_cpu().usable_cores
    return onnxruntime.InferenceSession(opened.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _write(found: dict[str, Statistics], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{field.name}_{i}": getattr(seen, field.name)
        for i, seen in enumerate(found.values())
        for field in fields(Statistics)
    }
    draft = path.with_suffix(".new.npz")
    np.savez_compressed(draft, names=np.array(list(found)), **arrays)
    draft.replace(path)  # whole or not at all: another process may read it


def _read(path: Path) -> dict[str, Statistics]:
    with np.load(path) as arrays:
        return {
            str(name): Statistics(**{f.name: arrays[f"{f.name}_{i}"] for f in fields(Statistics)})
            for i, name in enumerate(arrays["names"])
        }
