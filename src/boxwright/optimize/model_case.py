"""A user's own model with its inputs and metric, as a `Case`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from boxwright.core.batches import BatchForm, Call, flat_inputs, is_loader, iterate
from boxwright.core.errors import UsageError
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.core.structure import call_parts
from boxwright.optimize.accuracy import Scorer
from boxwright.optimize.dynamic import FreeAxes
from boxwright.optimize.model import sample_call
from boxwright.runtimes.source import Source

_PROBES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCase:
    """A user's own model and data, sent to every child as they are.

    `model_digest` is a hash of the weights, of their outputs for the example, and of the samples.
    """

    model: nn.Module
    call: Call
    samples: tuple[tuple[Array, ...], ...]
    scorer: Scorer | None
    model_digest: str
    axes: FreeAxes = field(default_factory=FreeAxes)
    spec: Spec | None = None

    def source(self) -> Source:
        """Return the model with its example call."""
        source: Source = self.axes.make_source(self.model, self.call)
        return source

    def probes(self) -> Sequence[tuple[Array, ...]]:
        """Return the example and a few batches of the training data."""
        return [flat_inputs(self.call), *self.samples[:_PROBES]]

    def calibration(self) -> Sequence[tuple[Array, ...]]:
        """Return batches of the training data."""
        return self.samples

    def timing_inputs(self) -> tuple[Array, ...]:
        """Return the example."""
        return flat_inputs(self.call)

    def fingerprint(self) -> str:
        """Return a hash of weights, outputs, samples and metric."""
        return self.model_digest if self.scorer is None else f"{self.model_digest} {self.scorer.fingerprint()}"


def example_call(form: BatchForm, model: Any, data: Any, input_sample: Any, *, known: Call | None = None) -> Call:
    """Return an example call: from the sample, the data's first batch, a known one, or what the model itself brings.

    A Lightning module may bring `example_input_array` or a loader of its own.

    Raises:
        UsageError: there is none.
    """
    if is_loader(input_sample):
        data, input_sample = input_sample, None
    if input_sample is None and data is None:
        if known is not None:
            return known
        input_sample = getattr(model, "example_input_array", None)
    if input_sample is not None:
        args, kwargs = sample_call(input_sample)
        return args, {name: value for name, value in kwargs.items() if name not in form.targets}
    for batch in iterate(own_loader(model) if data is None else data):
        return form.split(batch)[0]
    raise UsageError("The data gave no batch, so there is no example of the model's inputs. Is the loader empty?")


def brings_example(model: Any) -> bool:
    """Return whether a module has an example of its inputs, or a loader."""
    return getattr(model, "example_input_array", None) is not None or _find_loader(model) is not None


def own_loader(model: Any) -> Any:
    """Return the loader that a Lightning module makes itself.

    Raises:
        UsageError: it makes none.
    """
    name = _find_loader(model)
    if name is not None:
        return getattr(model, name)()
    raise UsageError(
        "There is no example of the model's inputs. Give input_sample, a loader of real inputs (training_data), or a "
        "module with example_input_array."
    )


def _find_loader(model: Any) -> str | None:
    """Return the name of the method by which a Lightning module makes a loader."""
    for name in ("train_dataloader", "val_dataloader", "predict_dataloader"):
        made = getattr(type(model), name, None)
        if made is not None and not made.__module__.startswith(("lightning.", "pytorch_lightning.")):
            return name
    return None


def take_samples(
    data: Any, form: BatchForm, source: Source, count: int, *, by_sample: bool = False
) -> list[tuple[Array, ...]]:
    """Return the flat inputs of the first batches, in the order of the source's signature.

    With `by_sample`, inputs that the example lacks are left out: the user's sample has chosen.
    """
    known = call_parts(source.signature.call)[1]
    samples = []
    for batch in islice(iterate(data), count):
        args, kwargs = form.split(batch)[0]
        if by_sample and known:
            kwargs = {name: value for name, value in kwargs.items() if name in known}
        samples.append(flat_inputs((tuple(source.signature.find_leaves(args, kwargs)), {})))
    return samples


def fitting_samples(source: Source, samples: Sequence[tuple[Array, ...]]) -> list[tuple[Array, ...]]:
    """Return the samples that the model accepts: where its batch is fixed, a smaller last one is left out."""
    ports = source.signature.inputs
    fitting = [s for s in samples if all(p.accepts_shape(a.shape) for p, a in zip(ports, s, strict=True))]
    if samples and not fitting:
        source.signature.check(samples[0])  # says what does not fit
    return fitting


def hash_model(source: Source, samples: Sequence[tuple[Array, ...]]) -> str:
    """Return a hash of the weights, of the outputs for the example, and of the samples."""
    digest = hashlib.sha256(repr((type(source.model).__qualname__, source.signature.to_dict())).encode())
    for name, tensor in sorted(source.model.state_dict().items()):
        digest.update(name.encode())
        if isinstance(tensor, torch.Tensor):
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for array in (*source.run([t.numpy() for t in source.example]), *(a for s in samples for a in s)):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
