"""The blueprint: everything a worker needs to build model, optimizer, scheduler, loss and metrics for itself."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from boxwright.accel.estimator.samples import SampleCounter
from boxwright.accel.estimator.step import LossStep, OwnLossStep, Step, make_loss
from boxwright.accel.loaders import seeded
from boxwright.core.errors import CheckpointError, UsageError

SchedulerPace = Literal["epoch", "iteration"]


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """The creators and the config. This crosses the border to a worker; what it makes does not.

    Attributes:
        model: `model(config)` returns the network.
        optimizer: `optimizer(model, config)` returns its optimizer; None where nothing is trained.
        loss: a module, `f(outputs, targets)`, or a creator of one from the config; None for a model that owns its loss.
        metrics: by name.
        scheduler: `scheduler(optimizer, config)` returns a learning rate scheduler, or None for a constant rate.
        scheduler_pace: what the scheduler counts.
        preprocess: `preprocess(batch)` returns the batch that goes into the step.
        step: `step(model, batch)` in place of forward and loss.
        count_samples: `count_samples(batch)` returns how many samples a batch has; None to tell it by its form.
        config: what all creators are given.
        seed: of weights, of the order of samples and of all random numbers in the workers.
    """

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
        """Return a config of its own for this worker: creators may write into it."""
        return deepcopy(dict(self.config))

    def make_model(self, weights: Mapping[str, Any] | None, config: dict[str, Any]) -> nn.Module:
        """Return the network, with these weights if there are any; otherwise as the creator and the seed make it.

        Raises:
            UsageError: the creator returned something else.
            CheckpointError: the weights are another network's.
        """
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
        """Return the model's optimizer.

        Raises:
            UsageError: there is no creator, or it returned something else.
        """
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
            return OwnLossStep()
        loss = make_loss(self.loss, config)
        return LossStep(move(loss) if isinstance(loss, nn.Module) else loss)

    def prepare(self, batch: Any) -> Any:
        """Return a batch as it goes into the step."""
        return batch if self.preprocess is None else self.preprocess(batch)

    def make_counter(self) -> SampleCounter:
        """Return what counts the samples of batches."""
        return SampleCounter(self.count_samples)
