"""What a worker builds for itself (model, optimizer, loss), and what it does with one batch."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from operator import index
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from boxwright.accel.loaders import seeded
from boxwright.core.batches import BatchForm, count_samples, parameters_of, required_inputs
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.log import get_logger

_log = get_logger(__name__)

SchedulerPace = Literal["epoch", "iteration"]

Step = Callable[[nn.Module, Any], Any]
"""`step(model, batch)` returns (losses, outputs) or (losses, outputs, targets).

Losses are a tensor, a dict of tensors, or outside training None.
"""

TOTALS = ("loss", "total_loss", "total")
"""The names under which a dict of losses holds their sum; without one of them, all entries are added up."""


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """The creators and the config: what is sent to a worker. See `Estimator.from_torch` for the attributes."""

    model: Callable[[dict[str, Any]], nn.Module]
    optimizer: Callable[[nn.Module, dict[str, Any]], Optimizer] | None = None
    loss: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Callable[[Optimizer, dict[str, Any]], Any] | None = None
    scheduler_pace: SchedulerPace = "epoch"
    preprocess: Callable[[Any], Any] | None = None
    step: Step | None = None
    count_samples: Callable[[Any], int] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def copy_config(self) -> dict[str, Any]:
        """Return a config for this worker alone: creators may write into it."""
        return deepcopy(dict(self.config))

    def make_model(self, weights: Mapping[str, Any] | None, config: dict[str, Any]) -> nn.Module:
        """Return the network, with these weights if there are any; otherwise as the creator and the seed make it."""
        with seeded(self.seed):
            model = self.model(config)
        if not isinstance(model, nn.Module):
            raise UsageError(f"The model creator returned a {type(model).__name__}. Return a torch.nn.Module.")
        if weights is not None:
            try:
                model.load_state_dict(weights)
            except RuntimeError as error:
                raise CheckpointError(f"The weights do not fit the model that the creator made: {error}") from error
        return model

    def make_optimizer(self, model: nn.Module, config: dict[str, Any]) -> Optimizer:
        """Return the model's optimizer."""
        if self.optimizer is None:
            raise UsageError("fit() needs an optimizer. Give from_torch() optimizer=f(model, config).")
        optimizer = self.optimizer(model, config)
        if not isinstance(optimizer, Optimizer):
            raise UsageError(f"The optimizer creator returned a {type(optimizer).__name__}. Return one optimizer.")
        return optimizer

    def make_step(self, config: dict[str, Any], move: Callable[[Any], Any]) -> Step:
        """Return what is done with a batch: the user's step, or forward and loss; `move` puts a loss on the device."""
        if self.step is not None:
            return self.step
        if self.loss is None:
            return own_loss_step
        loss = make_loss(self.loss, config)
        return LossStep(move(loss) if isinstance(loss, nn.Module) else loss)

    def prepare(self, batch: Any) -> Any:
        """Return a batch as it goes into the step."""
        return batch if self.preprocess is None else self.preprocess(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a step returned for one batch.

    Attributes:
        losses: by name; the one that is minimised is "loss". Empty where there was none.
        outputs: what the model returned.
        targets: what metrics compare the outputs with.
        samples: how many samples the batch had.
    """

    losses: dict[str, Tensor] = field(default_factory=dict)
    outputs: Any = None
    targets: Any = None
    samples: int = 1


def run_step(step: Step, model: nn.Module, batch: Any, samples: int | None = None) -> Result:
    """Return the result of a step on a batch; its samples are counted if they are not given."""
    answer = step(model, batch)
    if not isinstance(answer, tuple) or len(answer) not in (2, 3):
        raise UsageError(
            f"step(model, batch) returned a {_describe(answer)}. Return (losses, outputs) or (losses, outputs, targets)"
            "; losses may be None outside training."
        )
    losses, outputs = answer[:2]
    last = batch[-1] if isinstance(batch, list | tuple) and batch else batch
    targets = answer[2] if len(answer) == 3 else last
    samples = count_samples(batch) if samples is None else samples
    return Result(losses=name_losses(losses), outputs=outputs, targets=targets, samples=samples)


class LossStep:
    """The step of a model and a separate loss: `BatchForm` splits the batch into inputs and target."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        self.loss = loss
        self._form: BatchForm | None = None

    def __call__(self, model: nn.Module, batch: Any) -> tuple[Any, Any, Any]:
        """Return the loss, the outputs and the target of a batch."""
        self._form = self._form or form_of(model)
        (args, kwargs), target = self._form.split(batch)
        if target is None:
            raise UsageError(
                f"A loss needs batches of inputs and a target, but the batch is a {_describe(batch)}. Let the data "
                "give tuples whose last element is the target, or give the estimator a step(model, batch)."
            )
        outputs = model(*args, **kwargs)
        return self.loss(outputs, target), outputs, target


def own_loss_step(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """Return the losses and outputs of a model that owns its loss and is called with the whole batch.

    The form of the answer decides, in this order: a pair whose first value is a loss is (losses, outputs); in a dict,
    the scalar tensors are losses and the rest outputs; a scalar tensor is the loss; anything else is outputs alone, as
    such models return in evaluation.
    """
    if isinstance(batch, Mapping):
        answer = model(**batch)
    else:
        answer = model(*batch) if isinstance(batch, list | tuple) else model(batch)
    if isinstance(answer, tuple) and len(answer) == 2 and _is_loss(answer[0]):
        return answer
    if isinstance(answer, Mapping):
        losses = {name: value for name, value in answer.items() if _is_scalar(value)}
        outputs = {name: value for name, value in answer.items() if name not in losses}
        return losses or None, outputs or None
    return (answer, None) if _is_scalar(answer) else (None, answer)


def form_of(model: nn.Module) -> BatchForm:
    """Return how batches are split for a model that may have gone through `TorchNano.setup`."""
    return BatchForm(getattr(model, "_inner", model))


def make_loss(loss: Any, config: dict[str, Any]) -> Callable[..., Any]:
    """Return the loss function: the module or function itself, or what a creator made of the config."""
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        loss = loss()
    if not callable(loss):
        raise UsageError(f"loss={loss!r} can't be used. Give a module, f(outputs, targets), or a creator f(config).")
    parameters = parameters_of(loss)
    if isinstance(loss, nn.Module) or parameters is None or len(required_inputs(parameters)) >= 2:
        function: Callable[..., Any] = loss
        return function
    made: Any = loss(config)
    if not callable(made):
        raise UsageError(f"The loss creator returned a {_describe(made)}, which can't be called with outputs.")
    return made  # type: ignore[no-any-return]


def name_losses(losses: Any) -> dict[str, Tensor]:
    """Return losses by name, with the one that is minimised as "loss".

    Example:
        >>> name_losses({"box": torch.tensor(1.0), "class": torch.tensor(2.0)})["loss"]
        tensor(3.)
        >>> name_losses({"total_loss": torch.tensor(3.0), "box": torch.tensor(1.0)})["loss"]
        tensor(3.)
    """
    if losses is None:
        return {}
    if isinstance(losses, Tensor):
        losses = {"loss": losses}
    if not isinstance(losses, Mapping) or not all(isinstance(v, Tensor) and v.numel() == 1 for v in losses.values()):
        raise UsageError(f"Losses must be a tensor of one value or a dict of such, not a {_describe(losses)}.")
    named = {str(name): value.reshape(()) for name, value in losses.items()}
    if not named:
        return {}
    total = next((named[name] for name in TOTALS if name in named), None)
    return {"loss": torch.stack(list(named.values())).sum() if total is None else total, **named}


class SampleCounter:
    """Counts the samples of batches by the user's `count_samples(batch)`, or else by their form.

    A dict whose tensors have different lengths gets a warning, once: the order of a dict means nothing. In a tuple, the
    first element is the model's first input.
    """

    def __init__(self, stated: Callable[[Any], Any] | None) -> None:
        self._stated = stated
        self._warned = False

    def __call__(self, batch: Any) -> int:
        """Return how many samples a batch has."""
        if self._stated is not None:
            return _check_count(self._stated(batch))
        samples = count_samples(batch)
        if isinstance(batch, Mapping) and not self._warned:
            lengths = {name: len(value) for name, value in batch.items() if getattr(value, "shape", ())}
            if len(set(lengths.values())) > 1:
                self._warned = True
                _log.warning(
                    "The tensors of a batch have different lengths (%s): it is counted as %d samples. If that is "
                    "wrong, give from_torch() a count_samples(batch) that returns their number.",
                    ", ".join(f"{name} {length}" for name, length in lengths.items()),
                    samples,
                )
        return samples


def _check_count(stated: Any) -> int:
    try:
        samples = index(stated)
    except TypeError:
        samples = -1
    if samples < 0:
        raise UsageError(f"count_samples(batch) returned {stated!r}. Return how many samples the batch has.")
    return samples


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _is_loss(value: Any) -> bool:
    return _is_scalar(value) or (isinstance(value, Mapping) and bool(value) and all(map(_is_scalar, value.values())))


def _describe(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, list | tuple | Mapping) else ""
    shape = f" of shape {tuple(value.shape)!r}" if isinstance(value, Tensor) else ""
    return f"{type(value).__name__}{length}{shape}"
