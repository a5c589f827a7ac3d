"""Callbacks of `fit`, `evaluate` and `predict`: their hooks, and the one that replaces steps of the training."""

from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from boxwright.accel.estimator.blueprint import form_of, run_step
from boxwright.accel.estimator.run import Run
from boxwright.core.errors import UsageError
from boxwright.core.hooks import check_hooks


class Callback:
    """Does nothing; override the hooks you need. Every worker has its own copy; `run.rank` is its number.

    What a callback stores stays in its worker. To get something back, write it to a file or print it.

    Hooks with `train` in their name are called by `fit`, those with `val` by `evaluate` and by the validation in `fit`,
    those with `pred` by `predict`.

    Example:
        >>> class StopEarly(Callback):
        ...     def after_epoch(self, run):
        ...         if run.metrics["train_loss"] < 0.1:
        ...             run.stop()
    """

    def before_run(self, run: Run) -> None:
        """Everything is built; training begins."""

    def after_run(self, run: Run) -> None:
        """Training has ended, normally or by an error."""

    def before_epoch(self, run: Run) -> None:
        """An epoch begins."""

    def after_epoch(self, run: Run) -> None:
        """An epoch is trained and validated; `run.metrics` holds its numbers. The checkpoint comes next."""

    def before_iteration(self, run: Run) -> None:
        """`run.batch` is there, preprocessed; forward comes next. By default calls `before_iter`."""
        self.before_iter(run)

    def after_iteration(self, run: Run) -> None:
        """The optimizer has stepped; `run.result` holds losses and outputs. By default calls `after_iter`."""
        self.after_iter(run)

    def before_iter(self, run: Run) -> None:
        """A batch of training, validation or prediction is there; forward comes next."""

    def after_iter(self, run: Run) -> None:
        """A batch of training, validation or prediction is done."""

    def before_train_epoch(self, run: Run) -> None:
        """The same moment as `before_epoch`, which it calls by default."""
        self.before_epoch(run)

    def after_train_epoch(self, run: Run) -> None:
        """The same moment as `after_epoch`, which it calls by default."""
        self.after_epoch(run)

    def before_train_iter(self, run: Run) -> None:
        """The same moment as `before_iteration`, which it calls by default."""
        self.before_iteration(run)

    def after_train_iter(self, run: Run) -> None:
        """The same moment as `after_iteration`, which it calls by default."""
        self.after_iteration(run)

    def before_val_epoch(self, run: Run) -> None:
        """Scoring begins; the model is in evaluation mode."""

    def after_val_epoch(self, run: Run) -> None:
        """All batches of this worker are scored."""

    def before_val_iter(self, run: Run) -> None:
        """A batch to score is there. By default calls `before_iter`."""
        self.before_iter(run)

    def after_val_iter(self, run: Run) -> None:
        """A batch is scored. By default calls `after_iter`."""
        self.after_iter(run)

    def before_pred_epoch(self, run: Run) -> None:
        """Prediction begins; the model is in evaluation mode."""

    def after_pred_epoch(self, run: Run) -> None:
        """All batches of this worker are predicted."""

    def before_pred_iter(self, run: Run) -> None:
        """A batch to predict is there. By default calls `before_iter`."""
        self.before_iter(run)

    def after_pred_iter(self, run: Run) -> None:
        """`run.output` holds the batch's outputs. By default calls `after_iter`."""
        self.after_iter(run)


class MainCallback(Callback):
    """The callback that does the work of an iteration; at most one of them is passed. Override what is different.

    Example:
        >>> class SumOfLosses(MainCallback):
        ...     def on_iter_forward(self, run):
        ...         images, targets = run.batch
        ...         run.output = run.model(images, targets)
        ...         run.loss = sum(run.output.values())
    """

    def on_iter_forward(self, run: Run) -> None:
        """Set `run.output` and `run.loss` for `run.batch`, and `run.target` where it is not the batch's last element.

        For training and scoring. By default, the estimator's step, or the model and its loss.
        """
        assert run.step is not None
        run.result = run_step(run.step, run.model, run.batch, run.samples)
        run.output, run.target, run.loss = run.result.outputs, run.result.targets, run.result.losses.get("loss")

    def on_iter_backward(self, run: Run) -> None:
        """Compute gradients from `run.loss` and step."""
        assert run.loss is not None
        run.optimizer.zero_grad(set_to_none=True)
        run.nano.backward(run.loss)
        run.optimizer.step()

    def on_lr_adjust(self, run: Run) -> None:
        """Change the learning rate, after each epoch or each iteration as `scheduler_pace` says.

        After an epoch, `run.metrics` holds its numbers.
        """
        if isinstance(run.scheduler, ReduceLROnPlateau):
            run.scheduler.step(run.metrics.get("val_loss", run.metrics["train_loss"]))
        elif run.scheduler is not None:
            run.scheduler.step()

    def on_train_forward(self, run: Run) -> None:
        """Do the forward pass of training. By default calls `on_iter_forward`."""
        self.on_iter_forward(run)

    def on_val_forward(self, run: Run) -> None:
        """Do the forward pass of scoring, without gradients. By default calls `on_iter_forward`."""
        self.on_iter_forward(run)

    def on_pred_forward(self, run: Run) -> None:
        """Set `run.output` for `run.batch`, without gradients."""
        if run.step is not None:
            run.output = run_step(run.step, run.model, run.batch, run.samples).outputs
        else:
            (args, kwargs), _ = form_of(run.model).split(run.batch)
            run.output = run.model(*args, **kwargs)


def _names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in vars(kind) if name.startswith(("before_", "after_", "on_")))


_MOMENTS, _STEPS = _names(Callback), _names(MainCallback)


class Hooks:
    """The callbacks of one call, with a main callback that does what none of them replaces."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        main = next((one for one in callbacks if isinstance(one, MainCallback)), None)
        self.main = main or MainCallback()
        # The main callback first: the others see what it has set.
        self._called = sorted(callbacks, key=lambda one: one is not main)

    def __len__(self) -> int:
        return len(self._called)

    def call(self, moment: str, run: Run) -> None:
        """Call one hook of all callbacks."""
        for callback in self._called:
            getattr(callback, moment)(run)

    def replaces(self, step: str) -> bool:
        """Return whether a step of the training is the user's own."""
        return getattr(type(self.main), step) is not getattr(MainCallback, step) or step in vars(self.main)


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return the callbacks of one call.

    Raises:
        UsageError: one of them is not a callback, has a method that is never called, or there are two main callbacks.
    """
    if not isinstance(callbacks, Sequence):
        raise UsageError(f"callbacks is a {type(callbacks).__name__}. Give a list of them.")
    for number, one in enumerate(callbacks):
        name = f"callbacks[{number}]"
        if isinstance(one, type):
            raise UsageError(f"{name} is a class. Give an object: {one.__name__}(…).")
        if not all(callable(getattr(one, moment, None)) for moment in _MOMENTS):
            raise UsageError(
                f"{name} is a {type(one).__name__}. Give an object of a class that inherits from "
                f"boxwright.accel.estimator.Callback and overrides some of: {', '.join(_MOMENTS)}."
            )
        is_main = isinstance(one, MainCallback)
        for step in _STEPS:
            if not is_main and hasattr(one, step):
                raise UsageError(
                    f"{name} has a method {step!r}, which only a MainCallback may have. Inherit from "
                    "boxwright.accel.estimator.MainCallback."
                )
        check_hooks(one, name, (*_MOMENTS, *_STEPS) if is_main else _MOMENTS)
    mains = [type(one).__name__ for one in callbacks if isinstance(one, MainCallback)]
    if len(mains) > 1:
        raise UsageError(
            f"callbacks has {len(mains)} main callbacks ({', '.join(mains)}), and each would train the model. Give one."
        )
    return tuple(callbacks)
