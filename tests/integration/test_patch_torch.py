"""Scripts that were written for CUDA run on the CPU, and torch is as before afterwards."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError
from boxwright.devices.patching import patch_torch, unpatch_torch

SCRIPT = """
import argparse, os, random, sys
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.cuda.amp import GradScaler as OldScaler, autocast as old_autocast
from torch.utils.data import DataLoader, TensorDataset

assert torch.cuda.is_available() and torch.cuda.device_count() == 1, "a GPU is needed"
torch.backends.cudnn.benchmark = True
torch.cuda.manual_seed_all(0)
torch.cuda.set_device(0)
device = torch.device("cuda:0")
print("device", device, torch.device("cuda", 0), torch.device(0), torch.device(type="cuda", index=1))

class Prefetcher:
    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.x, self.y = next(self.loader)
        except StopIteration:
            self.x = None
            return
        with torch.cuda.stream(self.stream):
            self.x = self.x.cuda(non_blocking=True)
            self.y = self.y.to(device, non_blocking=True)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        x = self.x
        if x is not None:
            x.record_stream(torch.cuda.current_stream())
            y = self.y
            self.preload()
            return x, y

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8, device="cuda")
        self.top = nn.Linear(8, 1).cuda()

    def forward(self, x):
        noise = torch.zeros(x.shape[0], 8, device=x.device) + torch.rand(8, device="cuda") * 0
        return self.top(torch.relu(self.body(x)) + noise)

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
dist.init_process_group("nccl", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(Net().to("cuda"), device_ids=[0], output_device=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
x = torch.randn(16, 4).pin_memory()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
batches = Prefetcher(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4))
steps = 0
while (batch := batches.next()) is not None:
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1].to("cuda", torch.float32))
    with torch.autocast(device_type="cuda", enabled=False):
        loss = loss + torch.tensor(0.0, device=device) + torch.cuda.FloatTensor([0.0])[0]
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    steps += 1
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0
torch.cuda.empty_cache()
torch.save({"model": model.module.state_dict()}, f"{sys.argv[1]}/last.pt")
for location in (None, "cuda", "cuda:0", torch.device("cuda"), {"cuda:0": "cuda:0"}, lambda storage, loc: storage.cuda(0)):
    state = torch.load(f"{sys.argv[1]}/last.pt", map_location=location)
Net().cuda().load_state_dict(state["model"])
data = nn.DataParallel(Net()).cuda()
print("out", data(torch.ones(2, 4).cuda()).shape, next(data.parameters()).device, loss.type(torch.cuda.DoubleTensor).dtype)
print("memory", torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties(0).total_memory > 0, torch.cuda.get_device_name())
print("random", torch.randn(1, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda").shape)
dist.destroy_process_group()
print("steps", steps)
"""  # noqa: E501


def test_a_whole_script_for_cuda_runs_on_the_cpu(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    command = [sys.executable, "-m", "boxwright", "run", "--cuda-to-cpu", "--", sys.executable, str(script)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "mine",  # the user's own start file is still read: by boxwright itself, and by the program
        "mine",
        "device cpu cpu cpu cpu",
        "out torch.Size([2, 1]) cpu torch.float64",
        "memory 0 True cpu",
        "random torch.Size([1])",
        "steps 4",
    ]


def snapshot() -> dict[Any, Any]:
    owners = (
        torch, torch.cuda, torch.amp, torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler, Tensor,
        nn.Module, torch.UntypedStorage, torch.TypedStorage, distributed, nn.parallel.DistributedDataParallel,
    )  # fmt: skip
    return {(str(owner), name): value for owner in owners for name, value in vars(owner).items()}


def test_everything_is_restored() -> None:
    before = snapshot()
    with patch_torch(cuda_to_cpu=True):
        assert torch.ones(1).cuda().device.type == "cpu"
        assert isinstance(torch.device("cuda"), torch.device)
        patch_torch()  # a second call changes nothing
    after = snapshot()
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    patch_torch()
    unpatch_torch()
    unpatch_torch()
    assert all(value is before[name] for name, value in snapshot().items())
    assert torch.device("cuda").type == "cuda"


def test_it_ends_with_an_error_in_the_block_and_refuses_to_do_nothing() -> None:
    with pytest.raises(KeyError), patch_torch():
        raise KeyError
    assert torch.device("cuda").type == "cuda"
    with pytest.raises(UsageError, match="nothing to change"):
        patch_torch(cuda_to_cpu=False)


def test_libraries_get_the_true_answer_about_cuda() -> None:
    library = {"__name__": "torch.somewhere", "torch": torch}
    truth = torch.cuda.is_available()
    with patch_torch():
        assert torch.cuda.is_available()
        assert eval("torch.cuda.is_available()", library) == truth


class OnCuda(TorchNano):
    def train(self, net: nn.Module) -> tuple[str, float]:
        net.cuda()
        model, optimizer = self.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        loss = model(torch.ones(2, 4, device="cuda").cuda()).sum()
        self.backward(loss)
        optimizer.step()
        return str(torch.device("cuda:0")), float(loss.detach())


def test_processes_of_torch_nano_are_patched_like_their_caller() -> None:
    with patch_torch():
        assert TorchNano().launch(lambda nano: str(nano.device)) == "cpu"
        place, loss = OnCuda(num_processes=2).train(nn.Linear(4, 1))
        buffer = io.BytesIO()
        torch.save({"place": torch.device("cuda")}, buffer)
    buffer.seek(0)
    assert torch.load(buffer) == {"place": torch.device("cpu")}
    assert (place, loss == loss) == ("cpu", True)
