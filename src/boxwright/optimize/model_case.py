"""A user's own model with its inputs and metric, as a `Case`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from boxwright.core.batches import BatchForm, Call, flat_inputs, iterate
from boxwright.core.errors import UsageError
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.optimize.accuracy import Scorer
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
    spec: Spec | None = None

    def source(self) -> Source:
        """Return the model with its example call."""
        return Source.of(self.model, *self.call)

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


def example_call(form: BatchForm, data: Any, input_sample: Any) -> Call:
    """Return an example call, made from the sample if there is one, else from the data's first batch.

    Raises:
        UsageError: there is neither.
    """
    if input_sample is not None:
        return sample_call(input_sample)
    if data is None:
        raise UsageError("There is no example of the model's inputs. Give training_data or input_sample.")
    for batch in iterate(data):
        return form.split(batch)[0]
    raise UsageError("The data gave no batch, so there is no example of the model's inputs. Is the loader empty?")


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
