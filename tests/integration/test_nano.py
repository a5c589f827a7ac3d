"""TorchNano: known parameters after known steps, in one process and in two, with every launcher and precision."""

import os
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from support.clusters import further
from support.processes import listening_addresses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.decorator import nano
from boxwright.accel.module import NanoModule
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError
from boxwright.launchers.allocator import read_allocator
from boxwright.launchers.network import find_free_port

PRECISIONS = ["64", "32", "16", "bf16", "bf16-true"]


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def make_data() -> TensorDataset:
    x = torch.sin(torch.arange(64, dtype=torch.float32)).reshape(16, 4)
    # Small targets: a loss scaled for fp16 must not overflow, or steps are skipped, as they should be.
    return TensorDataset(x, 0.1 * x.sum(1, keepdim=True))


class Steps(TorchNano):
    """Two epochs of plain SGD; the batch is the whole set's share."""

    def train(self, net: nn.Module, batch: int) -> dict[str, Any]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(make_data(), batch_size=batch)
        model, optimizer, loader = self.setup(net, optimizer, loader)
        outputs = None
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                outputs = model(x)
                self.backward(nn.functional.mse_loss(outputs, y.to(outputs.dtype)))
                optimizer.step()
        assert outputs is not None
        return {
            "world": (self.global_rank, self.world_size, self.is_distributed, self.is_global_zero),
            "dtype": str(outputs.dtype),
            "weights": {k: v.double() for k, v in model.state_dict().items()},
            "threads": torch.get_num_threads(),
        }


def plain_steps(precision: str) -> dict[str, torch.Tensor]:
    """Return the weights after the same steps in plain torch."""
    net = make_net()
    dtype = {"64": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
    low = {"16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    net.to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "16")
    x, y = make_data().tensors
    for _ in range(2):
        for part in (slice(0, 8), slice(8, 16)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=low is not None):
                out = net(x[part].to(dtype))
            out = out.float() if out.dtype in (torch.float16, torch.bfloat16) else out
            scaler.scale(nn.functional.mse_loss(out, y[part].to(out.dtype))).backward()
            scaler.step(optimizer)
            scaler.update()
    return {k: v.double() for k, v in net.state_dict().items()}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_process_gives_exactly_what_plain_torch_gives(precision: str) -> None:
    result = Steps(precision=precision).train(make_net(), 8)
    expected = plain_steps(precision)
    assert result["world"] == (0, 1, False, True)
    assert result["dtype"] == ("torch.float64" if precision == "64" else "torch.float32")
    for name, value in expected.items():
        assert torch.equal(result["weights"][name], value), name


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        ("subprocess", "32"),
        ("subprocess", "16"),
        ("spawn", "bf16"),
        *further(*((strategy, precision) for strategy in ("subprocess", "spawn") for precision in ("64", "bf16-true"))),
        *further(("subprocess", "bf16"), ("spawn", "32"), ("spawn", "16")),
    ],
)
def test_two_processes_learn_what_one_learns_on_the_same_batch(strategy: str, precision: str) -> None:
    net = make_net()
    # Unshuffled shares are every second sample, so two processes with 4 each see other batches of 8 than one would:
    # the whole set as one batch makes them the same.
    alone = Steps(precision=precision).train(make_net(), 16)
    result = Steps(num_processes=2, strategy=strategy, precision=precision).train(net, 8)
    assert result["world"] == (0, 2, True, True)
    assert result["threads"] == 1
    bound = {"64": 1e-12, "32": 1e-6}.get(precision, 2e-2)
    for name, value in alone["weights"].items():
        torch.testing.assert_close(result["weights"][name], value, rtol=0, atol=bound)
        torch.testing.assert_close(
            net.state_dict()[name].double(), result["weights"][name], rtol=0, atol=1e-2 * bound + 1e-7
        )


def test_the_nine_steps_of_a_conversion_work_as_written() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.freeze = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    class MyNano(TorchNano):
        def train(self) -> list[Any]:
            model = Net()
            optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]
            dataloaders = [DataLoader(make_data(), batch_size=4), DataLoader(make_data(), batch_size=2)]
            model, optimizers, dataloaders = self.setup(model, optimizers, dataloaders)
            seen = [len(dataloaders[0]), len(dataloaders[1])]
            if self.is_distributed:
                model._module.module.freeze = False
            else:
                model.freeze = False
            for x, y in dataloaders[0]:
                loss = nn.functional.mse_loss(model(x), y)
                optimizers[0].zero_grad()
                self.backward(loss)
                optimizers[0].step()
            if self.global_rank == 0:
                seen.append(model.freeze)
            return [*seen, sorted(model.state_dict())]

    assert MyNano().train() == [4, 8, False, ["layer.bias", "layer.weight"]]
    assert MyNano(num_processes=2).train() == [2, 4, False, ["layer.bias", "layer.weight"]]


def test_attributes_of_the_model_pass_through_both_ways() -> None:
    net = make_net()
    net.note = "before"  # type: ignore[assignment]
    model = TorchNano().setup(net)
    assert isinstance(model, NanoModule)
    assert model.note == "before"
    model.note = "after"
    assert net.note == "after"
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert len(list(model.parameters())) == 4


def collectives(runner: TorchNano) -> dict[str, Any]:
    mine = torch.tensor([float(runner.global_rank + 1)])
    return {
        "mean": runner.all_reduce(mine).item(),
        "sum": runner.all_reduce(mine, "sum").item(),
        "whole": runner.all_reduce(2**40 + mine.long(), "sum").item(),
        "gathered": runner.all_gather(mine).flatten().tolist(),
        "objects": runner.all_gather({"rank": runner.global_rank}),
        "from_1": runner.broadcast(f"rank {runner.global_rank}", src=1),
        "mine": mine.item(),
        "listening": set().union(*runner.all_gather(listening_addresses())),
    }


def test_collectives_over_two_processes_which_listen_on_the_loopback_only() -> None:
    assert TorchNano(num_processes=2).launch(collectives) == {
        "mean": 1.5, "sum": 3.0, "whole": 2**41 + 3, "gathered": [1.0, 2.0], "objects": [{"rank": 0}, {"rank": 1}],
        "from_1": "rank 1", "mine": 1.0, "listening": {"127.0.0.1"},
    }  # fmt: skip


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, *, loader: DataLoader) -> int:  # type: ignore[type-arg]
    seen = 0
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        seen += len(x)
    return seen


def test_the_decorator_shards_loaders_given_by_keyword_and_brings_weights_back() -> None:
    results = {}
    for processes, batch in ((1, 16), (2, 8)):
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        run = nano(num_processes=processes)(learn)
        seen = run(net, optimizer, loader=DataLoader(make_data(), batch_size=batch))
        assert seen == 16 // processes
        results[processes] = net.state_dict()
    for name, value in results[1].items():
        torch.testing.assert_close(results[2][name], value, rtol=0, atol=1e-6)


def test_the_decorator_refuses_precision_16() -> None:
    net = make_net()
    with pytest.raises(UsageError, match="Use TorchNano, or precision='bf16'"):
        nano(precision=16)(learn)(net, torch.optim.SGD(net.parameters(), lr=0.1), loader=DataLoader(make_data()))


def test_auto_lr_multiplies_the_rate_by_the_processes() -> None:
    def rate(runner: TorchNano) -> float:
        net = make_net()
        _, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        return float(optimizer.param_groups[0]["lr"])

    assert TorchNano(num_processes=2, auto_lr=True).launch(rate) == pytest.approx(0.2)
    assert TorchNano(num_processes=2).plan.lr_factor == 1.0
    assert TorchNano(num_processes=2).num_processes == 2


def test_a_scheduler_works_with_precision_16() -> None:
    def halve(runner: TorchNano) -> float:
        net = make_net()
        model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        runner.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        scheduler.step()
        return float(optimizer.param_groups[0]["lr"])

    assert TorchNano(precision=16).launch(halve) == pytest.approx(0.05)


class Base(TorchNano):
    def train(self, number: int) -> list[int]:
        return [number, self.world_size]


class Child(Base):
    def train(self, number: int) -> list[int]:
        return [*super().train(number + 1), number]


class Loop:
    def train(self, number: int) -> list[int]:
        return [number]


class Mixed(Loop, TorchNano):
    pass


def test_train_may_call_its_parents_or_come_from_a_mixin_and_stays_a_method_of_the_class() -> None:
    assert Child().train(1) == [2, 1, 1]
    assert Mixed().train(1) == [1]
    assert "train" not in vars(Child())
    assert list(signature(Child.train).parameters) == ["self", "number"]
    assert Child(num_processes=2).train(1) == [2, 2, 1]


def test_checkpoints_are_written_once_and_load_back(tmp_path: Path) -> None:
    def write(runner: TorchNano, path: Path) -> None:
        net = make_net()
        model = runner.setup(net)
        runner.save(path, {"model": model, "step": 7})

    TorchNano(num_processes=2).launch(write, tmp_path / "state.pt")
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    rest = TorchNano().load(tmp_path / "state.pt", {"model": net})
    assert rest == {"step": 7}
    assert torch.equal(net[0].weight, make_net()[0].weight)


def test_use_ipex_says_in_one_line_what_happens_instead(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        runner = TorchNano(use_ipex=True)
    assert "stock PyTorch does the same" in caplog.text
    assert runner.plan.channels_last


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "8bit"}, "Unknown precision"),
        ({"strategy": "ray", "distributed_backend": "spawn"}, "mean the same thing"),
        ({"num_processes": 1000}, "physical cores"),
        ({"device": "tpu"}, "Unknown device 'tpu'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TorchNano(**settings)


class AsInBigdlNano(TorchNano):
    def train(self, path: Path) -> dict[str, Any]:  # type: ignore[override] # a user's own arguments
        net = nn.Linear(4, 1)
        model, optimizer = self.setup(net, torch.optim.SGD(net.parameters(), lr=0.1), move_to_device=True)
        loader = self.setup_dataloaders(DataLoader(torch.ones(8, 4), batch_size=4), replace_sampler=False)
        self.seed_everything(42, workers=True)
        for batch in loader:
            optimizer.zero_grad()
            self.backward(model(batch).mean(), model=model)
            optimizer.step()
        self.barrier("trained")
        self.save({"model": model.state_dict(), "batches": len(loader)}, path)
        loaded: dict[str, Any] = self.load(path)
        assert torch.equal(loaded["model"]["weight"], net.weight)
        with pytest.raises(UsageError, match="move_to_device=False is not possible"):
            self.setup_dataloaders(loader, move_to_device=False)
        return loaded


def test_methods_take_what_they_took_in_bigdl_nano(tmp_path: Path) -> None:
    assert AsInBigdlNano().train(tmp_path / "state.pt")["batches"] == 2


def test_train_must_be_overridden() -> None:
    with pytest.raises(UsageError, match="Override train"):
        TorchNano().train()


def test_a_class_in_a_script_without_a_guard_trains_in_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from boxwright.accel.nano import TorchNano\n"
        "net = torch.nn.Linear(1, 1)\n"
        "class Mine(TorchNano):\n"
        "    def train(self):\n"
        "        torch.nn.init.constant_(net.weight, 5)\n"
        "        return int(self.all_reduce(torch.ones(1), 'sum'))\n"
        "print('sum', Mine(num_processes=2).train(), 'weight', float(net.weight.detach()))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["sum 2 weight 5.0"], done.stderr


def test_an_outer_launcher_is_used_instead_of_starting_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, torch\n"
        "from pathlib import Path\n"
        "from boxwright.accel.nano import TorchNano\n"
        "mask = os.sched_getaffinity(0)\n"
        "def job(runner):\n"
        "    total = int(runner.all_reduce(torch.ones(1), 'sum'))\n"
        "    # torchrun pins nothing: unless something else has cut the mask, each process takes its share.\n"
        "    share = runner.plan.workers[runner.local_rank].cores if len(mask) == os.cpu_count() else mask\n"
        "    assert os.sched_getaffinity(0) == set(share)\n"
        "    text = f'{runner.global_rank} {runner.world_size} {total}'\n"
        "    (Path(__file__).parent / f'rank_{runner.global_rank}').write_text(text)\n"
        "TorchNano().launch(job)\n"
        "assert os.sched_getaffinity(0) == mask\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank_{r}").read_text() for r in (0, 1)] == ["0 2 2", "1 2 2"]


def test_the_processes_have_the_allocator_that_the_plan_names() -> None:
    def keeps(_runner: TorchNano) -> bool:
        return read_allocator().keeps

    runner = TorchNano(num_processes=2)
    if read_allocator({}).name == "glibc":
        assert "keeps freed memory" in runner.plan.allocator
        assert runner.launch(keeps)
    assert runner.plan.allocator


def test_pods_of_a_pytorchjob_are_machines_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from pathlib import Path\n"
        "from boxwright.accel.nano import TorchNano\n"
        "def job(runner):\n"
        "    total = int(runner.all_reduce(torch.ones(1), 'sum'))\n"
        "    plan = runner.plan\n"
        "    text = f'{runner.local_rank} {runner.node_rank} {total} {plan.processes} {plan.lr_factor:g}'\n"
        "    (Path(__file__).parent / f'rank_{runner.global_rank}').write_text(text)\n"
        "TorchNano(auto_lr=True).launch(job)\n"
    )
    pod = {
        **os.environ, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_free_port()), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    pods = [
        subprocess.Popen([sys.executable, str(script)], env={**pod, "RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    for one in pods:
        _, errors = one.communicate(timeout=180)
        assert one.returncode == 0, errors.decode()
    # Each has its machine to itself, and the rate is for both of them.
    assert [(tmp_path / f"rank_{r}").read_text() for r in (0, 1)] == ["0 0 2 1 2", "0 1 2 1 2"]


class Odd(nn.Module):
    """Learns through methods and parts of its own; `forward` is one of several ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body, self.top = nn.Linear(4, 6), nn.Linear(6, 1)
        self.norm = nn.BatchNorm1d(6, momentum=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.norm(self.body(x)).tanh())

    def training_loss(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self(x), y)}


def by_forward(model: Any, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [nn.functional.mse_loss(model(x), y)]


def by_method(model: Any, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [model.training_loss(x, y)["loss"]]


def by_parts(model: Any, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [nn.functional.mse_loss(model.top(model.norm(model.body(x)).tanh()), y)]


def by_two_passes(model: Any, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    loss = nn.functional.mse_loss(model(x), y)
    return [0.25 * loss, 0.75 * loss]


def by_some_parameters(model: Any, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [nn.functional.mse_loss(model.body(x).mean(1, keepdim=True), y)]


def steps_of(runner: TorchNano, ways: list[Any], settle: bool) -> list[dict[str, torch.Tensor]]:
    """Return the weights of every process after one step in each way; the ranks see different samples."""
    net = Odd().eval()  # batch-norm by its statistics: two halves then give what the whole gives
    model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for way in ways:
        optimizer.zero_grad()
        x, y = (part[runner.global_rank :: runner.world_size] for part in make_data().tensors)
        losses = way(model, x, y)
        for loss in losses:
            runner.backward(loss, retain_graph=loss is not losses[-1])
        if settle:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return runner.all_gather({k: v.clone() for k, v in net.state_dict().items()}) if runner.is_distributed else [
        net.state_dict()
    ]  # fmt: skip


@pytest.mark.parametrize("find_unused", [False, *further(True)])
def test_any_way_through_the_model_takes_part_in_the_averaging_of_gradients(find_unused: bool) -> None:
    ways = [by_method, by_parts, by_two_passes, by_forward, by_some_parameters, by_method]
    (alone,) = TorchNano().launch(steps_of, ways, True)
    first, second = TorchNano(num_processes=2, find_unused_parameters=find_unused).launch(steps_of, ways, True)
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=0, atol=1e-6)


def accumulate(runner: TorchNano, way: Any) -> torch.Tensor:
    net = Odd().eval()
    model = runner.setup(net)
    x, y = (part[runner.global_rank :: runner.world_size] for part in make_data().tensors)
    half = len(x) // 2
    with model.no_sync():
        runner.backward(way(model, x[:half], y[:half])[0])
    runner.backward(way(model, x[half:], y[half:])[0])
    return net.body.weight.grad


def gradients_of_corner_cases(runner: TorchNano) -> dict[str, list[torch.Tensor]]:
    net = Odd().eval()
    model = runner.setup(net)
    (by_method if runner.is_global_zero else by_some_parameters)(model, *make_data().tensors)[0].backward()
    uneven = runner.all_gather(net.top.weight.grad)
    return {"uneven": uneven, "forward": accumulate(runner, by_forward), "method": accumulate(runner, by_method)}


def test_no_sync_leaves_the_averaging_to_the_last_backward_and_a_missing_gradient_counts_as_zero() -> None:
    found = TorchNano(num_processes=2).launch(gradients_of_corner_cases)
    expected = accumulate(TorchNano(), by_forward)
    for way in ("forward", "method"):
        torch.testing.assert_close(found[way], expected)
    net = Odd().eval()
    by_method(net, *make_data().tensors)[0].backward()
    for gradient in found["uneven"]:
        torch.testing.assert_close(gradient, net.top.weight.grad / 2)


def test_methods_of_the_model_run_in_its_precision_and_keep_what_they_return() -> None:
    class Speaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.notes: list[str] = []

        def kind(self, x: torch.Tensor) -> str:
            return str(self.layer(x).dtype)

        def raw(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

        def book(self) -> list[str]:
            return self.notes

    def job(runner: TorchNano) -> list[Any]:
        net = Speaks()
        model = runner.setup(net)
        model.book().append("kept")
        return [model.kind(torch.ones(1, 4)), model.raw(torch.ones(1, 4)).dtype, net.notes, model.raw.__name__]

    assert TorchNano(precision="bf16").launch(job) == ["torch.bfloat16", torch.float32, ["kept"], "raw"]
    assert TorchNano(precision="64").launch(job)[:2] == ["torch.float64", torch.float64]


@pytest.mark.parametrize("clip", ["torch", "nano"])
def test_gradients_of_precision_16_have_their_true_size_and_can_be_clipped_and_accumulated(clip: str) -> None:
    def job(runner: TorchNano) -> tuple[float, float, torch.Tensor]:
        net = make_net()
        before = net[0].weight.detach().clone()
        model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=1.0))
        x, y = make_data().tensors
        for part in (slice(0, 8), slice(8, 16)):
            runner.backward(nn.functional.mse_loss(model(x[part]), y[part]))
        largest = float(net[0].weight.grad.abs().max())
        if clip == "torch":
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        else:
            norm = runner.clip_gradients(model, optimizer, max_norm=1e-3)
        optimizer.step()
        return largest, float(norm), before - net[0].weight.detach()

    for low, full in zip(TorchNano(precision=16).launch(job), TorchNano().launch(job), strict=True):
        torch.testing.assert_close(low, full, rtol=2e-2, atol=1e-5)


def test_a_step_whose_gradients_overflow_in_precision_16_is_skipped() -> None:
    def job(runner: TorchNano) -> bool:
        net = make_net()
        before = net[0].weight.detach().clone()
        model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=1.0))
        runner.backward(model(torch.ones(2, 4)).sum() * 1e38)
        runner.clip_gradients(model, max_norm=1.0)
        optimizer.step()
        return torch.equal(net[0].weight, before) and runner.scaler_state()["scale"] < 65536

    assert TorchNano(precision=16).launch(job)
