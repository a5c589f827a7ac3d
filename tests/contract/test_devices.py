"""What every device promises, for all that are present: the CPU, a GPU, and in a process of its own a simulated HPU."""

import copy
import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hpu.process import run_on_hpu
from torch import Tensor, nn

from boxwright.accel import collectives
from boxwright.accel.nano import TorchNano
from boxwright.core import catalogue
from boxwright.core.errors import BoxwrightError, UsageError
from boxwright.core.types import Precision
from boxwright.devices.base import Device
from boxwright.devices.options import DeviceOptions
from boxwright.tasks.doctor import examine


def present() -> list[str]:
    found = []
    for name in catalogue.names("device"):
        try:
            catalogue.load("device", name)()
        except BoxwrightError:
            continue
        found.append(name)
    return found


PRESENT = present()


@pytest.fixture(params=PRESENT)
def device(request: pytest.FixtureRequest) -> Device:
    made: Device = catalogue.load("device", request.param)()
    return made


@pytest.fixture
def place(device: Device) -> torch.device:
    return device.place(0)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


# torch allows one kind of accelerator in a process, so the simulated one needs a machine without a real one.
@pytest.mark.skipif(set(PRESENT) != {"cpu"}, reason="another accelerator is here")
def test_the_simulated_hpu_keeps_the_contract(tmp_path: Path) -> None:
    finished = run_on_hpu("-m", "pytest", __file__, "-q", "-p", "no:cacheprovider", "-k", "hpu", folder=tmp_path)
    assert finished.code == 0, finished.out + finished.err
    assert "passed" in finished.out


def test_it_is_there_and_has_room(device: Device, place: torch.device) -> None:
    assert device.count() >= 1
    assert place.type == device.name
    assert device.free_bytes() > 2**20
    assert len(device.near_cpus()) in (0, device.count())


@pytest.mark.parametrize("precision", list(Precision))
def test_it_says_of_every_precision_whether_it_trains(device: Device, precision: Precision) -> None:
    support = device.supports(precision)
    assert support.ok or support.note
    assert device.supports(Precision.FP32).ok
    assert device.supports(Precision.BF16).ok
    assert not device.supports(Precision.INT8).ok


def test_only_fp16_scales_the_loss(device: Device) -> None:
    for precision in Precision:
        scaler = device.make_scaler(precision)
        assert scaler is None or precision is Precision.FP16


def test_autocast_computes_in_bf16(device: Device, place: torch.device) -> None:
    model, images = make_model().to(place), torch.rand(2, 3, 8, 8).to(place)
    with device.autocast(Precision.BF16):
        assert model(images).dtype == torch.bfloat16
    with device.autocast(Precision.FP32):
        assert model(images).dtype == torch.float32


def test_a_compiled_part_gives_the_same_values_and_keeps_its_keys(device: Device, place: torch.device) -> None:
    model, images = make_model().to(place), torch.rand(2, 3, 8, 8).to(place)
    expected, keys = model.eval()(images), list(model.state_dict())
    compiled = device.compile(model)
    torch.testing.assert_close(compiled(images).cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)
    assert list(compiled.state_dict()) == keys

    def double(x: Tensor) -> Tensor:
        return x * 2

    assert device.compile(double)(images).sum().item() == pytest.approx(2 * images.sum().item(), rel=1e-6)


def test_batches_arrive_in_order_and_whole(device: Device, place: torch.device) -> None:
    sent = [{"images": torch.full((2, 3), float(i)), "names": [str(i)]} for i in range(5)]
    arrived = list(device.feed(sent, place))
    assert [batch["names"] for batch in arrived] == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert all(batch["images"].device.type == device.name for batch in arrived)
    assert [batch["images"].sum().item() for batch in arrived] == [6.0 * i for i in range(5)]


def test_feeding_may_end_early_and_its_errors_come_through(device: Device, place: torch.device) -> None:
    def batches() -> Iterator[Tensor]:
        yield torch.zeros(1)
        raise UsageError("the third image is broken")

    feed = device.feed((torch.zeros(1) for _ in range(10)), place)
    next(feed)
    feed.close()
    with pytest.raises(UsageError, match="third image"):
        list(device.feed(batches(), place))


def test_its_sgd_is_sgd(device: Device, place: torch.device) -> None:
    start = torch.linspace(-1, 1, 12)
    ours, theirs = nn.Parameter(start.clone().to(place)), nn.Parameter(start.clone())
    quick = device.make_sgd([{"params": [ours], "weight_decay": 0.01}], lr=0.1, momentum=0.9, nesterov=True)
    plain = torch.optim.SGD([{"params": [theirs], "weight_decay": 0.01}], lr=0.1, momentum=0.9, nesterov=True)
    for rate in (0.1, 0.05, 0.02):
        for parameter, optimizer in ((ours, quick), (theirs, plain)):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
            parameter.pow(2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-6, atol=1e-7)


def test_it_averages_weights(device: Device, place: torch.device) -> None:
    ours, theirs = [torch.zeros(3).to(place), torch.ones(2, 2).to(place)], [torch.ones(3).to(place)] * 2
    theirs[1] = torch.full((2, 2), 3.0).to(place)
    device.average(ours, theirs, 0.75)
    assert ours[0].tolist() == pytest.approx([0.25] * 3)
    assert ours[1].flatten().tolist() == pytest.approx([1.5] * 4)


def test_marks_and_waits_do_no_harm(device: Device) -> None:
    device.end_of_step()
    device.synchronize()
    assert not device.is_out_of_memory(ValueError("no"))


def test_settings_of_the_process_are_put_back(device: Device) -> None:
    before = (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark)
    with device.working(Precision.FP32):
        pass
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == before


def test_it_crosses_to_another_process(device: Device) -> None:
    other = pickle.loads(pickle.dumps(device))
    assert (other.name, other.count()) == (device.name, device.count())
    other.end_of_step()


def train_small(nano: TorchNano) -> list[float]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1)
    data = [(torch.rand(4, 3, 8, 8), torch.randint(0, 4, (4,))) for _ in range(4)]
    model, optimizer, loader = nano.setup(model, optimizer, data)
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        nano.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


@pytest.mark.parametrize("word", ["device", "accelerator"])
def test_torch_nano_trains_on_it_as_on_the_cpu(device: Device, word: str) -> None:
    here: Any = {word: device.name}
    expected = TorchNano().launch(train_small)
    assert TorchNano(num_processes=1, **here).launch(train_small) == pytest.approx(expected, rel=1e-4)


def test_options_that_mean_nothing_are_refused(device: Device) -> None:
    kind: Callable[[DeviceOptions], Device] = catalogue.load("device", device.name)
    if device.name != "hpu":
        with pytest.raises(UsageError, match="lazy=True does not apply to device="):
            kind(DeviceOptions(lazy=True))
        with pytest.raises(UsageError, match="bf16_ops="):
            kind(DeviceOptions(bf16_ops=Path("x.txt")))


@pytest.mark.skipif("hpu" not in PRESENT, reason="needs the simulated HPU")
class TestHpu:
    """What is special about it."""

    def test_what_contradicts_is_refused_by_hpu(self, tmp_path: Path) -> None:
        kind = catalogue.load("device", "hpu")
        with pytest.raises(UsageError, match="lazy mode makes its own graphs"):
            kind(DeviceOptions(lazy=True, compile=True))
        with pytest.raises(UsageError, match="can't be read"):
            kind(DeviceOptions(bf16_ops=tmp_path / "none.txt"))
        (tmp_path / "empty.txt").write_text("\n")
        with pytest.raises(UsageError, match="is empty"):
            kind(DeviceOptions(fp32_ops=tmp_path / "empty.txt"))
        with pytest.raises(UsageError, match="can't change its mode"):
            kind(DeviceOptions(lazy=True))
        kind()  # from here on the plugin is loaded
        ops = tmp_path / "ops.txt"
        ops.write_text("conv2d\nlinear\n")
        with pytest.raises(UsageError, match=f"PT_HPU_AUTOCAST_FP32_OPS_LIST={ops}"):
            TorchNano(device="hpu", precision="bf16", device_options=DeviceOptions(fp32_ops=ops))
        (tmp_path / "binary.txt").write_bytes(b"conv2d\xff\n")
        with pytest.raises(UsageError, match="can't be read as text"):
            kind(DeviceOptions(bf16_ops=tmp_path / "binary.txt"))
        (tmp_path / "other.txt").write_text("linear\nbatch_norm\n")
        with pytest.raises(UsageError, match="bf16_ops and fp32_ops: 'linear'"):
            kind(DeviceOptions(bf16_ops=tmp_path / "other.txt", fp32_ops=ops))
        with pytest.raises(UsageError, match=r"precision='16'.*'hpu'"):
            TorchNano(device="hpu", precision=16)
        with pytest.raises(UsageError, match="there are 8"):
            TorchNano(device="hpu", num_processes=9)

    @pytest.mark.parametrize("precision", ["32", "bf16-true"])
    def test_lists_of_operations_are_for_autocast_on_hpu(
        self, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ops = tmp_path / "ops.txt"
        ops.write_text("conv2d\n")
        monkeypatch.setenv("PT_HPU_AUTOCAST_FP32_OPS_LIST", str(ops))
        options = DeviceOptions(fp32_ops=ops)
        assert TorchNano(device="hpu", precision="bf16-mixed", device_options=options).plan.precision is Precision.BF16
        with pytest.raises(UsageError, match="use precision='bf16'"):
            TorchNano(device="hpu", precision=precision, device_options=options)

    def test_doctor_shows_the_plan_of_a_training_on_hpu(self) -> None:
        report = examine(device="hpu", precision="bf16")
        trained = TorchNano(device="hpu", precision="bf16", strategy="subprocess", batch=16, channels_last=True)
        assert report.plan == trained.plan
        assert report.plan.lines()[0].split() == ["device", "hpu"]
        (plugin,) = report.to_dict()["plugins"]
        assert plugin == {"device": "hpu", "package": "habana_frameworks", "version": "unknown"}

    def test_hccl_knows_no_average_and_reduces_no_int64_on_hpu(self, tmp_path: Path) -> None:
        device = catalogue.load("device", "hpu")()
        place = device.place(0)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {
                "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
            }.items():  # fmt: skip
                patch.setenv(name, value)
            device.join_group(place, timedelta(seconds=60))
        try:
            torch.distributed.all_reduce(torch.ones(2, device=place))
            with pytest.raises(RuntimeError, match="AVG"):
                torch.distributed.all_reduce(torch.ones(2, device=place), op=torch.distributed.ReduceOp.AVG)
            with pytest.raises(RuntimeError, match="int64"):
                torch.distributed.all_reduce(torch.ones(2, dtype=torch.int64, device=place))
            # Ours take all of it, also from the host; the group of one stands for one of two.
            for value in (torch.tensor([2**40, -3]), torch.rand(2, 3)):
                for sent in (value, value.to(place)):
                    total = collectives.all_reduce(sent, "sum", 2, device, place)
                    assert (total.device, total.dtype) == (sent.device, sent.dtype)
                    assert torch.equal(total.cpu(), value)
        finally:
            torch.distributed.destroy_process_group()

    def test_a_function_of_too_many_shapes_fails_on_hpu(self) -> None:
        def double(x: Tensor) -> Tensor:
            return x * 2

        compiled = torch.compile(double, backend="hpu_backend", dynamic=False)
        for side in range(1, 9):
            compiled(torch.ones(side, device="hpu"))
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            compiled(torch.ones(9, device="hpu"))

    def test_a_graph_made_twice_fails_on_hpu(self) -> None:
        def halve(x: Tensor, note: int) -> Tensor:
            return x if note > 100 else x / 2

        compiled = torch.compile(halve, backend="hpu_backend", dynamic=False)
        compiled(torch.ones(3, device="hpu"), 1)
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="compiled again"):
            compiled(torch.ones(3, device="hpu"), 2)

    @pytest.mark.parametrize(
        ("wait", "count"),
        [
            (lambda x, n: torch.repeat_interleave(x, n), 1),
            (lambda x, n: torch.repeat_interleave(x, n, output_size=3), 0),
            (lambda x, n: torch.nonzero(n), 1),
            (lambda x, n: x + n, 0),
        ],
    )
    def test_what_the_host_waits_for_is_counted_on_hpu(self, wait: Callable[..., Any], count: int) -> None:
        x, n = torch.ones(2).to("hpu"), torch.tensor([1, 2]).to("hpu")
        before = torch.ops.simulated_hpu.host_reads()
        wait(x, n)
        assert torch.ops.simulated_hpu.host_reads() - before == count
        waits = torch.ops.simulated_hpu.waits()
        catalogue.load("device", "hpu")().synchronize()
        assert torch.ops.simulated_hpu.waits() == waits + 1

    def test_inference_mode_has_views_on_hpu(self) -> None:
        model, x = nn.Linear(8, 4), torch.rand(3, 8)
        expected = model(x).detach()
        model.to("hpu")
        with torch.inference_mode():
            found = model(x.to("hpu"))
            assert found[1:].t().is_inference()
            assert not model.weight.t().is_inference()
        torch.testing.assert_close(found.cpu(), expected)

    def test_without_compiling_the_plan_of_hpu_says_so(self) -> None:
        kind = catalogue.load("device", "hpu")
        assert kind(DeviceOptions(compile=False)).supports(Precision.FP32).note == "eager mode"

    def test_weights_are_loaded_to_hpu_and_copied(self, tmp_path: Path) -> None:
        model = make_model().to("hpu")
        torch.save(model.state_dict(), tmp_path / "w.pt")
        loaded = torch.load(tmp_path / "w.pt", map_location="hpu", weights_only=True)
        twin = copy.deepcopy(model)
        for key, value in twin.state_dict().items():
            assert value.device.type == "hpu"
            assert torch.equal(value.cpu(), loaded[key].cpu())
