"""Lightning's Trainer with our launchers, pinned cores and exact precisions."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from boxwright.accel import ipex
from boxwright.accel.auto_lr import ScaleRate
from boxwright.accel.checkpoint import load_checkpoint, save_checkpoint
from boxwright.accel.compiled import Compiled
from boxwright.accel.fit_worker import (
    EvaluationJob,
    LightningFit,
    evaluate_in_worker,
    fit_in_worker,
    read_progress,
    take_back,
)
from boxwright.accel.lightning_device import (
    DeviceRules,
    count_processes,
    find_device,
    merge_settings,
    precision_settings,
    settings_for,
)
from boxwright.accel.module import as_list
from boxwright.accel.parcel import Parcel
from boxwright.accel.plan import Plan, Request, one_of
from boxwright.accel.strategy import make_launcher
from boxwright.accel.two_lightnings import adopted, refuse_callbacks
from boxwright.core import catalogue
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.packages import require
from boxwright.core.spaces import Space
from boxwright.core.types import Precision
from boxwright.devices.base import Device
from boxwright.devices.options import DeviceOptions
from boxwright.launchers.allocator import read_allocator
from boxwright.launchers.base import Launcher

if TYPE_CHECKING:
    from boxwright.accel.search.result import SearchResult

_STAGES = {"validate": TrainerFn.VALIDATING, "test": TrainerFn.TESTING, "predict": TrainerFn.PREDICTING}
Module = TypeVar("Module", bound=nn.Module)


class Trainer(LightningTrainer):
    """Lightning's Trainer with a few more settings; callbacks, loggers, checkpoints and resuming stay Lightning's.

    With `num_processes` above 1, `fit` starts that many pinned processes, each with its own Trainer; afterwards this
    object has the weights, the metrics and the paths of checkpoints. `validate`, `test` and `predict` run in one
    process: this one, unless the devices are for processes that it starts. Then one is started for them, on one device.

    Args:
        num_processes: how many processes; 1 stays in this one. None is 1 on the CPU, and one per device elsewhere.
        use_ipex: channels last and the optimisations of stock PyTorch; Intel's extension itself is for `TorchNano`.
        strategy: "subprocess", "spawn", "ray" or "spark", or a configured launcher; anything else goes to Lightning,
            if it knows the device.
        distributed_backend: alias of `strategy`.
        cpu_for_each_process: which cpus each process gets, instead of an even share.
        channels_last: store images and weights channels last in memory.
        auto_lr: multiply learning rates by the number of processes, also those of schedulers; `{"warmup_epochs": n}`
            gets there in n epochs, without a scheduler.
        precision: 64, 32, 16, "bf16" or "bf16-true"; 16 on a CPU is float16 too.
        device_options: how the device works: lazily, with which operations in bf16. The Trainer compiles nothing.
        find_unused_parameters: for modules that leave parameters out in some steps, as GANs do.
        **lightning: everything that Lightning's Trainer takes. `accelerator` (or `device`) may also be a device that
            only Boxwright knows. On an accelerator `devices` means `num_processes`; a list of device numbers, one of
            Lightning's strategies, and `num_nodes` leave the processes to Lightning.
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
        device_options: DeviceOptions | None = None,
        find_unused_parameters: bool = False,
        **lightning: Any,
    ) -> None:
        given = {**locals(), **lightning}
        self._given = {name: given[name] for name in given if name not in ("self", "lightning", "__class__")}
        self._search: SearchResult | None = None
        if strategy == "auto":  # Lightning's word for its own choice
            strategy = None
        ours = catalogue.names("launcher")
        launcher: Launcher | None = None
        if getattr(strategy, "name", None) in ours:
            launcher, strategy = strategy, strategy.name
        if isinstance(strategy, str) and strategy in ours:
            distributed_backend = one_of("strategy", strategy, "distributed_backend", distributed_backend)
            strategy = None
        if "device" in lightning:
            named = lightning.pop("device")
            lightning["accelerator"] = one_of("device", named, "accelerator", lightning.get("accelerator"))
        device = find_device(lightning.get("accelerator"), device_options)
        theirs = ""
        if device is not None:
            num_processes, theirs = count_processes(device, num_processes, strategy, lightning)
        elif (num_processes or 1) > 1:
            _refuse_second_count(lightning, num_processes)
            if lightning.get("accelerator", "cpu") not in ("cpu", "auto"):
                raise UsageError(
                    f"num_processes={num_processes!r} is for the CPU. With accelerator={lightning['accelerator']!r} "
                    "use Lightning's devices and strategy."
                )
        if find_unused_parameters and (theirs or strategy is not None):
            raise UsageError(
                "find_unused_parameters=True is for the processes of num_processes. With Lightning's own, use "
                "strategy='ddp_find_unused_parameters_true'."
            )
        if strategy is not None and (num_processes or 1) > 1:
            raise UsageError(
                f"strategy={strategy!r} is Lightning's; with num_processes choose from: {', '.join(ours)}."
            )
        notes = [] if launcher is None else launcher.notes(num_processes or 1)
        if device is not None and (num_processes or 1) > 1:
            notes = [
                *notes,
                f"fit runs on all of them; validate, test and predict in one process, on one {device.name}",
            ]
        request = Request(
            precision=precision,
            num_processes=num_processes,
            strategy=distributed_backend,
            cpu_for_each_process=cpu_for_each_process,
            auto_lr=auto_lr,
            channels_last=channels_last or use_ipex,
            allocator=read_allocator(),
            launcher_notes=notes,
        )
        facts = None if device is None else device.facts(Precision.parse(precision))
        self.plan = Plan.resolve(request, read_cpu(), facts)
        if theirs:
            self.plan = replace(self.plan, notes=(*self.plan.notes, f"Lightning starts the processes: {theirs}"))
        self._our_launcher = launcher
        self._find_unused_parameters = find_unused_parameters
        if ipex.decide(use_ipex):
            raise UsageError(
                "use_ipex=True with the installed extension is for TorchNano. Leave it out of the Trainer."
            )
        if self.plan.lr_factor != 1:
            _add_callback(lightning, ScaleRate(self.plan.lr_factor, self.plan.lr_warmup_epochs))
        refuse_callbacks(as_list(lightning.get("callbacks")))
        self._settings = dict(lightning)
        self._device = device
        if device is not None:
            _add_callback(self._settings, DeviceRules(device, self.plan.precision))
        with warnings.catch_warnings():
            if self._waits_here:
                warnings.filterwarnings("ignore", "GPU available but not used")
            super().__init__(**self._settle_here(lightning, strategy, theirs))

    @property
    def _waits_here(self) -> bool:
        """Whether this process has no device itself: those that it starts have them."""
        return self._device is not None and self.plan.strategy != "none"

    def _settle_here(self, lightning: dict[str, Any], strategy: Any, theirs: str) -> dict[str, Any]:
        """Return the settings of this process's Trainer."""
        device, precision = self._device, self.plan.precision
        settings = dict(lightning if self._waits_here else self._settings)
        if strategy is not None:
            settings["strategy"] = strategy
        if device is None:
            settings.setdefault("accelerator", "cpu")
            if settings["accelerator"] == "cpu":
                settings.setdefault("devices", 1)
            return merge_settings(settings, precision_settings(precision, _cpu_for(settings["accelerator"])))
        if theirs:
            return merge_settings(settings, precision_settings(precision, device))
        if self.plan.strategy == "none":
            return merge_settings(settings, settings_for(device, precision, processes=1))
        settings |= {"accelerator": "cpu", "devices": 1}
        return merge_settings(settings, precision_settings(precision, _cpu_for("cpu")))

    def fit(self, model: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Fit the model in the processes of the plan.

        Raises:
            WorkerError: a process failed.
        """
        if self.plan.channels_last:
            model.to(memory_format=torch.channels_last)
        if self.plan.strategy == "none":
            with adopted(model, getattr(self, "datamodule", None), *args, *kwargs.values()):
                super().fit(model, *args, **kwargs)
            return
        callbacks = as_list(self._settings.get("callbacks"))
        parcel = Parcel(model, holders=[(callback, ()) for callback in callbacks], references=[self])
        job = LightningFit(
            plan=self.plan,
            settings=self._settings,
            device=self._device,
            find_unused_parameters=self._find_unused_parameters,
            model=model,
            data=(args, kwargs),
            progress=read_progress(self),
            parcel=parcel,
        )
        launcher = self._our_launcher or make_launcher(self.plan.strategy)
        with parcel.awaited():
            answer: Any = launcher.run(partial(fit_in_worker, job), self.plan.workers)
        end, changes = answer
        parcel.apply(changes)
        take_back(self, model, end)

    def validate(self, *args: Any, **kwargs: Any) -> Any:
        """Validate in one process, as Lightning does."""
        if self._waits_here:
            return self._run_there("validate", *args, **kwargs)
        with adopted(self.lightning_module, getattr(self, "datamodule", None), *args, *kwargs.values()):
            return super().validate(*args, **kwargs)

    def test(self, *args: Any, **kwargs: Any) -> Any:
        """Test in one process, as Lightning does."""
        if self._waits_here:
            return self._run_there("test", *args, **kwargs)
        with adopted(self.lightning_module, getattr(self, "datamodule", None), *args, *kwargs.values()):
            return super().test(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict in one process, as Lightning does."""
        if self._waits_here:
            return self._run_there("predict", *args, **kwargs)
        with adopted(self.lightning_module, getattr(self, "datamodule", None), *args, *kwargs.values()):
            return super().predict(*args, **kwargs)

    def _run_there(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Run a method of Lightning's Trainer in a process that has one of the devices.

        Raises:
            UsageError: there is no model yet.
            WorkerError: the process failed.
        """
        given = dict(signature(getattr(LightningTrainer, verb)).bind(self, *args, **kwargs).arguments)
        del given["self"]
        model: Any = given.get("model")
        known = self.lightning_module
        if model is None and known is None:
            raise UsageError(f"{verb}() needs a model: give one, or call fit() first.")
        if not isinstance(model, nn.Module | None):
            raise UsageError(f"{verb}() takes a LightningModule, not {type(model).__name__!r}.")
        # The best and the last checkpoint are known here.
        given["ckpt_path"] = self._checkpoint_connector._parse_ckpt_path(
            _STAGES[verb], given.get("ckpt_path"), model_provided=model is not None, model_connected=known is not None
        )
        given["model"] = model = known if model is None else model
        assert self._device is not None
        callbacks = as_list(self._settings.get("callbacks"))
        parcel = Parcel(model, holders=[(callback, ()) for callback in callbacks], references=[self])
        job = EvaluationJob(
            verb=verb,
            precision=self.plan.precision,
            settings=self._settings,
            device=self._device,
            arguments=given,
            parcel=parcel,
        )
        launcher = self._our_launcher or make_launcher(self.plan.strategy)
        alone = replace(self.plan.workers[0], world_size=1, local_world_size=1)
        with parcel.awaited():
            answer: Any = launcher.run(partial(evaluate_in_worker, job), [alone])
        result, metrics, changes = answer
        parcel.apply(changes)
        self.strategy._lightning_module = model
        model.trainer = self
        for kind, values in metrics.items():
            getattr(self, kind).update(values)
        return result

    def search(
        self,
        make_model: Callable[..., LightningModule],
        spaces: Mapping[str, Space],
        *,
        target_metric: str,
        direction: str = "max",
        n_trials: int = 20,
        repeats: int = 3,
        seed: int = 0,
        folder: str | Path | None = None,
        resume: bool = False,
        launcher: Launcher | None = None,
        **data: Any,
    ) -> LightningModule:
        """Search the settings of a model with TPE and Hyperband, and return a new, untrained model with the best ones.

        Trial 0 is the defaults. Every trial is a `fit` with this Trainer's settings, in a process of its own. The best
        one and the defaults are then fitted again with new seeds; unless the interval of the difference shows that it
        is better, the model returned has the defaults. `search_summary()` has the trials.

        Args:
            make_model: a class or function that returns a LightningModule for settings as keywords.
            spaces: `Real`, `Int`, `Categorical` or `Bool` for each setting to search.
            target_metric: a metric that the module logs in validation; its last value counts.
            direction: "max" or "min".
            n_trials: how many, with the defaults.
            repeats: how many new seeds.
            seed: of the proposals and the trials.
            folder: for the journal and the trials; the folder "search" in `default_root_dir` by default.
            resume: continue the search in the folder.
            launcher: starts the trials' processes, here by default; `RayLauncher()` on machines that share the folder.
            **data: what `fit` takes beside the model: loaders, or a data module.

        Raises:
            UsageError: a setting has no default, or the folder holds a search.
            MissingDependencyError: Optuna is not installed.
        """
        require("optuna", extra="tune", by="Trainer.search")
        from boxwright.accel.search.lightning import search_model

        model, self._search = search_model(
            type(self),
            self._given,
            make_model,
            spaces,
            data,
            launcher=launcher,
            target_metric=target_metric,
            direction=direction,
            folder=Path(self.default_root_dir, "search") if folder is None else Path(folder),
            resume=resume,
            trials=n_trials,
            repeats=repeats,
            seed=seed,
        )
        return model

    def search_summary(self) -> "SearchResult":
        """Return the trials of the last `search`; `table()` has them as text.

        Raises:
            UsageError: there was none.
        """
        if self._search is None:
            raise UsageError("There was no search. Call search(…) first.")
        return self._search

    @staticmethod
    def compile(
        model: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        optimizer: Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        metrics: Sequence[Any] | None = None,
    ) -> LightningModule:
        """Return a plain module, its loss and its optimizer as one LightningModule.

        A batch's last element is the target, those before it are the inputs. Logs `train/loss`, `val/loss` and
        `val/<Metric>_<i>`.

        Raises:
            UsageError: a LightningModule comes with more arguments, or the loss or the optimizer is missing.
        """
        if isinstance(model, LightningModule):
            if loss or optimizer or scheduler or metrics:
                raise UsageError("A LightningModule has its own loss, optimizer and metrics. Pass it alone.")
            return model
        if loss is None or optimizer is None:
            raise UsageError("compile() of a plain module needs a loss and an optimizer.")
        return Compiled(model, loss, optimizer, scheduler, metrics or ())

    @staticmethod
    def save(model: nn.Module, path: str | Path) -> None:
        """Write a model's weights atomically: of a compiled model, those of the plain module in it."""
        save_checkpoint(Path(path), (model.model if isinstance(model, Compiled) else model).state_dict())

    @staticmethod
    def load(path: str | Path, model: Module) -> Module:
        """Load what `save` wrote into a model, plain or compiled, and return it."""
        model.load_state_dict(load_checkpoint(Path(path)))
        return model


def _join_signatures(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Signature:
    """Return the parameters of both: programs that read signatures, such as LightningCLI, then offer all of them."""
    own = [p for p in signature(ours).parameters.values() if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in own}
    more = [p.replace(kind=p.KEYWORD_ONLY) for p in signature(theirs).parameters.values() if p.name not in names]
    return Signature([*own, *more])


Trainer.__init__.__signature__ = _join_signatures(  # type: ignore[attr-defined]
    Trainer.__init__, LightningTrainer.__init__
)


def _refuse_second_count(lightning: dict[str, Any], num_processes: int | None) -> None:
    """Remove Lightning's counts of processes if they say the same or nothing, as a config of all settings does."""
    same = {"devices": ("auto", num_processes, str(num_processes)), "num_nodes": (1,)}
    for name, accepted in same.items():
        given = lightning.pop(name, accepted[0])
        if given not in accepted:
            raise UsageError(f"{name}={given!r} and num_processes={num_processes!r}: give one of them.")


def _cpu_for(accelerator: Any) -> Device | None:
    """Return our CPU, or None for an accelerator that only Lightning knows."""
    return catalogue.load("device", "cpu")() if accelerator in ("cpu", "auto") else None


def _add_callback(settings: dict[str, Any], callback: Callback) -> None:
    settings["callbacks"] = [*as_list(settings.get("callbacks")), callback]
