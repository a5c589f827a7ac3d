"""What happens with one batch: inputs, forward, losses, and what metrics compare outputs with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.accel.estimator.samples import count_samples
from boxwright.core.errors import UsageError

Step = Callable[[nn.Module, Any], Any]
"""`step(model, batch)` returns (losses, outputs) or (losses, outputs, targets).

Losses are a tensor, a dict of tensors, or outside training None.
"""

TOTALS = ("loss", "total_loss", "total")
"""The names under which a dict of losses holds their sum; without one of them, all entries are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one batch.

    Attributes:
        losses: by name; the one that is minimised is "loss". Empty where there was none.
        outputs: what the model gave.
        targets: what metrics compare the outputs with.
        samples: how many samples the batch had.
    """

    losses: dict[str, Tensor] = field(default_factory=dict)
    outputs: Any = None
    targets: Any = None
    samples: int = 1


def run_step(step: Step, model: nn.Module, batch: Any, samples: int | None = None) -> Result:
    """Return what a step made of a batch, in one form.

    Args:
        step: what is done with it.
        model: the model.
        batch: the batch.
        samples: how many samples it has; counted where it is None.

    Raises:
        UsageError: the step did not return (losses, outputs) or (losses, outputs, targets).
    """
    answer = step(model, batch)
    if not isinstance(answer, tuple) or len(answer) not in (2, 3):
        raise UsageError(
            f"step(model, batch) returned a {_describe(answer)}. Return (losses, outputs) or (losses, outputs, targets)"
            "; losses may be None outside training."
        )
    losses, outputs = answer[:2]
    targets = answer[2] if len(answer) == 3 else find_targets(batch)
    samples = count_samples(batch) if samples is None else samples
    return Result(losses=name_losses(losses), outputs=outputs, targets=targets, samples=samples)


def name_losses(losses: Any) -> dict[str, Tensor]:
    """Return losses by name, with the one that is minimised as "loss".

    Raises:
        UsageError: it is neither a scalar tensor nor a dict of them.

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


class LossStep:
    """The step of a model and a loss beside it: a batch's last element is the target, those before it are inputs."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        self._loss = loss

    def __call__(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Return the loss and the outputs of a batch."""
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise UsageError(
                f"A loss needs batches of inputs and a target, but the batch is a {_describe(batch)}. Let the data "
                "give tuples whose last element is the target, or give the estimator a step(model, batch)."
            )
        outputs = model(*batch[:-1])
        return self._loss(outputs, batch[-1]), outputs


class OwnLossStep:
    """The step of a model that owns its loss: it is called with the whole batch.

    What it returns is told apart by its form: a tensor of one value is the loss; of a dict, the tensors of one value
    are losses and the rest outputs; a pair may be (losses, outputs); anything else is outputs alone, as models give
    in evaluation.
    """

    def __call__(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Return the losses and the outputs of a batch."""
        if isinstance(batch, Mapping):
            answer = model(**batch)
        elif isinstance(batch, list | tuple):
            answer = model(*batch)
        else:
            answer = model(batch)
        if isinstance(answer, tuple) and len(answer) == 2 and _is_loss(answer[0]):
            return answer
        if isinstance(answer, Mapping):
            losses = {name: value for name, value in answer.items() if _is_scalar(value)}
            outputs = {name: value for name, value in answer.items() if name not in losses}
            return losses or None, outputs or None
        return (answer, None) if _is_scalar(answer) else (None, answer)


def forward_inputs(model: nn.Module, batch: Any) -> Any:
    """Return the model's outputs for the inputs of a batch that may carry a target.

    Of a tuple or list that is longer than `forward` requires, the last element is taken for the target and left out.
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    if not isinstance(batch, list | tuple):
        return model(batch)
    inner: Any = getattr(model, "_inner", model)
    required = [
        p
        for p in signature(inner.forward).parameters.values()
        if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) and p.default is Parameter.empty
    ]
    inputs = batch[:-1] if len(batch) > max(len(required), 1) else batch
    return model(*inputs)


def make_loss(loss: Any, config: dict[str, Any]) -> Callable[..., Any]:
    """Return the loss function: the module or function itself, or what a creator made of the config.

    Raises:
        UsageError: it is none of them.
    """
    if isinstance(loss, nn.Module):
        return loss
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        module: nn.Module = loss()
        return module
    if not callable(loss):
        raise UsageError(f"loss={loss!r} can't be used. Give a module, f(outputs, targets), or a creator f(config).")
    if count_required(loss) >= 2:
        function: Callable[..., Any] = loss
        return function
    made: Any = loss(config)
    if not callable(made):
        raise UsageError(f"The loss creator returned a {_describe(made)}, which can't be called with outputs.")
    return made  # type: ignore[no-any-return]


def count_required(function: Callable[..., Any]) -> int:
    """Return how many positional arguments a function can't do without; 2 where it does not say."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # a compiled function without a signature
        return 2
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is Parameter.empty for p in parameters)


def find_targets(batch: Any) -> Any:
    """Return what metrics compare with: the last element of a tuple or list, any other batch as a whole."""
    return batch[-1] if isinstance(batch, list | tuple) and batch else batch


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _is_loss(value: Any) -> bool:
    return _is_scalar(value) or (isinstance(value, Mapping) and bool(value) and all(map(_is_scalar, value.values())))


def _describe(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, list | tuple | Mapping) else ""
    shape = f" of shape {tuple(value.shape)!r}" if isinstance(value, Tensor) else ""
    return f"{type(value).__name__}{length}{shape}"
