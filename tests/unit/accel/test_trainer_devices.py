"""The Trainer on devices that are made up: how many processes, which precision, what goes to Lightning."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor
from torch.utils.data import DataLoader

from boxwright.accel.lightning_device import (
    DeviceRules,
    count_processes,
    find_device,
    narrow,
    precision_settings,
    read_devices,
    settings_for,
)
from boxwright.accel.trainer import Trainer
from boxwright.core import catalogue
from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.devices.cpu import CpuDevice
from boxwright.devices.cuda import CudaDevice
from boxwright.devices.options import DeviceOptions
from boxwright.launchers.base import check_one_machine

QUIET: dict[str, Any] = {
    "enable_progress_bar": False, "enable_model_summary": False, "logger": False, "enable_checkpointing": False,
}  # fmt: skip


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make torch see one GPU, or as many as the list's only entry says."""
    count = [1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda _emulated=True: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace())
    return count


@pytest.mark.parametrize("accelerator", ["cuda", "gpu", "auto", CUDAAccelerator()])
def test_on_a_gpu_fp16_is_the_gpu_s_and_the_plan_says_so(gpus: list[int], accelerator: Any) -> None:
    trainer = Trainer(accelerator=accelerator, precision=16, **QUIET)
    assert trainer.plan.device == "cuda"
    assert "emulated" not in trainer.plan.precision_why
    assert isinstance(trainer.accelerator, CUDAAccelerator)
    assert trainer.strategy.root_device == torch.device("cuda", 0)
    plugin = trainer.precision_plugin
    assert isinstance(plugin, MixedPrecision)
    assert (plugin.precision, plugin.device) == ("16-mixed", "cuda")
    assert plugin.scaler is not None
    assert plugin.scaler._device == "cuda"


@pytest.mark.parametrize("settings", [{}, {"num_processes": 2}, {"devices": 2}, {"devices": "auto"}, {"devices": -1}])
def test_several_gpus_are_processes_of_ours(
    gpus: list[int], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus[0] = 2
    trainer = Trainer(accelerator="cuda", precision="bf16", **settings, **QUIET)
    assert (trainer.plan.device, trainer.plan.processes, trainer.plan.strategy) == ("cuda", 2, "subprocess")
    assert any("validate, test and predict in one process, on one cuda" in note for note in trainer.plan.notes)
    assert trainer.strategy.root_device.type == "cpu"
    given: list[Any] = []

    class Catch:
        def run(self, job: Any, workers: Any) -> None:
            given.extend(job.args)
            raise InterruptedError

    monkeypatch.setattr("boxwright.accel.trainer.make_launcher", lambda _: Catch())
    with pytest.raises(InterruptedError):
        trainer.fit(LightningModule())
    (fit,) = given
    for_workers = fit.settings
    assert isinstance(for_workers["callbacks"][-1], DeviceRules)
    assert not any(isinstance(callback, DeviceRules) for callback in trainer.callbacks)


@pytest.mark.parametrize("settings", [{"strategy": "ddp", "devices": 2}, {"devices": [1]}, {"devices": "1,"}])
def test_what_only_lightning_can_do_on_a_gpu_is_left_to_it(gpus: list[int], settings: dict[str, Any]) -> None:
    gpus[0] = 2
    trainer = Trainer(accelerator="cuda", precision=16, **settings, **QUIET)
    assert trainer.plan.device == "cuda"
    assert any("Lightning starts the processes: " in note for note in trainer.plan.notes)
    assert isinstance(trainer.accelerator, CUDAAccelerator)
    assert trainer.num_devices == (1 if "strategy" not in settings else 2)
    assert isinstance(trainer.precision_plugin, MixedPrecision)
    assert trainer.precision_plugin.device == "cuda"
    assert any(isinstance(callback, DeviceRules) for callback in trainer.callbacks)
    with pytest.raises(UsageError, match="and num_processes=2 contradict each other"):
        Trainer(accelerator="cuda", num_processes=2, **settings, **QUIET)


def test_processes_of_an_outer_launcher_are_left_to_lightning(gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus[0] = 2
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    assert count_processes(CudaDevice(), None, None, {"devices": 2}) == (1, "2 processes of an outer launcher")
    with pytest.raises(UsageError, match="can't join them on device='hpu'"):
        count_processes(Cards(), None, None, {})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_trainer_says_so() -> None:
    with pytest.raises(UsageError, match="torch sees no CUDA device here"):
        Trainer(accelerator="cuda")


class Cards(CpuDevice):
    """Eight devices that Lightning does not know."""

    name = "hpu"

    def __init__(self, options: DeviceOptions | None = None) -> None:
        super().__init__()
        self.options = options

    def count(self) -> int:
        return 8


def test_devices_are_counted() -> None:
    assert [read_devices(word, 8) for word in ("auto", -1, "-1", 1, "2", [0], (0, 1), "0, 1, 2", "0,")] == [
        8, 8, 8, 1, 2, 1, 2, 3, 1,
    ]  # fmt: skip
    for wrong in ([1], [0, 2], "3,4", []):
        with pytest.raises(UsageError, match=r"such as devices=\d"):
            read_devices(wrong, 8)
    for wrong in (0, "0", -2, True, "all", 1.5):
        with pytest.raises(UsageError, match="'auto' for all 8"):
            read_devices(wrong, 8)


def test_without_a_number_there_is_one_process_a_device() -> None:
    assert count_processes(Cards(), None, None, {}) == (8, "")
    assert count_processes(Cards(), 1, None, {}) == (1, "")
    settings = {"devices": [0, 1], "num_nodes": 1}
    assert count_processes(Cards(), None, None, settings) == (2, "")
    assert not settings
    with pytest.raises(UsageError, match="devices=2 and num_processes=1"):
        count_processes(Cards(), 1, None, {"devices": 2})


def test_what_lightning_can_t_do_on_a_device_is_refused() -> None:
    with pytest.raises(UsageError, match=r"strategy='ddp'.*device='hpu'"):
        count_processes(Cards(), None, "ddp", {})
    with pytest.raises(UsageError, match="num_nodes=2 is Lightning's"):
        count_processes(Cards(), None, None, {"num_nodes": 2})


def test_the_trainer_compiles_nothing_and_hands_on_the_other_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "load", lambda _kind, _name: Cards)
    device = find_device("hpu", DeviceOptions(lazy=True))
    assert isinstance(device, Cards)
    assert device.options == DeviceOptions(lazy=True, compile=False)
    with pytest.raises(UsageError, match="compile=True"):
        find_device("hpu", DeviceOptions(compile=True))
    with pytest.raises(UsageError, match="lazy=True does not apply to device='cpu'"):
        Trainer(device_options=DeviceOptions(lazy=True))


class Caught:
    """A launcher that notes what it should run, in one worker."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.job = answer, None

    def run(self, job: Any, workers: Any) -> Any:
        check_one_machine(workers)
        assert len(workers) == 1
        (self.job,) = job.args
        return self.answer


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_who_waits_for_devices_has_one_worker_evaluate(
    gpus: list[int], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    gpus[0] = 2
    trainer = Trainer(accelerator="cuda", **QUIET)
    launcher = Caught((["result"], {"callback_metrics": {"val/loss": torch.tensor(0.5)}}, []))
    monkeypatch.setattr("boxwright.accel.trainer.make_launcher", lambda _: launcher)
    model, loader = LightningModule(), DataLoader([1, 2])
    assert getattr(trainer, verb)(model, loader, ckpt_path="some.ckpt") == ["result"]
    assert launcher.job.verb == verb
    assert launcher.job.arguments == {"model": model, "dataloaders": loader, "ckpt_path": "some.ckpt"}
    assert float(trainer.callback_metrics["val/loss"]) == 0.5
    assert model.trainer is trainer
    getattr(trainer, verb)(model)  # weights as they are
    assert launcher.job.arguments["ckpt_path"] is None


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_an_evaluation_without_a_model_is_refused(gpus: list[int], verb: str) -> None:
    gpus[0] = 2
    trainer = Trainer(accelerator="cuda", **QUIET)
    with pytest.raises(UsageError, match="needs a model"):
        getattr(trainer, verb)()
    with pytest.raises(UsageError, match="takes a LightningModule, not 'str'"):
        getattr(trainer, verb)("no model")


class Noted(CpuDevice):
    """Says when a run begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    @contextmanager
    def working(self, precision: Precision, *, tune: bool = True) -> Iterator[None]:
        self.said.append(f"begin {precision} {tune}")
        yield
        self.said.append("end")


class Fails(LightningModule):
    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails = fails

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        if self.fails:
            raise ValueError("no")


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders
@pytest.mark.parametrize("fails", [False, True])
def test_the_device_s_settings_last_as_long_as_the_run(fails: bool) -> None:
    device = Noted()
    trainer = Trainer(callbacks=DeviceRules(device, Precision.FP32), **QUIET)
    loader: DataLoader[Any] = DataLoader(torch.zeros(2, 1))  # type: ignore[arg-type]
    if fails:
        with pytest.raises(ValueError, match="no"):
            trainer.validate(Fails(True), loader, verbose=False)
    else:
        trainer.validate(Fails(False), loader, verbose=False)
    assert device.said == ["begin 32 False", "end"]


def test_a_process_of_several_knows_its_gpu_by_number(gpus: list[int]) -> None:
    gpus[0] = 2
    settings = settings_for(CudaDevice(), Precision.FP16, processes=2, local_rank=1)
    strategy = settings["strategy"]
    strategy.parallel_devices = [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert strategy.determine_ddp_device_ids() == [0]  # Lightning's barrier takes numbers only
    assert strategy.process_group_backend == "nccl"
    assert isinstance(settings["accelerator"], CUDAAccelerator)
    assert settings["plugins"][0].device == "cuda"


@pytest.mark.parametrize("tune", [False, True])
def test_kernels_are_tried_out_where_the_run_wants_it(
    gpus: list[int], monkeypatch: pytest.MonkeyPatch, tune: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    with CudaDevice().working(Precision.FP32, tune=tune):
        assert torch.backends.cudnn.benchmark == tune
        assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.benchmark


def test_other_reductions_of_the_trainer_never_lose_bits() -> None:
    assert narrow(torch.tensor([-(2**31), 2**31 - 1])).dtype is torch.int32
    with pytest.raises(UsageError, match="beyond 32 bits"):
        narrow(torch.tensor([0, 2**31]))


def test_fp16_on_the_cpu_is_the_cpu_s() -> None:
    (plugin,) = precision_settings(Precision.FP16, CpuDevice())["plugins"]
    assert (plugin.precision, plugin.device, plugin.scaler._device) == ("16-mixed", "cpu", "cpu")
    assert precision_settings(Precision.BF16_TRUE, CpuDevice()) == {"precision": "bf16-true"}
