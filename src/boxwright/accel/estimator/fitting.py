"""Training, as it runs in every worker."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from boxwright.accel.checkpoint import save_checkpoint
from boxwright.accel.estimator.blueprint import Blueprint, SampleCounter
from boxwright.accel.estimator.callbacks import Callback, Hooks
from boxwright.accel.estimator.metrics import LossMeans
from boxwright.accel.estimator.run import Run
from boxwright.accel.estimator.scoring import score
from boxwright.accel.estimator.sources import BatchSource, CreatorSource, in_step
from boxwright.accel.estimator.state import State, to_cpu
from boxwright.accel.loaders import seeded
from boxwright.accel.nano import TorchNano
from boxwright.accel.places import has_file, locate, to_write
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.types import Precision

_log = get_logger(__name__)
_SAME = 1e-6


@dataclass(frozen=True, kw_only=True)
class FitJob:
    """One `fit`, as it is sent to the workers.

    Attributes:
        blueprint: what to build.
        data: the training set.
        validation: scored after each epoch; None for nothing.
        epochs: the last epoch, counted from the first `fit`; None if `steps` ends it.
        steps: the last step, counted from the first `fit`; None if `epochs` ends it.
        callbacks: of the user.
        state: where to begin.
        checkpoint: the file or URL that is written after each epoch; None for none.
        run: identifies this `fit`, so that a restart finds its own checkpoint.
    """

    blueprint: Blueprint
    data: BatchSource
    validation: BatchSource | None
    epochs: int | None
    steps: int | None
    callbacks: Sequence[Callback]
    state: State
    checkpoint: str | None
    run: str


def fit(nano: TorchNano, job: FitJob) -> State:
    """Train in this worker, and return the state at the end."""
    with seeded(job.blueprint.seed):
        return _Fitting(nano, job).fit()


class _Fitting:
    def __init__(self, nano: TorchNano, job: FitJob) -> None:
        self._nano, self._job = nano, job
        blueprint = job.blueprint
        self._config = blueprint.copy_config()
        begin = self._find_begin()
        model = blueprint.make_model(begin.model, self._config)
        optimizer = blueprint.make_optimizer(model, self._config)
        if begin.optimizer is not None:
            optimizer.load_state_dict(begin.optimizer)
        self._scheduler: Any = blueprint.scheduler(optimizer, self._config) if blueprint.scheduler else None
        if isinstance(self._scheduler, ReduceLROnPlateau) and blueprint.scheduler_pace != "epoch":
            raise UsageError(
                f"scheduler_pace={blueprint.scheduler_pace!r} does not go with ReduceLROnPlateau, which steps by the "
                "loss of an epoch. Use scheduler_pace='epoch'."
            )
        if self._scheduler is not None and begin.scheduler is not None:
            self._scheduler.load_state_dict(begin.scheduler)
        self._inner, self._raw_optimizer = model, optimizer
        self._hooks = Hooks(job.callbacks)
        if self._hooks.replaces("on_iter_backward") and nano.plan.precision is Precision.FP16:
            raise UsageError(
                "precision='16' scales the loss, which an on_iter_backward() of your own does not. Use "
                "precision='bf16' or '32', or leave on_iter_backward() as it is."
            )
        self._model, self._optimizer = nano.setup(model, optimizer)
        nano.load_scaler_state(begin.scaler)
        self._loader = job.data.open_training(nano, self._config)
        if isinstance(job.validation, CreatorSource):
            job.validation.check(self._config)
        self._count = SampleCounter(blueprint.count_samples)
        self._state = begin
        self._ended = False
        step = blueprint.make_step(self._config, nano.to_device)
        self._run = Run(
            nano=nano,
            config=self._config,
            model=self._model,
            step=step,
            optimizer=self._optimizer,
            scheduler=self._scheduler,
            criterion=getattr(step, "loss", None),
            epoch=begin.epoch,
            epochs=begin.epoch,
            num_epochs=job.epochs or 0,
            iteration=begin.iteration,
            write_checkpoint=self._write_checkpoint,
        )

    def fit(self) -> State:
        """Train to the last epoch or step, or until a callback asks to stop."""
        self._hooks.call("before_run", self._run)
        try:
            while not self._is_done() and not self._any(self._run.stop):
                self._fit_epoch()
        finally:
            self._ended = True
            self._hooks.call("after_run", self._run)
        return self._state

    def _is_done(self) -> bool:
        job = self._job
        if job.steps is not None:
            return self._run.iteration >= job.steps
        return self._state.epoch >= (job.epochs or 0)

    def _find_begin(self) -> State:
        """Return the state to begin with: after a restart the checkpoint of this run, else the job's."""
        job = self._job
        saved: State | None = None
        if job.checkpoint is not None and self._nano.is_global_zero and has_file(job.checkpoint):
            try:
                saved = State.load(job.checkpoint)
            except CheckpointError as error:
                _log.warning("%s It will be replaced.", error)
        if saved is not None and saved.run != job.run:
            saved = None
        # Only the first worker's machine may have the file.
        saved = self._nano.broadcast(saved)
        if saved is None:
            return job.state
        if self._nano.is_global_zero:
            _log.warning("Restarted: resuming after epoch %d.", saved.epoch)
        return saved

    def _fit_epoch(self) -> None:
        epoch = self._state.epoch
        # A seed for each epoch of each worker: random numbers depend on nothing before, a repeat is bit-identical.
        mixed = random.Random(f"{self._job.blueprint.seed} {epoch} {self._nano.global_rank}")
        self._nano.seed_everything(mixed.getrandbits(31))
        self._loader.set_epoch(epoch)
        run = self._run
        run.epoch, run.metrics, run.result, before = epoch + 1, {}, None, run.iteration
        self._hooks.call("before_train_epoch", run)
        losses = self._train_epoch()
        self._check_same_weights()
        metrics = self._collect(losses, run.iteration - before)
        if self._job.validation is not None:
            metrics |= self._validate(self._job.validation)
        run.metrics = metrics = self._nano.broadcast(metrics)
        self._adjust_lr("epoch")
        run.epochs = epoch + 1
        self._hooks.call("after_train_epoch", run)
        if self._nano.is_global_zero:
            _log.info("epoch %d %s", epoch + 1, _describe(metrics))
        self._keep()

    def _train_epoch(self) -> LossMeans:
        self._model.train()
        losses, run, hooks = LossMeans(), self._run, self._hooks
        for number, raw in enumerate(in_step(self._nano, self._loader)):
            batch = self._job.blueprint.prepare(raw)
            run.begin_batch(batch, number, self._count(batch))
            hooks.call("before_train_iter", run)
            hooks.main.on_train_forward(run)
            result = run.end_forward()
            if "loss" not in result.losses:
                raise UsageError(
                    "There is no loss to train on. Give from_torch() a loss or a step(model, batch) that returns "
                    "(losses, outputs), let the model return its loss, or set run.loss in the forward of a "
                    "MainCallback."
                )
            run.loss = result.losses["loss"]
            hooks.main.on_iter_backward(run)
            if not hooks.replaces("on_iter_backward"):
                self._check_all_used()
                self._optimizer.zero_grad(set_to_none=True)  # the next forward needs the memory
            self._adjust_lr("iteration")
            losses.update(result)
            run.iteration += 1
            hooks.call("after_train_iter", run)
            if self._job.steps is not None and run.iteration >= self._job.steps:
                break
            if hooks and self._any(run.stops_now):
                break
        run.batch = run.result = run.output = run.target = run.loss = None
        return losses

    def _validate(self, data: BatchSource) -> dict[str, Any]:
        """Return the numbers of the validation set, in the first worker."""
        self._share_buffers()
        run = self._run
        run.model = self._model.alone()
        scored = score(run, self._hooks, self._job.blueprint, data, self._count)
        run.model = self._model
        return {f"val_{name}": value for name, value in scored.items()}

    def _collect(self, losses: LossMeans, batches: int) -> dict[str, Any]:
        """Return the numbers of the epoch over all workers, in the first worker."""
        means, samples = losses.compute(self._nano)
        if not self._nano.is_global_zero:
            return {}
        if not means:
            raise UsageError("The training data gave no batch. Look at the data, or use a smaller batch_size.")
        named = {f"train_{name}": mean for name, mean in means.items()}
        return {
            "epoch": self._run.epoch, "lr": self._run.lr, **named, "num_samples": samples, "batch_count": batches,
        }  # fmt: skip

    def _adjust_lr(self, pace: str) -> None:
        if pace == self._job.blueprint.scheduler_pace:
            self._hooks.main.on_lr_adjust(self._run)

    def _check_all_used(self) -> None:
        """Reject parameters without a gradient: torch would wait for them and not share their neighbours'."""
        parallel: Any = self._model._module
        if getattr(parallel, "find_unused_parameters", True):  # it copes with them, or there is one worker
            return
        unused = [name for name, p in parallel.module.named_parameters() if p.requires_grad and p.grad is None]
        if unused:
            raise UsageError(
                f"The parameter {unused[0]!r} got no gradient in this step ({len(unused)} in all did not), so workers "
                "can't share theirs. If the model leaves parameters out, give from_torch() "
                "find_unused_parameters=True, or keep them from being trained with requires_grad_(False)."
            )

    def _check_same_weights(self) -> None:
        """Stop if workers have different weights: something changes them that is not shared."""
        if not self._nano.is_distributed:
            return
        mine = torch.stack([p.detach().double().abs().sum().cpu() for p in self._inner.parameters()])
        every = self._nano.all_gather(mine.to(self._nano.device))
        if not torch.allclose(every, every[:1].expand_as(every), rtol=_SAME, atol=0, equal_nan=True):
            raise UsageError(
                "The workers' weights have drifted apart: something beside the optimizer changes them, and in each "
                "worker otherwise. Change them from values that all workers share: nano.broadcast(…) or all_reduce(…)."
            )

    def _share_buffers(self) -> None:
        """Give every worker the first one's buffers (batch-norm statistics), which are the saved ones."""
        buffers = {name: buffer.cpu() for name, buffer in self._inner.named_buffers()}
        if self._nano.is_distributed and buffers:
            first = self._nano.broadcast(buffers)
            for name, buffer in self._inner.named_buffers():
                buffer.copy_(first[name])

    def _snapshot(self) -> State:
        """Return the state as it is now."""
        run = self._run
        first = self._nano.is_global_zero or self._nano.is_external
        return State(
            # The other workers need only the counters.
            model=to_cpu(self._model.state_dict()) if first else None,
            optimizer=to_cpu(self._raw_optimizer.state_dict()) if first else None,
            scheduler=None if self._scheduler is None else dict(self._scheduler.state_dict()),
            scaler=self._nano.scaler_state(),
            epoch=run.epochs,
            iteration=run.iteration,
            stats=[*self._state.stats, run.metrics] if run.metrics else self._state.stats,
            run=self._job.run,
        )

    def _keep(self) -> None:
        """Store the state after an epoch; the first worker writes it."""
        self._state = self._snapshot()
        if self._nano.is_global_zero and self._job.checkpoint is not None:
            self._state.save(self._job.checkpoint)

    def _write_checkpoint(self, place: str | Path, weights_only: bool) -> None:
        """Write a checkpoint that a callback asks for: in the first worker; after the run, of its last whole epoch."""
        if not self._nano.is_global_zero:
            return
        state = self._state if self._ended else self._snapshot()
        if not weights_only:
            state.save(locate(place))
            return
        assert state.model is not None
        with to_write(locate(place)) as file:
            save_checkpoint(file, state.model)

    def _any(self, mine: object) -> bool:
        """Return whether something holds in any worker."""
        flag = torch.tensor([float(bool(mine))], device=self._nano.device)
        return bool(self._nano.all_reduce(flag, "sum") > 0)


def _describe(metrics: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "epoch"}
    return " ".join(f"{name} {value:.4g}" for name, value in shown.items())
