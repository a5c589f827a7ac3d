"""Evaluation and prediction, as they run in every worker. Each sample is seen once, by one worker."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from boxwright.accel.estimator.blueprint import Blueprint, SampleCounter
from boxwright.accel.estimator.callbacks import Callback, Hooks
from boxwright.accel.estimator.metrics import SAMPLES, LossMeans, Metrics, gather, join_numbers
from boxwright.accel.estimator.run import Run
from boxwright.accel.estimator.sources import BatchSource
from boxwright.accel.loaders import seeded
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError

Weights = Mapping[str, Any] | None


def evaluate(
    nano: TorchNano, blueprint: Blueprint, data: BatchSource, weights: Weights, callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Score this worker's part; the first worker returns the numbers of the whole set."""
    with seeded(blueprint.seed):
        config = blueprint.copy_config()
        model = _open_model(nano, blueprint, weights, config)
        step = blueprint.make_step(config, nano.to_device)
        run = Run(nano=nano, config=config, model=model, step=step, criterion=getattr(step, "loss", None))
        numbers = score(run, Hooks(callbacks), blueprint, data, SampleCounter(blueprint.count_samples))
    return dict(nano.broadcast(numbers)) if nano.is_external else numbers


def predict(
    nano: TorchNano, blueprint: Blueprint, data: BatchSource, weights: Weights, callbacks: Sequence[Callback] = ()
) -> Any:
    """Return the outputs for the whole set in the order of the data, in the first worker."""
    with seeded(blueprint.seed):
        config = blueprint.copy_config()
        model = _open_model(nano, blueprint, weights, config)
        run = Run(nano=nano, config=config, model=model, step=blueprint.step)
        parts = list(_predict_batches(run, Hooks(callbacks), blueprint, data))
    gathered = [part for share in gather(nano, parts) for part in share]
    outputs = join([output for _, output in sorted(gathered, key=lambda part: part[0])]) if gathered else None
    return nano.broadcast(outputs) if nano.is_external else outputs


def score(run: Run, hooks: Hooks, blueprint: Blueprint, data: BatchSource, count: SampleCounter) -> dict[str, Any]:
    """Return loss and metrics of the whole set in the first worker, an empty dict in the others."""
    losses, metrics = LossMeans(), Metrics(blueprint.metrics, run.nano.device)
    run.model.eval()
    hooks.call("before_val_epoch", run)
    with torch.no_grad():
        for number, (_, raw) in enumerate(data.open_whole(run.nano, run.config)):
            batch = blueprint.prepare(raw)
            run.begin_batch(batch, number, count(batch))
            hooks.call("before_val_iter", run)
            hooks.main.on_val_forward(run)
            result = run.end_forward()
            losses.update(result)
            metrics.update(result)
            hooks.call("after_val_iter", run)
    hooks.call("after_val_epoch", run)
    numbers, samples = losses.compute(run.nano)
    scored = metrics.compute(run.nano)
    return join_numbers(numbers, scored, {SAMPLES: samples}) if run.nano.is_global_zero else {}


def _open_model(nano: TorchNano, blueprint: Blueprint, weights: Weights, config: dict[str, Any]) -> nn.Module:
    network = blueprint.make_model(weights, config)
    # Without gradients there is nothing to share: workers may have different numbers of batches.
    network.requires_grad_(False)
    model: nn.Module = nano.setup(network)
    if weights is None:
        # A creator may draw random numbers that no seed controls.
        network.load_state_dict(nano.broadcast(network.state_dict()))
    return model.eval()


def _predict_batches(run: Run, hooks: Hooks, blueprint: Blueprint, data: BatchSource) -> Iterator[tuple[int, Any]]:
    count = SampleCounter(blueprint.count_samples)
    run.model.eval()
    hooks.call("before_pred_epoch", run)
    with torch.inference_mode():
        for index, (number, raw) in enumerate(data.open_whole(run.nano, run.config)):
            batch = blueprint.prepare(raw)
            run.begin_batch(batch, index, 0)  # only the outputs may tell how many samples a dict holds
            hooks.call("before_pred_iter", run)
            hooks.main.on_pred_forward(run)
            run.samples = _count_entries(blueprint, count, batch, run.output)
            yield number, _to_arrays(run.output, run.samples)
            hooks.call("after_pred_iter", run)
    hooks.call("after_pred_epoch", run)


def _count_entries(blueprint: Blueprint, count: SampleCounter, batch: Any, outputs: Any) -> int:
    """Return how many entries each output must have: one per sample.

    A dict does not say which of its values have one entry per sample. Where all outputs have the same length and
    some value of the dict has it too, that is the number.
    """
    if isinstance(batch, Mapping) and blueprint.count_samples is None:
        found = set(_lengths(outputs))
        if len(found) == 1 and found & set(_lengths(batch)) - {None}:
            return found.pop() or 0
    return count(batch)


def _lengths(values: Any) -> Iterator[int | None]:
    """Yield the number of entries of each value; None for one without entries."""
    if isinstance(values, Mapping | tuple):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _lengths(value)
    else:
        yield len(values) if isinstance(values, list) or (isinstance(values, Tensor) and values.ndim) else None


def _to_arrays(outputs: Any, samples: int) -> Any:
    """Return outputs as arrays in main memory."""
    if isinstance(outputs, Mapping):
        return {name: _to_arrays(value, samples) for name, value in outputs.items()}
    if isinstance(outputs, tuple):
        parts = [_to_arrays(value, samples) for value in outputs]
        return type(outputs)(*parts) if hasattr(outputs, "_fields") else tuple(parts)
    (length,) = _lengths(outputs)
    if length != samples:
        raise UsageError(
            f"predict() got an output of type {type(outputs).__name__} with {length} entries for a batch of {samples} "
            "samples. Return tensors or lists with one entry per sample; several outputs as a tuple or a dict. If the "
            "batch has another number of samples, give from_torch() a count_samples(batch) that returns it."
        )
    return tree_map(_detach, outputs)


def _detach(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    tensor = value.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def join(parts: Sequence[Any]) -> Any:
    """Return the outputs of all batches as one, in the same structure: arrays and lists are concatenated.

    Example:
        >>> join([(np.zeros((2, 3)), ["a", "b"]), (np.ones((1, 3)), ["c"])])[1]
        ['a', 'b', 'c']
    """
    return tree_map(_concatenate, parts[0], *parts[1:], is_leaf=lambda value: isinstance(value, list))


def _concatenate(*parts: Any) -> Any:
    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = sorted({str(part.shape[1:]) for part in parts})
        raise UsageError(
            f"The outputs of the batches have different shapes ({', '.join(shapes)}), so they can't become one array. "
            "Return a list with one entry per sample."
        )
    return np.concatenate(parts)
