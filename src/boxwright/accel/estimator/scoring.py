"""Evaluation and prediction, as they run in every worker. Every sample is seen by one worker, once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.accel.estimator.blueprint import Blueprint
from boxwright.accel.estimator.metrics import Metrics, WeightedMean, gather
from boxwright.accel.estimator.samples import SampleCounter
from boxwright.accel.estimator.sources import Source
from boxwright.accel.estimator.step import forward_inputs, run_step
from boxwright.accel.loaders import seeded
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """One `evaluate` or `predict`, as it is sent to the workers."""

    blueprint: Blueprint
    data: Source
    weights: Mapping[str, Any] | None


def evaluate(nano: TorchNano, job: ScoreJob) -> dict[str, Any]:
    """Score the set in this worker, and return the numbers of the whole set in the first one."""
    with seeded(job.blueprint.seed):
        config = job.blueprint.copy_config()
        model = _open_model(nano, job, config)
        numbers = score(nano, job.blueprint, model, job.data, config, job.blueprint.make_counter())
    return dict(nano.broadcast(numbers)) if nano.is_external else numbers


def predict(nano: TorchNano, job: ScoreJob) -> Any:
    """Return the outputs for the whole set in the order of the data, in the first worker."""
    with seeded(job.blueprint.seed):
        config = job.blueprint.copy_config()
        model = _open_model(nano, job, config)
        parts = list(_predict_batches(nano, job, model, config))
    gathered = [part for share in gather(nano, parts) for part in share]
    outputs = join([output for _, output in sorted(gathered, key=lambda part: part[0])]) if gathered else None
    return nano.broadcast(outputs) if nano.is_external else outputs


def score(
    nano: TorchNano,
    blueprint: Blueprint,
    model: nn.Module,
    data: Source,
    config: dict[str, Any],
    count: SampleCounter,
) -> dict[str, Any]:
    """Return loss and metrics of the whole set in the first worker, an empty dict in the others."""
    step = blueprint.make_step(config, nano.to_device)
    metrics = Metrics(blueprint.metrics, nano.device)
    losses: dict[str, WeightedMean] = {}
    samples = 0
    model.eval()
    with torch.no_grad():
        for _, raw in data.open_whole(nano, config):
            batch = blueprint.prepare(raw)
            result = run_step(step, model, batch, count(batch))
            samples += result.samples
            for name, value in result.losses.items():
                losses.setdefault(name, WeightedMean()).add(float(value), result.samples)
            metrics.update(result)
    whole: dict[str, WeightedMean] = {}
    counted = 0
    for part, number in gather(nano, ({name: mean.state() for name, mean in losses.items()}, samples)):
        counted += number
        for name, state in part.items():
            whole.setdefault(name, WeightedMean()).merge(state)
    numbers = {name: mean.compute() for name, mean in whole.items()} | metrics.compute(nano)
    return numbers | {"num_samples": counted} if nano.is_global_zero else {}


def _open_model(nano: TorchNano, job: ScoreJob, config: dict[str, Any]) -> nn.Module:
    network = job.blueprint.make_model(job.weights, config)
    # Nothing is learnt, so nothing is shared: workers may have different numbers of batches.
    network.requires_grad_(False)
    model: nn.Module = nano.setup(network)
    if job.weights is None:
        # A creator may draw from sources that no seed reaches.
        network.load_state_dict(nano.broadcast(network.state_dict()))
    return model.eval()


def _predict_batches(
    nano: TorchNano, job: ScoreJob, model: nn.Module, config: dict[str, Any]
) -> Iterator[tuple[int, Any]]:
    blueprint = job.blueprint
    count = blueprint.make_counter()
    with torch.inference_mode():
        for number, raw in job.data.open_whole(nano, config):
            batch = blueprint.prepare(raw)
            if blueprint.step is not None:
                outputs = run_step(blueprint.step, model, batch).outputs
            else:
                outputs = forward_inputs(model, batch)
            yield number, _to_arrays(outputs, _count_entries(blueprint, count, batch, outputs))


def _count_entries(blueprint: Blueprint, count: SampleCounter, batch: Any, outputs: Any) -> int:
    """Return how many entries each output must have: one for each sample.

    A dict does not say which of its values have one entry a sample. Outputs that agree with each other and with one of
    them do.
    """
    if isinstance(batch, Mapping) and blueprint.count_samples is None:
        found = set(_lengths(outputs))
        if len(found) == 1 and found & set(_lengths(batch)) - {None}:
            return found.pop() or 0
    return count(batch)


def _lengths(values: Any) -> Iterator[int | None]:
    """Yield how many entries each of several values has; None for one that has none."""
    if isinstance(values, Mapping | tuple):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _lengths(value)
    else:
        yield len(values) if isinstance(values, list) or (isinstance(values, Tensor) and values.ndim) else None


def _to_arrays(outputs: Any, samples: int) -> Any:
    """Return outputs as arrays in main memory, once it is sure that each has an entry for each sample.

    Raises:
        UsageError: an output has another number of entries than the batch has samples.
    """
    if isinstance(outputs, Mapping):
        return {name: _to_arrays(value, samples) for name, value in outputs.items()}
    if isinstance(outputs, tuple):
        parts = [_to_arrays(value, samples) for value in outputs]
        return type(outputs)(*parts) if hasattr(outputs, "_fields") else tuple(parts)
    (length,) = _lengths(outputs)
    if length != samples:
        raise UsageError(
            f"predict() got an output of type {type(outputs).__name__} with {length} entries for a batch of {samples} "
            "samples. Return tensors or lists with one entry a sample; several outputs as a tuple or a dict. If the "
            "batch has another number of samples, give from_torch() a count_samples(batch) that returns it."
        )
    if isinstance(outputs, list):
        return [_detach(value) for value in outputs]
    return _detach(outputs)


def _detach(value: Any) -> Any:
    if isinstance(value, Tensor):
        array: Any = value.detach().cpu()
        return (array.float() if array.dtype == torch.bfloat16 else array).numpy()
    if isinstance(value, Mapping):
        return {name: _detach(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_detach(one) for one in value]
    return value


def join(parts: Sequence[Any]) -> Any:
    """Return the outputs of all batches as one: arrays end to end, lists end to end, in the same structure.

    Raises:
        UsageError: the batches' outputs do not fit together.

    Example:
        >>> join([(np.zeros((2, 3)), ["a", "b"]), (np.ones((1, 3)), ["c"])])[1]
        ['a', 'b', 'c']
    """
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: join([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        joined = [join([part[i] for part in parts]) for i in range(len(first))]
        return type(first)(*joined) if hasattr(first, "_fields") else tuple(joined)
    if isinstance(first, list):
        return [value for part in parts for value in part]
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = sorted({str(part.shape[1:]) for part in parts})
        raise UsageError(
            f"The outputs of the batches have different shapes ({', '.join(shapes)}), so they can't be one array. "
            "Return a list with one entry a sample."
        )
    return np.concatenate(parts)
