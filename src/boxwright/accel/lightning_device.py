"""Our devices in Lightning's terms, including those that it does not know."""

from collections.abc import Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.distributed import ReduceOp
from torch.optim import Optimizer

from boxwright.accel.collectives import add_up
from boxwright.accel.module import SYNC_BUFFERS, as_list
from boxwright.core import catalogue
from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.core.world import World
from boxwright.devices.base import Device
from boxwright.devices.options import DeviceOptions
from boxwright.launchers.external import from_environment

_NAMES = {
    Precision.FP64: "64-true",
    Precision.FP32: "32-true",
    Precision.FP16: "16-mixed",
    Precision.BF16: "bf16-mixed",
    Precision.BF16_TRUE: "bf16-true",
}


def find_device(accelerator: Any, options: DeviceOptions | None = None) -> Device | None:
    """Return our device of that name, or what "gpu" and "auto" mean here; None for the CPU and unknown names."""
    options = options or DeviceOptions()
    if options.compile:
        raise UsageError(
            "compile=True: the Trainer runs a module as it is. Compile it yourself, with torch.compile(model), or use "
            "TorchNano."
        )
    name = _name_device(accelerator)
    if name is None:
        options.refuse_all_but(accelerator if isinstance(accelerator, str) else "cpu")
        return None
    device: Device = catalogue.load("device", name)(replace(options, compile=False))
    return device


def _name_device(accelerator: Any) -> str | None:
    ours = [name for name in catalogue.names("device") if name != "cpu"]
    if accelerator in ("gpu", "auto"):
        there = [name for name in ours if lightning_knows(name) and AcceleratorRegistry.get(name).is_available()]
        return there[0] if there else None
    if isinstance(accelerator, Accelerator):
        same = [n for n in ours if lightning_knows(n) and type(AcceleratorRegistry.get(n)) is type(accelerator)]
        return same[0] if same else None
    return accelerator if accelerator in ours else None


def lightning_knows(name: str) -> bool:
    """Return whether Lightning has an accelerator of that name itself."""
    return name in AcceleratorRegistry.available_accelerators()


def count_processes(
    device: Device, num_processes: int | None, strategy: Any, settings: MutableMapping[str, Any]
) -> tuple[int, str]:
    """Return how many processes we start, and the argument by which Lightning starts them itself, if it does.

    Removes `devices` and `num_nodes` from Lightning's settings if they are for us.
    """
    started = (from_environment() or World.single()).world_size
    if started > 1 and not lightning_knows(device.name):
        raise UsageError(
            f"An outer launcher has started {started} processes, and the Trainer can't join them on "
            f"device={device.name!r}. Start the program without that launcher, or use TorchNano."
        )
    theirs = f"{started} processes of an outer launcher" if started > 1 else _find_foreign(device, strategy, settings)
    if theirs:
        if (num_processes or 1) > 1:
            raise UsageError(f"{theirs} and num_processes={num_processes!r} contradict each other. Give one of them.")
        return 1, theirs
    settings.pop("num_nodes", None)
    asked = settings.pop("devices", None)
    count = None if asked is None else read_devices(asked, device.count())
    if num_processes is not None and count not in (None, num_processes):
        raise UsageError(f"devices={asked!r} and num_processes={num_processes!r}: give one of them.")
    return (num_processes if num_processes is not None else count or device.count()), ""


def _find_foreign(device: Device, strategy: Any, settings: Mapping[str, Any]) -> str:
    """Return the argument that only Lightning can handle, or an empty text."""
    found = ""
    if strategy is not None:
        found = f"strategy={strategy!r}"
    elif settings.get("num_nodes", 1) != 1:
        found = f"num_nodes={settings['num_nodes']!r}"
    elif lightning_knows(device.name) and _names_some(settings.get("devices")):
        found = f"devices={settings['devices']!r}"
    if found and not lightning_knows(device.name):
        raise UsageError(
            f"{found} is Lightning's, and Lightning does not know device={device.name!r}. Leave it out: "
            "num_processes starts one process per device on this machine."
        )
    return found


def _names_some(devices: Any) -> bool:
    """Return whether these are the numbers of particular devices, not a count."""
    return isinstance(devices, (list, tuple)) or (isinstance(devices, str) and "," in devices)


def read_devices(devices: Any, there: int) -> int:
    """Return how many devices Lightning's `devices` means.

    Example:
        >>> read_devices("auto", 8), read_devices(2, 8), read_devices("3", 8), read_devices([0, 1], 8)
        (8, 2, 3, 2)
    """
    if devices in ("auto", -1, "-1"):
        return there
    if _names_some(devices):
        words = devices.split(",") if isinstance(devices, str) else devices
        numbers = [str(word).strip() for word in words if str(word).strip()]
        if numbers and numbers == [str(number) for number in range(len(numbers))]:
            return len(numbers)
        raise UsageError(
            f"devices={devices!r}: each process gets the device of its own number, so only the first ones can be used. "
            f"Give a count, such as devices={max(1, len(numbers))}."
        )
    count = int(devices) if isinstance(devices, str) and devices.strip().isdigit() else devices
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"devices={devices!r} can't be read. Give a count, or 'auto' for all {there}.")
    return count


def settings_for(
    device: Device,
    precision: Precision,
    *,
    processes: int,
    local_rank: int = 0,
    find_unused_parameters: bool = False,
) -> dict[str, Any]:
    """Return the settings with which Lightning's Trainer runs on a device of ours, alone or as one of several."""
    place = device.place(local_rank)
    strategy = _Parallel(device, find_unused_parameters) if processes > 1 else SingleDeviceStrategy(device=place)
    known = lightning_knows(device.name)
    accelerator = AcceleratorRegistry.get(device.name) if known else _make_accelerator(device, place)
    return {
        "accelerator": accelerator,
        "devices": processes,
        "strategy": strategy,
        **precision_settings(precision, device),
    }


def precision_settings(precision: Precision, device: Device | None) -> dict[str, Any]:
    """Return what gives Lightning's Trainer a precision on a device of ours; None for one that only it knows."""
    if device is None or precision not in (Precision.FP16, Precision.BF16):
        return {"precision": _NAMES[precision]}
    # As a plugin it is exact: asked for "16-mixed" on a CPU, Lightning would compute in bf16.
    name: Literal["16-mixed", "bf16-mixed"] = "16-mixed" if precision is Precision.FP16 else "bf16-mixed"
    return {"plugins": [MixedPrecision(name, device.name, device.make_scaler(precision))]}


def merge_settings(lightning: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return Lightning's settings with ours, and the plugins of both."""
    plugins = [*as_list(lightning.get("plugins")), *ours.pop("plugins", [])]
    return {**lightning, **ours, "plugins": plugins}


class DeviceRules(Callback):
    """Applies the device's settings for a run in each of its processes, and calls `end_of_step` where due."""

    def __init__(self, device: Device, precision: Precision) -> None:
        self._device, self._precision = device, precision
        self._run: ExitStack | None = None

    def setup(self, trainer: LightningTrainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Begin a run: a fit, or a separate validation, test or prediction."""
        self._run = ExitStack()
        # Lightning's `benchmark` decides whether kernels are tuned.
        self._run.enter_context(self._device.working(self._precision, tune=False))

    def teardown(self, trainer: LightningTrainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """End it, with all settings restored."""
        self._leave()

    def on_exception(self, *_: Any) -> None:
        """End it early."""
        self._leave()

    def _leave(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def on_fit_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Watch the optimizers' steps."""
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(self._end)

    def on_after_backward(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """End the first half."""
        self._device.end_of_step()

    def _end(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._device.end_of_step()


def _make_accelerator(device: Device, place: torch.device) -> Accelerator:
    class OurAccelerator(Accelerator):
        """The device as Lightning sees it; a class, because Lightning calls its static methods."""

        def setup_device(self, device: torch.device) -> None: ...

        def get_device_stats(self, device: Any) -> dict[str, Any]:  # noqa: ARG002
            return {}

        def teardown(self) -> None: ...

        @staticmethod
        def parse_devices(devices: int | str) -> int:
            return int(devices)

        @staticmethod
        def get_parallel_devices(devices: int) -> list[torch.device]:
            return [place] * devices  # Lightning never uses another process's

        @staticmethod
        def auto_device_count() -> int:
            return device.count()

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return device.name

    return OurAccelerator()


class _Parallel(DDPStrategy):
    """Lightning's parallel strategy over the device's own collective."""

    def __init__(self, device: Device, find_unused_parameters: bool) -> None:
        settings: dict[str, Any] = {
            "gradient_as_bucket_view": True,
            "find_unused_parameters": find_unused_parameters,
        }
        if not device.copies_buffers:
            settings[SYNC_BUFFERS] = False
        super().__init__(process_group_backend=device.collective, **settings)
        self._our_device = device

    def setup_distributed(self) -> None:
        """Join the group as the device does."""
        reset_seed()
        self.set_world_ranks()
        assert self._timeout is not None
        self._our_device.join_group(self.root_device, self._timeout)

    def determine_ddp_device_ids(self) -> Any:
        """Return the device's choice as numbers, which Lightning's barrier needs."""
        places = self._our_device.parallel_devices(self.root_device)
        return None if places is None else [place.index for place in places]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the mean or sum over all processes, by a sum: not every collective has a mean."""
        mean = reduce_op in ("mean", "avg", None)
        if not isinstance(tensor, Tensor):
            return tensor
        if not mean and reduce_op not in ("sum", ReduceOp.SUM):
            wide = tensor.dtype is torch.int64 and not self._our_device.reduces_int64
            return super().reduce(narrow(tensor) if wide else tensor, group, reduce_op).to(tensor.dtype)
        total = add_up(tensor, self._our_device, self.root_device, group)
        return total / self.world_size if mean else total


def narrow(tensor: Tensor) -> Tensor:
    """Return integers in 32 bits."""
    small = tensor.int()
    if not torch.equal(small.long(), tensor):
        raise UsageError(
            "Numbers beyond 32 bits can only be added up on this device. Reduce them as float64, or sum them."
        )
    return small
