"""TorchNano: keep your own training loop, change a handful of lines, get processes, pinned cores and precision.

Built on torch's DistributedDataParallel directly rather than on Lightning's Fabric, which silently turns precision 16
on a CPU into bf16 and makes every worker import all of Lightning.
"""

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from boxwright.accel import collectives, ipex
from boxwright.accel.checkpoint import load_checkpoint, save_checkpoint
from boxwright.accel.loaders import NanoLoader, move, share
from boxwright.accel.module import (
    SYNC_BUFFERS,
    NanoModule,
    ScaledOptimizer,
    as_list,
    follow,
    model_dtype,
    scale_rate,
)
from boxwright.accel.parcel import Changes, Parcel
from boxwright.accel.plan import Plan, Request, one_of
from boxwright.accel.strategy import make_launcher
from boxwright.core import catalogue
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.core.types import Precision
from boxwright.core.world import World
from boxwright.devices.base import Device
from boxwright.devices.options import DeviceOptions
from boxwright.launchers.allocator import read_allocator
from boxwright.launchers.base import Launcher
from boxwright.launchers.external import from_environment, pinned
from boxwright.launchers.placement import ELSEWHERE

_log = get_logger(__name__)
_COLLECTIVE_TIMEOUT = timedelta(minutes=5)
Result = TypeVar("Result")


class TorchNano:
    """A training loop of your own on all cores.

    Subclass it, override `train`, pass model, optimizers and loaders through `setup`, call `self.backward(loss)`.
    Calling `train` starts the processes and returns the first one's result; models among the arguments come back
    trained.

    Args:
        num_processes: how many processes; 1 stays in this one.
        strategy: what starts them: "subprocess", "spawn", "ray" or "spark", or a configured launcher such as
            `RayLauncher(address="auto", restart=Restart(max_restarts=2))`.
        precision: 64, 32, 16, "bf16" or "bf16-true"; 16 on a CPU is float16 too.
        device: where the tensors are; the plan names the choices.
        device_options: how that device works: compiled, lazily, with which operations in bf16.
        use_ipex: use Intel's extension where a fitting release is installed, else stock PyTorch's optimisations.
        channels_last: store images and weights channels last in memory.
        cpu_for_each_process: which cpus each process gets, instead of an even share.
        auto_lr: multiply learning rates by the number of processes in `setup`.
        distributed_backend: alias of `strategy`.
        accelerator: alias of `device`.
        seed: of the order that shuffled loaders are read in.
        broadcast_buffers: copy the first process's buffers (batch-norm statistics) to the others at every step.
        find_unused_parameters: for models that leave parameters out in some steps.
        batch: samples of a step over all processes, if known; the plan checks and shows it.

    Example:
        >>> class MyNano(TorchNano):
        ...     def train(self, model):
        ...         optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...         model, optimizer = self.setup(model, optimizer)
        ...         self.backward(model(torch.ones(2, 3)).sum())
        ...         optimizer.step()
        ...         return self.world_size
        >>> MyNano().train(nn.Linear(3, 1))
        1
    """

    def __init__(
        self,
        num_processes: int | None = None,
        use_ipex: bool = False,
        strategy: str | Launcher | None = None,
        precision: str | int = 32,
        cpu_for_each_process: Sequence[Sequence[int]] | None = None,
        channels_last: bool = False,
        auto_lr: bool = False,
        *,
        device: str | None = None,
        device_options: DeviceOptions | None = None,
        accelerator: str | None = None,
        distributed_backend: str | None = None,
        seed: int = 0,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        batch: int = 0,
    ) -> None:
        launcher: Launcher | None = None
        if strategy is not None and not isinstance(strategy, str):
            launcher, strategy = strategy, strategy.name
        strategy = one_of("strategy", strategy, "distributed_backend", distributed_backend)
        device = one_of("device", device, "accelerator", accelerator) or "cpu"
        self._device: Device = catalogue.load("device", device)(device_options)
        self._external = from_environment() or World.single()
        wanted = self._external.local_world_size if self.is_external else num_processes
        if self.is_external and num_processes not in (None, 1, self._external.world_size):
            raise UsageError(
                f"num_processes={num_processes!r}, but an outer launcher has started {self._external.world_size} "
                "processes already. Leave num_processes out, or start the program without that launcher."
            )
        if not isinstance(auto_lr, bool):
            raise UsageError(
                f"auto_lr={auto_lr!r}: a loop of your own has no epochs that TorchNano knows of. Use auto_lr=True and "
                "warm up in the loop, or use the Trainer."
            )
        if self.is_external and strategy in ELSEWHERE:
            raise UsageError(
                f"strategy={strategy!r}, but an outer launcher has started the processes already. Give one of them."
            )
        self._use_ipex = ipex.decide(use_ipex)
        allocator = read_allocator()
        if self.is_external:  # the outer launcher has also chosen the environment
            allocator = replace(allocator, variables=())
        request = Request(
            precision=precision,
            num_processes=wanted,
            strategy=strategy,
            cpu_for_each_process=cpu_for_each_process,
            batch=batch,
            auto_lr=auto_lr,
            channels_last=channels_last or use_ipex,
            allocator=allocator,
            world_size=self._external.world_size if self.is_external else None,
            launcher_notes=() if launcher is None else launcher.notes(wanted or 1),
        )
        self.plan = Plan.resolve(request, read_cpu(), self._device.facts(Precision.parse(precision)))
        self.num_processes = self._external.world_size if self.is_external else self.plan.processes
        self._launcher = launcher
        self._seed = seed
        self._ddp: dict[str, Any] = {
            SYNC_BUFFERS: broadcast_buffers and self._device.copies_buffers,
            "find_unused_parameters": find_unused_parameters,
        }
        self._world = World.single()
        self._place = torch.device("cpu")
        self._scaler: torch.amp.GradScaler | None = None
        self._scaled: list[ScaledOptimizer] = []
        self._running = False
        self._settings = frozenset(vars(self))  # all others are the user's

    def __getstate__(self) -> dict[str, Any]:
        # A worker that received the launcher would import its engine.
        return {**self.__dict__, "_launcher": None}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make `train` start the processes: called from outside it launches, inside a process it is the user's loop."""
        super().__init_subclass__(**kwargs)
        owner = next(kind for kind in cls.__mro__ if "train" in vars(kind))
        if owner is cls or not issubclass(owner, TorchNano):  # a parent's has been through here before
            cls.train = _launch_first(cls.train)  # type: ignore[method-assign]

    # What the user's loop asks for.

    @property
    def device(self) -> torch.device:
        """Where this process's tensors belong."""
        return self._place

    @property
    def hardware(self) -> Device:
        """What the device is like: whether it wants fixed shapes, how it is fed, what is fast on it."""
        return self._device

    @property
    def global_rank(self) -> int:
        """This process's number among all."""
        return self._world.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self._world.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this process's machine."""
        return self._world.node_rank

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self._world.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""
        return self._world.is_first

    @property
    def is_external(self) -> bool:
        """Whether an outer launcher (torchrun, Slurm) has started the processes."""
        return self._external.world_size > 1

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self._world.world_size > 1

    def train(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - subclasses choose their own
        """Run the training loop; override it."""
        raise UsageError("Override train() with the training loop, or use launch(function).")

    def launch(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Run `function(nano, *args, **kwargs)` in every process and return the first one's result."""
        if self._running:  # a train() that calls super().train() or itself
            return function(self, *args, **kwargs)
        for line in self.plan.lines():
            _log.debug("%s", line)
        if self.is_external or self.plan.strategy == "none":
            world = self._external if self.is_external else World.single()
            worker = self.plan.workers[min(world.local_rank, self.plan.processes - 1)]
            cores = worker.cores if self.is_external else ()
            # At most what torch uses now: the user's OMP_NUM_THREADS is a limit too.
            with pinned(cores), self._work(world, min(worker.threads, torch.get_num_threads())):
                return function(self, *args, **kwargs)
        launcher = self._launcher or make_launcher(self.plan.strategy)
        parcel = Parcel(function, args, kwargs, holders=[(self, self._settings)])
        job: Callable[[World], tuple[Result, Changes]] = partial(self._run_job, function, args, kwargs, parcel)
        with parcel.awaited():
            result, changes = launcher.run(job, self.plan.workers)
        parcel.apply(changes)
        return result

    def setup(self, model: nn.Module, *rest: Any, move_to_device: bool = True) -> Any:
        """Return model, optimizers and loaders ready for this process.

        `setup(model)`, `setup(model, optimizer)`, `setup(model, [optimizers], *loaders)`: a list is returned as a
        list, everything else alone.

        Raises:
            UsageError: something is neither a model, an optimizer nor a loader, or is not to be moved to the device.
        """
        _check_moved(move_to_device)
        optimizers = [o for item in rest for o in as_list(item) if isinstance(o, Optimizer)]
        if self._scaler is not None and len(optimizers) > 1:
            raise UsageError("precision='16' scales the loss for one optimizer. Use precision='bf16' with several.")
        module = self._setup_model(model, optimizers)
        ready: list[Any] = [module]
        for item in rest:
            many = isinstance(item, (list, tuple))
            done = [self._setup_part(part) for part in as_list(item)]
            ready.append(done if many else done[0])
        return module if len(ready) == 1 else tuple(ready)

    def setup_dataloaders(self, *loaders: Any, replace_sampler: bool = True, move_to_device: bool = True) -> Any:
        """Return the loaders over this process's share: one loader for one, a list for several.

        With `replace_sampler=False` each process reads all batches.
        """
        _check_moved(move_to_device)
        ready = [self._setup_loader(loader, shared=replace_sampler) for loader in loaders]
        return ready[0] if len(ready) == 1 else ready

    def backward(self, loss: Tensor, *args: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        """Compute the gradients; from a scaled loss where the precision needs it, but in their true size.

        `model` is there for code that was written for Lightning, like all else that torch's own `backward` takes.
        """
        del model
        scaled: Any = loss if self._scaler is None else self._scaler.scale(loss)
        for optimizer in self._scaled:
            optimizer.scale_gradients()
        scaled.backward(*args, **kwargs)
        for optimizer in self._scaled:
            optimizer.unscale_gradients()
        self._device.end_of_step()

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context of this precision, for operations outside the model's forward."""
        return self._device.autocast(self.plan.precision)

    def clip_gradients(
        self, module: nn.Module, optimizer: Any = None, *, max_norm: float | None = None, clip_val: float | None = None
    ) -> Tensor | None:
        """Clip a model's gradients to a norm, returning the norm before, or to a largest value.

        The same as torch's `clip_grad_norm_` and `clip_grad_value_`, in every precision. `optimizer` is there for code
        that was written for Lightning's Fabric.
        """
        if (max_norm is None) == (clip_val is None):
            raise UsageError("clip_gradients() takes either max_norm or clip_val.")
        del optimizer
        if max_norm is not None:
            return nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        assert clip_val is not None
        nn.utils.clip_grad_value_(module.parameters(), clip_val)
        return None

    def to_device(self, values: Any) -> Any:
        """Return a module, tensor or nested values on this process's device."""
        return values.to(self._place) if isinstance(values, nn.Module) else move(values, self._place)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print from the first process only."""
        if self.is_global_zero:
            print(*args, **kwargs)  # noqa: T201

    def barrier(self, name: str = "") -> None:  # noqa: ARG002  Lightning's signature
        """Wait until every process is here; a name is for the reader of the code."""
        if self.is_distributed:
            distributed.barrier()

    def all_reduce(self, value: Tensor, reduce_op: str = "mean") -> Tensor:
        """Return the mean or sum of a tensor over all processes, on its own device; the argument is unchanged."""
        return collectives.all_reduce(value, reduce_op, self.world_size, self._device, self._place)

    def all_gather(self, value: Any) -> Any:
        """Return every process's tensor stacked, or for other values the list of them; alone, the value itself."""
        return collectives.all_gather(value, self.world_size, self._place)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Return one process's value in all of them."""
        return collectives.broadcast(value, src, self.world_size)

    def save(self, path: str | Path | Mapping[str, Any], state: Mapping[str, Any] | str | Path) -> None:
        """Write a checkpoint atomically from the first process; modules and optimizers by their state.

        The state may come first, as in BigDL-Nano.
        """
        if isinstance(path, Mapping):
            path, state = state, path
        assert not isinstance(path, Mapping)
        assert isinstance(state, Mapping)
        if self.is_global_zero:
            plain = {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in state.items()}
            save_checkpoint(Path(path), plain)
        self.barrier()

    def load(self, path: str | Path, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a checkpoint's values; those whose name is in `state` are loaded into its objects instead."""
        loaded = load_checkpoint(Path(path))
        for name, target in (state or {}).items():
            if name not in loaded:
                raise UsageError(f"The checkpoint {str(path)!r} holds no {name!r}. It holds: {', '.join(loaded)}.")
            target.load_state_dict(loaded.pop(name))
        return loaded

    def free_bytes(self) -> int:
        """Return how much memory is left to the processes of this machine together."""
        return self._device.free_bytes() * (self._world.local_world_size if self._device.own_memory else 1)

    def scaler_state(self) -> dict[str, Any]:
        """Return the state of fp16's loss scaler, for a checkpoint; empty in other precisions."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_scaler_state(self, state: Mapping[str, Any]) -> None:
        """Load what `scaler_state` returned."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(dict(state))

    @staticmethod
    def seed_everything(seed: int, workers: bool = True) -> int:  # noqa: ARG004  Lightning's signature
        """Set torch's, numpy's and Python's random numbers; torch derives those of a loader's workers from its own."""
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is what users' code draws from
        return seed

    # Setting up.

    def _setup_model(self, model: nn.Module, optimizers: list[Optimizer]) -> NanoModule:
        if isinstance(model, NanoModule):
            raise UsageError("This model has already gone through setup(). Pass the original one, once.")
        if not isinstance(model, nn.Module):
            raise UsageError(f"setup() wants a model first, not a {type(model).__name__}.")
        model.to(device=self._place, dtype=model_dtype(self.plan.precision))
        if self.plan.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for optimizer in optimizers:
            follow(optimizer, self._place, model_dtype(self.plan.precision))
            if self.plan.lr_factor != 1:
                scale_rate(optimizer, self.plan.lr_factor)
        if self._use_ipex:
            model = ipex.optimize(model, optimizers, self.plan.precision)
        model = self._device.compile(model)
        running: nn.Module = model
        if self.is_distributed and any(p.requires_grad for p in model.parameters()):
            device_ids = self._device.parallel_devices(self._place)
            running = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True, **self._ddp)
        return NanoModule(model, running, self.plan, self._device)

    def _setup_part(self, part: Any) -> Any:
        if isinstance(part, Optimizer):
            part.register_step_post_hook(lambda *_: self._device.end_of_step())
            if self._scaler is None:
                return part
            self._scaled.append(ScaledOptimizer(part, self._scaler))
            return self._scaled[-1]
        return self._setup_loader(part)

    def _setup_loader(self, loader: Any, *, shared: bool = True) -> Any:
        if not hasattr(loader, "__iter__"):
            raise UsageError(
                f"setup() can't use a {type(loader).__name__}: it is not a model, an optimizer or a loader."
            )
        if shared:
            loader = share(loader, rank=self.global_rank, world_size=self.world_size, seed=self._seed)
        return NanoLoader(loader, self._place, self._device.feed)

    def _run_job(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parcel: Parcel,
        world: World,
    ) -> tuple[Any, Changes]:
        """Run a function in a worker; the first one returns its result and what changed in the caller's objects."""
        parcel.open()
        with self._work(world, torch.get_num_threads()):  # as the launcher has set OMP_NUM_THREADS
            result = function(self, *args, **kwargs)
        return (result, parcel.close()) if world.is_first else (None, [])

    @contextmanager
    def _work(self, world: World, threads: int) -> Iterator[None]:
        """Run a block as one process of the run: rank, device, precision, threads, process group."""
        self._place = self._device.place(world.local_rank)
        self._scaler, self._scaled = self._device.make_scaler(self.plan.precision), []
        threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        if world.world_size > 1:
            self._device.join_group(self._place, _COLLECTIVE_TIMEOUT)
        self._world, self._running = world, True
        try:
            with self._device.working(self.plan.precision):
                yield
        finally:
            self._running = False
            torch.set_num_threads(threads_before)
            if world.world_size > 1:
                gc.collect()  # gloo aborts at exit while a parallel model is still alive
                distributed.destroy_process_group()
                self._world = World.single()


def _check_moved(move_to_device: bool) -> None:
    if not move_to_device:
        raise UsageError("move_to_device=False is not possible: models and batches go to the process's device.")


def _launch_first(train: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `train` that launches itself; in a process of the run it is the given one."""

    @wraps(train)
    def start(self: TorchNano, *args: Any, **kwargs: Any) -> Any:
        return train(self, *args, **kwargs) if self._running else self.launch(start, *args, **kwargs)

    return start
