"""Training, as it runs in every worker."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from boxwright.accel.estimator.blueprint import Blueprint, SampleCounter, run_step
from boxwright.accel.estimator.metrics import LossMeans
from boxwright.accel.estimator.scoring import score
from boxwright.accel.estimator.sources import CreatorSource, Source, in_step
from boxwright.accel.estimator.state import Callback, Run, State, to_cpu
from boxwright.accel.loaders import seeded
from boxwright.accel.nano import TorchNano
from boxwright.accel.places import has_file
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.log import get_logger

_log = get_logger(__name__)
_SAME = 1e-6


@dataclass(frozen=True, kw_only=True)
class FitJob:
    """One `fit`, as it is sent to the workers.

    Attributes:
        blueprint: what to build.
        data: the training set.
        validation: scored after each epoch; None for nothing.
        epochs: the last epoch, counted from the first `fit`.
        callbacks: of the user.
        state: where to begin.
        checkpoint: the file or URL that is written after each epoch; None for none.
        run: identifies this `fit`, so that a restart finds its own checkpoint.
    """

    blueprint: Blueprint
    data: Source
    validation: Source | None
    epochs: int
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
        self._model, self._optimizer = nano.setup(model, optimizer)
        nano.load_scaler_state(begin.scaler)
        self._loader = job.data.open_training(nano, self._config)
        if isinstance(job.validation, CreatorSource):
            job.validation.check(self._config)
        self._step = blueprint.make_step(self._config, nano.to_device)
        self._count = SampleCounter(blueprint.count_samples)
        self._state = begin
        self._run = Run(
            nano=nano,
            config=self._config,
            model=self._model,
            optimizer=self._raw_optimizer,
            epoch=begin.epoch,
            iteration=begin.iteration,
        )

    def fit(self) -> State:
        """Train to the last epoch, or until a callback asks to stop."""
        self._call("before_run")
        try:
            while self._state.epoch < self._job.epochs:
                self._fit_epoch()
                if self._anyone_stops():
                    break
        finally:
            self._call("after_run")
        return self._state

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
            _log.warning("Restarted: resuming after epoch %d of %d.", saved.epoch, job.epochs)
        return saved

    def _fit_epoch(self) -> None:
        epoch = self._state.epoch
        # A seed for each epoch of each worker: random numbers depend on nothing before, a repeat is bit-identical.
        mixed = random.Random(f"{self._job.blueprint.seed} {epoch} {self._nano.global_rank}")
        self._nano.seed_everything(mixed.getrandbits(31))
        self._loader.set_epoch(epoch)
        self._run.epoch, self._run.metrics, self._run.result = epoch + 1, {}, None
        self._call("before_epoch")
        losses = self._train_epoch()
        self._check_same_weights()
        metrics = self._collect(losses)
        if self._job.validation is not None:
            self._share_buffers()
            model = self._model.alone()
            scored = score(self._nano, self._job.blueprint, model, self._job.validation, self._config, self._count)
            metrics |= {f"val_{name}": value for name, value in scored.items()}
        metrics = self._nano.broadcast(metrics)
        self._step_scheduler("epoch", metrics)
        self._run.metrics = metrics
        self._call("after_epoch")
        if self._nano.is_global_zero:
            _log.info("epoch %d/%d %s", epoch + 1, self._job.epochs, _describe(metrics))
        self._keep(metrics)

    def _train_epoch(self) -> LossMeans:
        self._model.train()
        losses = LossMeans()
        for batch in in_step(self._nano, self._loader):
            self._run.batch, self._run.result = self._job.blueprint.prepare(batch), None
            self._call("before_iteration")
            result = run_step(self._step, self._model, self._run.batch, self._count(self._run.batch))
            if "loss" not in result.losses:
                raise UsageError(
                    "There is no loss to train on. Give from_torch() a loss or a step(model, batch) that returns "
                    "(losses, outputs), or let the model return its loss."
                )
            self._nano.backward(result.losses["loss"])
            self._check_all_used()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._step_scheduler("iteration", {})
            losses.update(result)
            self._run.iteration += 1
            self._run.result = result
            self._call("after_iteration")
        self._run.batch = self._run.result = None
        return losses

    def _collect(self, losses: LossMeans) -> dict[str, Any]:
        """Return the numbers of the epoch over all workers, in the first worker."""
        means, samples = losses.compute(self._nano)
        if not self._nano.is_global_zero:
            return {}
        if not means:
            raise UsageError("The training data gave no batch. Look at the data, or use a smaller batch_size.")
        named = {f"train_{name}": mean for name, mean in means.items()}
        return {"epoch": self._run.epoch, "lr": self._run.lr, **named, "num_samples": samples}

    def _step_scheduler(self, pace: str, metrics: Mapping[str, Any]) -> None:
        if self._scheduler is None or pace != self._job.blueprint.scheduler_pace:
            return
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(metrics.get("val_loss", metrics["train_loss"]))
        else:
            self._scheduler.step()

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
        """Stop if workers have different weights: their gradients were not shared."""
        if not self._nano.is_distributed:
            return
        mine = torch.stack([p.detach().double().abs().sum().cpu() for p in self._inner.parameters()])
        every = self._nano.all_gather(mine.to(self._nano.device))
        if not torch.allclose(every, every[:1].expand_as(every), rtol=_SAME, atol=0, equal_nan=True):
            raise UsageError(
                "The workers' weights have drifted apart, so their gradients were not shared. In step(model, batch), "
                "call model(...) itself for the forward pass, not a method of it."
            )

    def _share_buffers(self) -> None:
        """Give every worker the first one's buffers (batch-norm statistics), which are the saved ones."""
        buffers = {name: buffer.cpu() for name, buffer in self._inner.named_buffers()}
        if self._nano.is_distributed and buffers:
            first = self._nano.broadcast(buffers)
            for name, buffer in self._inner.named_buffers():
                buffer.copy_(first[name])

    def _keep(self, metrics: dict[str, Any]) -> None:
        """Store the state after an epoch; the first worker writes it."""
        job = self._job
        first = self._nano.is_global_zero or self._nano.is_external
        self._state = State(
            # The other workers need only the counters.
            model=to_cpu(self._model.state_dict()) if first else None,
            optimizer=to_cpu(self._raw_optimizer.state_dict()) if first else None,
            scheduler=None if self._scheduler is None else dict(self._scheduler.state_dict()),
            scaler=self._nano.scaler_state(),
            epoch=self._state.epoch + 1,
            iteration=self._run.iteration,
            stats=[*self._state.stats, metrics],
            run=job.run,
        )
        if self._nano.is_global_zero and job.checkpoint is not None:
            self._state.save(job.checkpoint)

    def _anyone_stops(self) -> bool:
        mine = torch.tensor([float(self._run.asked_to_stop)], device=self._nano.device)
        return bool(self._nano.all_reduce(mine, "sum") > 0)

    def _call(self, moment: str) -> None:
        for callback in self._job.callbacks:
            getattr(callback, moment)(self._run)


def _describe(metrics: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "epoch"}
    return " ".join(f"{name} {value:.4g}" for name, value in shown.items())
