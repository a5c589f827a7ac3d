"""Devices of ours that Lightning does not know, in Lightning's own terms."""

from inspect import signature
from typing import Any

import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from boxwright.core import catalogue
from boxwright.core.types import Precision
from boxwright.devices.base import Device

# torch 2.13 has a new name for the option.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)


def find_device(accelerator: Any) -> Device | None:
    """Return our device of that name; None for what Lightning runs by itself."""
    known = AcceleratorRegistry.available_accelerators()
    if not isinstance(accelerator, str) or accelerator in known or accelerator not in catalogue.names("device"):
        return None
    device: Device = catalogue.load("device", accelerator)()
    return device


def settings_for(device: Device, precision: Precision, *, processes: int) -> dict[str, Any]:
    """Return what Lightning's Trainer needs to run on a device of ours, in one process or as one of several."""
    accelerator = _make_accelerator(device)
    strategy = _Parallel(device) if processes > 1 else SingleDeviceStrategy(device=device.place(0))
    plugins = [MixedPrecision("bf16-mixed", device.name)] if precision is Precision.BF16 else []
    return {"accelerator": accelerator, "devices": processes, "strategy": strategy, "plugins": plugins}


class EndOfSteps(Callback):
    """Tells the device where a step's halves end."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def on_fit_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Follow the optimizers."""
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(self._end)

    def on_after_backward(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """End the first half."""
        self._device.end_of_step()

    def _end(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._device.end_of_step()


def _make_accelerator(device: Device) -> Accelerator:
    class OurAccelerator(Accelerator):
        """The device, for Lightning's questions; it asks them of the class."""

        def setup_device(self, device: torch.device) -> None:
            """Leave it: it was placed."""

        def get_device_stats(self, device: Any) -> dict[str, Any]:  # noqa: ARG002
            """Return nothing: there is no common measure."""
            return {}

        def teardown(self) -> None:
            """Leave it."""

        @staticmethod
        def parse_devices(devices: int | str) -> int:
            """Return how many are meant."""
            return int(devices)

        @staticmethod
        def get_parallel_devices(devices: int) -> list[torch.device]:
            """Return the place of each process of this machine."""
            return [device.place(rank) for rank in range(devices)]

        @staticmethod
        def auto_device_count() -> int:
            """Return how many there are."""
            return device.count()

        @staticmethod
        def is_available() -> bool:
            """Return True: the device object exists."""
            return True

        @staticmethod
        def name() -> str:
            """Return the device's name."""
            return device.name

    return OurAccelerator()


class _Parallel(DDPStrategy):
    """Lightning's parallel strategy over the device's own collective."""

    def __init__(self, device: Device) -> None:
        settings: dict[str, Any] = {"gradient_as_bucket_view": True}
        if not device.copies_buffers:
            settings[_SYNC_BUFFERS] = False
        super().__init__(process_group_backend=device.collective, **settings)
        self._our_device = device

    def setup_distributed(self) -> None:
        """Join the group as the device does."""
        reset_seed()
        self.set_world_ranks()
        assert self._timeout is not None
        self._our_device.join_group(self.root_device, self._timeout)

    def determine_ddp_device_ids(self) -> Any:
        """Return what the device wants there."""
        return self._our_device.parallel_devices(self.root_device)

    def reduce(self, tensor: Tensor, group: Any = None, reduce_op: Any = "mean") -> Tensor:
        """Return the mean or sum over all processes: by a sum, and counts in 32 bits, which every collective knows."""
        mean = reduce_op in ("mean", "avg", None)
        small = tensor.int() if tensor.dtype is torch.int64 else tensor
        total: Tensor = super().reduce(small, group, "sum" if mean else reduce_op)
        if mean:
            return total / self.world_size
        return total.to(tensor.dtype)
