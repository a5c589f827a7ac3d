"""`Trainer.fit` in one of several processes, or an evaluation in one, and what it leaves in the caller's Trainer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.loop import _Loop

from boxwright.accel.lightning_device import merge_settings, settings_for
from boxwright.accel.module import as_list
from boxwright.accel.parcel import Changes, Parcel
from boxwright.accel.plan import Plan
from boxwright.accel.two_lightnings import adopted
from boxwright.core import catalogue
from boxwright.core.types import Precision
from boxwright.core.world import World
from boxwright.devices.base import Device, move

METRICS = ("callback_metrics", "logged_metrics", "progress_bar_metrics")
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class LightningFit:
    """One `fit`, as it is sent to the workers.

    Attributes:
        plan: of the run.
        settings: of Lightning's Trainer.
        device: our device; None for the CPU.
        find_unused_parameters: for modules that leave parameters out in some steps.
        model: what is trained.
        data: the further arguments of `fit`.
        progress: where an earlier `fit` ended; see `read_progress`.
        parcel: brings back what the fit leaves in the model and the callbacks.
    """

    plan: Plan
    settings: dict[str, Any]
    device: Device | None
    find_unused_parameters: bool
    model: LightningModule
    data: tuple[tuple[Any, ...], dict[str, Any]]
    progress: dict[str, Any]
    parcel: Parcel


def fit_in_worker(job: LightningFit, world: World) -> tuple[dict[str, Any], Changes] | None:
    """Fit as one of several processes; the first one returns what `take_back` needs."""
    kept = {k: v for k, v in job.settings.items() if k not in ("accelerator", "devices", "num_nodes")}
    # Our launchers set torchrun's variables, which that environment reads.
    kept["plugins"] = [*as_list(job.settings.get("plugins")), TorchElasticEnvironment()]
    device = job.device or catalogue.load("device", "cpu")()
    # Lightning wants machines of one size. It may take all processes for those of one machine.
    ours = settings_for(
        device,
        job.plan.precision,
        processes=world.world_size,
        local_rank=world.local_rank,
        find_unused_parameters=job.find_unused_parameters,
    )
    trainer = LightningTrainer(num_nodes=1, **merge_settings(kept, ours))
    set_progress(trainer, job.progress)
    job.parcel.bind(0, trainer)
    job.parcel.open()
    with adopted(job.model, *job.data[0], *job.data[1].values()):
        trainer.fit(job.model, *job.data[0], **job.data[1])
    if not world.is_first:
        return None
    end = {
        **{kind: move(dict(getattr(trainer, kind)), _CPU) for kind in METRICS},
        "progress": read_progress(trainer),
        "should_stop": trainer.should_stop,
        "checkpoints": [move(c.state_dict(), _CPU) for c in trainer.checkpoint_callbacks],
        "precision": trainer.precision_plugin.state_dict(),
        "status": trainer.state.status,
    }
    for optimizer in trainer.optimizers:
        optimizer.state.update({p: move(state, _CPU) for p, state in optimizer.state.items()})
    # In one list: schedulers refer to optimizers, and those to the model's parameters.
    end["optimizers"] = (list(trainer.optimizers), list(trainer.lr_scheduler_configs))
    return end, job.parcel.close()


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """One `validate`, `test` or `predict`, as it is sent to the worker.

    Attributes:
        verb: the name of the Trainer's method.
        precision: of the run.
        settings: of Lightning's Trainer.
        device: our device.
        arguments: of the method, by name; the model is among them.
        parcel: brings back what the run leaves in the model and the callbacks.
    """

    verb: str
    precision: Precision
    settings: dict[str, Any]
    device: Device
    arguments: dict[str, Any]
    parcel: Parcel


def evaluate_in_worker(job: EvaluationJob, world: World) -> tuple[Any, dict[str, Any], Changes]:
    """Run the method on one device; return what it returns, the metrics, and the changes of the caller's objects."""
    kept = {k: v for k, v in job.settings.items() if k not in ("accelerator", "devices", "num_nodes", "strategy")}
    ours = settings_for(job.device, job.precision, processes=1, local_rank=world.local_rank)
    trainer = LightningTrainer(**merge_settings(kept, ours))
    job.parcel.bind(0, trainer)
    job.parcel.open()
    with adopted(*job.arguments.values()):
        result = getattr(trainer, job.verb)(**job.arguments)
    metrics = {kind: move(dict(getattr(trainer, kind)), _CPU) for kind in METRICS}
    return move(result, _CPU), metrics, job.parcel.close()


def take_back(trainer: LightningTrainer, model: LightningModule, end: Mapping[str, Any]) -> None:
    """Bring the caller's Trainer to the end of the workers' fit."""
    trainer.strategy._lightning_module = model
    model.trainer = trainer
    set_progress(trainer, end["progress"])
    trainer.should_stop = end["should_stop"]
    for kind in METRICS:
        getattr(trainer, kind).update(end[kind])
    trainer.strategy.optimizers, trainer.strategy.lr_scheduler_configs = end["optimizers"]
    if end["precision"]:
        trainer.precision_plugin.load_state_dict(end["precision"])
    trainer._callback_connector._attach_model_callbacks()
    for callback, state in zip(trainer.checkpoint_callbacks, end["checkpoints"], strict=False):
        if isinstance(callback, ModelCheckpoint):
            # The workers chose the folder. Lightning drops the scores if it differs.
            callback.dirpath, callback.current_score = state["dirpath"], state["current_score"]
        callback.load_state_dict(state)
    trainer.state.status = end["status"]


def read_progress(trainer: LightningTrainer) -> dict[str, Any]:
    """Return what the loops have counted, and the limits that a caller may have changed since the Trainer was made."""
    fit = trainer.fit_loop
    limits = {"max_epochs": fit.max_epochs, "min_epochs": fit.min_epochs}
    return {"loops": fit.state_dict(), "limits": limits, "max_steps": fit.epoch_loop.max_steps}


def set_progress(trainer: LightningTrainer, progress: Mapping[str, Any]) -> None:
    """Set what `read_progress` returned."""
    fit = trainer.fit_loop
    fit.load_state_dict(progress["loops"])
    _end_restart(fit)  # it continues like a second `fit` of the same Trainer, not like one from a checkpoint
    fit.max_epochs, fit.min_epochs = progress["limits"]["max_epochs"], progress["limits"]["min_epochs"]
    fit.epoch_loop.max_steps = progress["max_steps"]


def _end_restart(loop: Any) -> None:
    loop.on_iteration_done()
    for part in vars(loop).values():
        if isinstance(part, _Loop):
            _end_restart(part)
