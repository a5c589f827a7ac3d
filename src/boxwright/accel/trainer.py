"""Lightning's Trainer with our launchers, pinned cores and honest precisions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from boxwright.accel import ipex
from boxwright.accel.lightning_device import EndOfSteps, find_device, settings_for
from boxwright.accel.plan import Plan
from boxwright.accel.rate import ScaleRate
from boxwright.accel.strategy import make_launcher
from boxwright.core import catalogue
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.core.types import Precision
from boxwright.core.world import World
from boxwright.devices.base import Device
from boxwright.launchers.allocator import read_allocator
from boxwright.launchers.base import Launcher

_log = get_logger(__name__)
_LIGHTNING_NAMES = {
    Precision.FP64: "64-true",
    Precision.FP32: "32-true",
    Precision.BF16: "bf16-mixed",
    Precision.BF16_TRUE: "bf16-true",
}


class _OurProcesses(ClusterEnvironment):
    """Tells Lightning that the processes are there already, and which one this is."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    creates_processes_externally = True
    main_address = property(lambda self: self._world.master_addr)
    main_port = property(lambda self: self._world.master_port)

    @staticmethod
    def detect() -> bool:
        """Never by itself: the trainer hands it over."""
        return False

    def world_size(self) -> int:
        """Return how many processes there are."""
        return self._world.world_size

    def set_world_size(self, size: int) -> None:
        """Leave it: it is given."""

    def global_rank(self) -> int:
        """Return this process's number."""
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        """Leave it: it is given."""

    def local_rank(self) -> int:
        """Return this process's number on its machine."""
        return self._world.local_rank

    def node_rank(self) -> int:
        """Return the number of its machine."""
        return self._world.node_rank


class Trainer(LightningTrainer):
    """Lightning's Trainer with a few more settings; callbacks, loggers, checkpoints and resuming stay Lightning's.

    With `num_processes` above 1, `fit` starts that many pinned processes, each with a Trainer of its own; afterwards
    the weights, the metrics and the paths of checkpoints are back here.

    Args:
        num_processes: how many processes; 1 stays in this one.
        use_ipex: channels last and the optimisations of stock PyTorch; Intel's extension itself is for `TorchNano`.
        strategy: "subprocess", "spawn", "ray" or "spark", or a launcher with settings of its own; anything else goes
            to Lightning, for one process.
        distributed_backend: the same as `strategy`.
        cpu_for_each_process: which cpus each process gets, instead of an even share.
        channels_last: lay images and weights channels last in memory.
        auto_lr: multiply learning rates by the number of processes, the curves of schedulers with them;
            `{"warmup_epochs": n}` gets there in n epochs, where there is no scheduler.
        precision: 64, 32, 16, "bf16" or "bf16-true"; each is what it says, also 16 on a CPU.
        **lightning: everything that Lightning's Trainer takes. `accelerator` (or `device`) may also be a device that
            only Boxwright knows.
    """

    def __init__(
        self,
        num_processes: int | None = None,
        use_ipex: bool = False,
        distributed_backend: str | None = None,
        cpu_for_each_process: Sequence[Sequence[int]] | None = None,
        channels_last: bool = False,
        auto_lr: bool | Mapping[str, float] = False,
        precision: str | int = 32,
        strategy: Any = None,
        **lightning: Any,
    ) -> None:
        ours = catalogue.names("launcher")
        launcher: Launcher | None = None
        if getattr(strategy, "name", None) in ours:
            launcher, strategy = strategy, strategy.name
        if isinstance(strategy, str) and strategy in ours:
            if distributed_backend not in (None, strategy):
                raise UsageError(
                    f"strategy={strategy!r} and distributed_backend={distributed_backend!r} mean the same thing. "
                    "Give one of them."
                )
            distributed_backend, strategy = strategy, None
        if "device" in lightning:
            named = lightning.pop("device")
            if lightning.setdefault("accelerator", named) != named:
                raise UsageError(
                    f"device={named!r} and accelerator={lightning['accelerator']!r} mean the same thing. "
                    "Give one of them."
                )
        device = find_device(lightning.get("accelerator"))
        if device is not None:
            num_processes = num_processes or int(lightning.pop("devices", 1))
            own = lightning.get("callbacks") or []
            lightning["callbacks"] = [*(own if isinstance(own, (list, tuple)) else [own]), EndOfSteps(device)]
        if (num_processes or 1) > 1:
            for name in ("devices", "num_nodes"):
                if name in lightning:
                    raise UsageError(
                        f"{name}={lightning[name]!r} and num_processes={num_processes!r}: give one of them."
                    )
            if device is None and lightning.get("accelerator", "cpu") not in ("cpu", "auto"):
                raise UsageError(
                    f"num_processes={num_processes!r} is for the CPU. With accelerator={lightning['accelerator']!r} "
                    "use Lightning's devices and strategy."
                )
        if strategy is not None and (num_processes or 1) > 1:
            raise UsageError(
                f"strategy={strategy!r} is Lightning's; with num_processes choose from: {', '.join(ours)}."
            )
        about = {} if device is None else _describe(device, precision)
        self.plan = Plan.resolve(
            cpu=read_cpu(),
            **about,
            precision=precision,
            num_processes=num_processes,
            strategy=distributed_backend,
            cpu_for_each_process=cpu_for_each_process,
            auto_lr=auto_lr,
            channels_last=channels_last or use_ipex,
            allocator=read_allocator(),
            more_notes=() if launcher is None else launcher.notes(num_processes or 1),
        )
        self._our_launcher = launcher
        if ipex.decide(use_ipex):
            raise UsageError(
                "use_ipex=True with the installed extension is for TorchNano. Leave it out of the Trainer."
            )
        if self.plan.lr_factor != 1:
            own = lightning.get("callbacks") or []
            lightning["callbacks"] = [
                *(own if isinstance(own, (list, tuple)) else [own]),
                ScaleRate(self.plan.lr_factor, self.plan.lr_warmup_epochs),
            ]
        self._settings = dict(lightning)
        self._device = device
        if strategy is not None:
            lightning["strategy"] = strategy
        if device is not None and self.plan.strategy == "none":
            super().__init__(**_settle(lightning, device, self.plan.precision, processes=1))
            return
        if device is not None:  # the devices are for the processes that are started
            lightning["accelerator"] = "cpu"
        lightning.setdefault("accelerator", "cpu")
        if lightning["accelerator"] == "cpu":
            lightning.setdefault("devices", 1)
        super().__init__(**lightning, **_precision_settings(self.plan.precision))

    def fit(self, model: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Fit the model, in as many processes as were asked for.

        Raises:
            WorkerError: a process failed.
        """
        if self.plan.channels_last:
            model.to(memory_format=torch.channels_last)
        if self.plan.strategy == "none":
            super().fit(model, *args, **kwargs)
            return
        job = _FitJob(self.plan, self._settings, self._device, model, args, kwargs)
        launcher = self._our_launcher or make_launcher(self.plan.strategy)
        outcome: Any = launcher.run(job, self.plan.workers)
        model.load_state_dict(outcome["weights"])
        self._take_back(model, outcome)

    def _take_back(self, model: LightningModule, outcome: Mapping[str, Any]) -> None:
        self.strategy._lightning_module = model
        self.fit_loop.epoch_progress.current.completed = outcome["epochs"]
        self.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = outcome["steps"]
        self.callback_metrics.update({k: torch.as_tensor(v) for k, v in outcome["metrics"].items()})
        self._callback_connector._attach_model_callbacks()
        for callback, state in zip(self.checkpoint_callbacks, outcome["checkpoints"], strict=False):
            callback.load_state_dict(state)
        self.state.status = outcome["status"]

    @staticmethod
    def compile(
        model: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        optimizer: Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        metrics: Sequence[Any] | None = None,
    ) -> LightningModule:
        """Return a plain module, its loss and its optimizer as one LightningModule.

        A batch's last element is the target, those before it are the inputs. Logged: `train/loss`, `val/loss` and
        `val/<Metric>_<i>`.

        Raises:
            UsageError: the model is one already, or the loss or the optimizer is missing.
        """
        if isinstance(model, LightningModule):
            if loss or optimizer or scheduler or metrics:
                raise UsageError("A LightningModule has its own loss, optimizer and metrics. Pass it alone.")
            return model
        if loss is None or optimizer is None:
            raise UsageError("compile() of a plain module needs a loss and an optimizer.")
        return _Compiled(model, loss, optimizer, scheduler, metrics or ())


class _Compiled(LightningModule):
    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        metrics: Sequence[Any],
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self._optimizer, self._scheduler = optimizer, scheduler
        self.metrics = nn.ModuleList(m for m in metrics if isinstance(m, nn.Module))
        self._functions = [m for m in metrics if not isinstance(m, nn.Module)]

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs)

    def training_step(self, batch: Sequence[Any], batch_idx: int) -> Tensor:  # noqa: ARG002 - Lightning's signature
        *inputs, target = batch
        loss = self.loss(self(*inputs), target)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Sequence[Any], batch_idx: int) -> None:  # noqa: ARG002
        self._score(batch, "val")

    def test_step(self, batch: Sequence[Any], batch_idx: int) -> None:  # noqa: ARG002
        self._score(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        return self(*(batch[:-1] if isinstance(batch, (list, tuple)) and len(batch) > 1 else [batch]))

    def _score(self, batch: Sequence[Any], phase: str) -> None:
        *inputs, target = batch
        output = self(*inputs)
        self.log(f"{phase}/loss", self.loss(output, target), sync_dist=True)
        for i, metric in enumerate(self.metrics):
            metric(output, target)
            self.log(f"{phase}/{type(metric).__name__}_{i}", metric)  # type: ignore[arg-type]
        for i, function in enumerate(self._functions, start=len(self.metrics)):
            name = getattr(function, "__name__", type(function).__name__)
            self.log(f"{phase}/{name}_{i}", function(output, target), sync_dist=True)

    def configure_optimizers(self) -> Any:
        if self._scheduler is None:
            return self._optimizer
        return {"optimizer": self._optimizer, "lr_scheduler": self._scheduler}


class _FitJob:
    """What crosses the border to a worker."""

    def __init__(
        self,
        plan: Plan,
        settings: dict[str, Any],
        device: Device | None,
        model: LightningModule,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.plan, self.settings, self.device = plan, settings, device
        self.model, self.args, self.kwargs = model, args, kwargs

    def _place(self, settings: dict[str, Any], plugins: list[Any], world: World) -> dict[str, Any]:
        """Return the settings of this process's Trainer."""
        if self.device is not None:
            self.device.place(world.local_rank)
            settings = {**settings, "plugins": plugins}
            return _settle(settings, self.device, self.plan.precision, processes=world.world_size)
        precision = _precision_settings(self.plan.precision)
        return {
            **settings,
            "accelerator": "cpu",
            # Lightning wants machines of one size. On the CPU it may take all processes for those of one machine.
            "devices": world.world_size,
            "strategy": DDPStrategy(process_group_backend="gloo"),
            "plugins": [*plugins, *precision.pop("plugins", [])],
            **precision,
        }

    def __call__(self, world: World) -> dict[str, Any] | None:
        environment = _OurProcesses(world)
        settings = {
            k: v for k, v in self.settings.items() if k not in ("accelerator", "devices", "num_nodes", "plugins")
        }
        given = self.settings.get("plugins") or []
        plugins = [*(given if isinstance(given, (list, tuple)) else [given]), environment]
        trainer = LightningTrainer(num_nodes=1, **self._place(settings, plugins, world))
        trainer.fit(self.model, *self.args, **self.kwargs)
        if not world.is_first:
            return None
        return {
            "weights": {k: v.detach().cpu() for k, v in self.model.state_dict().items()},
            "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "checkpoints": [c.state_dict() for c in trainer.checkpoint_callbacks],
            "status": trainer.state.status,
        }


def _describe(device: Device, precision: str | int) -> dict[str, Any]:
    """Return what the plan asks of a device."""
    return {
        "device": device.name,
        "support": device.supports(Precision.parse(precision)),
        "device_count": device.count(),
        "near_cpus": device.near_cpus(),
        "environment": device.environment(),
    }


def _settle(lightning: dict[str, Any], device: Device, precision: Precision, *, processes: int) -> dict[str, Any]:
    """Return Lightning's settings with those of a device of ours."""
    ours = settings_for(device, precision, processes=processes)
    given = lightning.get("plugins") or []
    plugins = [*(given if isinstance(given, (list, tuple)) else [given]), *ours.pop("plugins")]
    if precision is not Precision.BF16:
        ours["precision"] = _LIGHTNING_NAMES[precision]
    return {**lightning, **ours, "plugins": plugins}


def _precision_settings(precision: Precision) -> dict[str, Any]:
    if precision is Precision.FP16:
        # Asked for "16-mixed" on a CPU, Lightning would compute in bf16. Its own plugin, handed over, does not.
        return {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}
    return {"precision": _LIGHTNING_NAMES[precision]}
