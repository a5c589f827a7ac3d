"""What callbacks see of a run, and the steps of the training see of each other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from boxwright.accel.estimator.blueprint import Result, Step, name_losses
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError


class Stop:
    """What `run.stop` is: `run.stop()` ends the training after the epoch, `if run.stop` asks whether it ends."""

    def __init__(self, run: "Run") -> None:
        self._run = run

    def __call__(self) -> None:
        """End the training after this epoch."""
        self._run.asked_to_stop = True

    def __bool__(self) -> bool:
        return self._run.asked_to_stop or self._run.stops_now


@dataclass(kw_only=True)
class Run:
    """What a callback sees in its worker.

    Attributes:
        nano: ranks and collectives of this worker.
        config: the estimator's config.
        model: the model.
        optimizer: its optimizer; None outside `fit`.
        scheduler: its learning rate scheduler; None without one.
        criterion: the loss function; None if the model or a step has its own.
        epoch: epochs begun since the first `fit`, from 1.
        epochs: epochs done.
        num_epochs: the last epoch of this `fit`; 0 if `max_steps` ends it.
        iteration: steps done since the first `fit`.
        batch: the batch of this iteration, preprocessed.
        batch_idx: its number in this epoch, from 0.
        samples: how many samples it has.
        output: what the model returned for it.
        target: what metrics compare the output with.
        loss: what is minimised.
        result: losses and outputs of this iteration, once forward is done.
        metrics: the numbers of the epoch, once it is done.
        lr: the learning rate of the first parameter group.
    """

    nano: TorchNano
    config: dict[str, Any]
    model: nn.Module
    step: Step | None = None
    optimizer: Any = None
    scheduler: Any = None
    criterion: Any = None
    epoch: int = 0
    epochs: int = 0
    num_epochs: int = 0
    iteration: int = 0
    batch: Any = None
    batch_idx: int = 0
    samples: int = 0
    output: Any = None
    target: Any = None
    loss: Tensor | None = None
    result: Result | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    asked_to_stop: bool = False
    stops_now: bool = False
    write_checkpoint: Callable[[str | Path, bool], None] | None = None
    _stored: dict[str, Any] = field(default_factory=dict)

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def stop(self) -> Stop:
        """`run.stop()` ends the training after this epoch, `run.stop = True` after this iteration.

        One worker is enough to ask for it.
        """
        return Stop(self)

    @stop.setter
    def stop(self, value: bool) -> None:
        self.stops_now = bool(value)

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self.nano.global_rank

    @property
    def global_step(self) -> int:
        """Steps done since the first `fit`: `iteration` under Orca's name."""
        return self.iteration

    @property
    def epoch_stats(self) -> dict[str, Any]:
        """The numbers of the epoch, once it is done: `metrics` under Orca's name."""
        return self.metrics

    def put(self, key: str, value: Any) -> None:
        """Store a value for other hooks of this worker.

        Raises:
            UsageError: there is one of that name.
        """
        if key in self._stored:
            raise UsageError(f"put({key!r}, …): there is a value of that name. Use update({key!r}, …) to replace it.")
        self._stored[key] = value

    def update(self, key: str, value: Any) -> None:
        """Replace a stored value."""
        self.get(key)
        self._stored[key] = value

    def get(self, key: str) -> Any:
        """Return a stored value.

        Raises:
            UsageError: there is none of that name.
        """
        if key not in self._stored:
            raise UsageError(f"There is no value {key!r}. Store it with put({key!r}, …).")
        return self._stored[key]

    def remove(self, key: str) -> None:
        """Remove a stored value."""
        self.get(key)
        del self._stored[key]

    def save_checkpoint(self, path: str | Path, save_weights_only: bool = False) -> None:
        """Write a checkpoint for `load_checkpoint`, or the weights for `load`, from the first worker.

        Raises:
            UsageError: nothing is trained: this is not `fit`.
        """
        if self.write_checkpoint is None:
            raise UsageError("save_checkpoint() is for fit(): evaluate() and predict() change nothing.")
        self.write_checkpoint(path, save_weights_only)

    def begin_batch(self, batch: Any, number: int, samples: int) -> None:
        """Forget the last batch and show this one."""
        self.batch, self.batch_idx, self.samples = batch, number, samples
        self.output = self.loss = self.result = None
        self.target = batch[-1] if isinstance(batch, list | tuple) and batch else batch

    def end_forward(self) -> Result:
        """Return what forward left: the losses that it reported, with `loss` as the one that is minimised."""
        losses = {} if self.result is None else dict(self.result.losses)
        if self.loss is not None:
            losses["loss"] = self.loss
        self.result = Result(losses=name_losses(losses), outputs=self.output, targets=self.target, samples=self.samples)
        return self.result
