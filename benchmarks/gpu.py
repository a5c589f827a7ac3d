"""python benchmarks/gpu.py [--model yolox_s] [--batch 64] [--data FOLDER] [--compile no|step|all] [--no-inference]

On a GPU, bf16:

- the bare training step (images already there), eager and compiled, with the share of the GPU's peak that is used and
  what network and loss take of it;
- with `--data`: how many images the data pipeline delivers to the GPU by itself, with worker threads and processes;
  then whole training by `boxwright train` with both, beside the bare step, and how busy nvidia-smi saw the GPU;
- latencies of inference, nano and s, batch 1 and 64, fp32 and bf16, as medians.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

import torch

from boxwright.accel.averages import WeightAverage
from boxwright.core.timing import hardware_line
from boxwright.core.types import Precision
from boxwright.data.cache import open_cache
from boxwright.data.dataset import DetectionDataset
from boxwright.data.formats import read_records
from boxwright.data.loader import Loader
from boxwright.data.policy import policy_for
from boxwright.detector.loss import yolox_loss
from boxwright.detector.sizes import SIZES
from boxwright.detector.yolox import build
from boxwright.devices.cuda import CudaDevice
from boxwright.devices.options import DeviceOptions
from boxwright.tasks.train.run import TrainConfig, train

GFLOPS = {"yolox_nano": 1.05, "yolox_s": 26.69}  # of one image forward, see `boxwright info`
KINDS: tuple[Literal["threads", "processes"], ...] = ("threads", "processes")


def seconds_of(work: Callable[[], object], runs: int, warmup: int = 5) -> float:
    """Return seconds a call, when many are queued."""
    for _ in range(warmup):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / runs


def bare_step(model: str, batch: int, steps: int, *, compiled: bool) -> dict[str, float]:
    """Return seconds of forward, loss, backward, SGD and weight average on images that lie on the GPU, and of parts."""
    device = CudaDevice(DeviceOptions(compile=compiled or None))
    size_hw = SIZES[model].input_hw
    net: Any = build(model, 80).train().to("cuda", memory_format=torch.channels_last)
    average = WeightAverage(net, move=device.average)
    optimizer = device.make_sgd(net.parameters(), lr=1e-6, momentum=0.9, nesterov=True)
    images = (torch.rand(batch, 3, *size_hw, device="cuda") * 255).contiguous(memory_format=torch.channels_last)
    targets = torch.zeros(batch, 120, 5, device="cuda")
    targets[:, :20, 1:3] = torch.rand(batch, 20, 2, device="cuda") * size_hw[0]
    targets[:, :20, 3:] = 20 + torch.rand(batch, 20, 2, device="cuda") * 100
    running, loss = device.compile(net), device.compile(partial(yolox_loss, size_hw=size_hw, static=True))

    def forward() -> Any:
        with device.autocast(Precision.BF16):
            return running(images)

    def step() -> None:
        loss(forward(), targets).total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update(net)

    def network() -> None:
        sum(part.float().mean() for part in forward()).backward()
        optimizer.zero_grad(set_to_none=True)

    raw = type(forward())(*(part.detach().requires_grad_() for part in forward()))
    with device.working(Precision.BF16):
        return {
            "step": seconds_of(step, steps),
            "network": seconds_of(network, steps // 2),
            "loss": seconds_of(lambda: loss(raw, targets).total.backward(), steps // 2),
            "forward": seconds_of(forward, steps // 2),
        }


def pipeline_rate(data: Path, model: str, batch: int, batches: int, kind: Literal["threads", "processes"]) -> float:
    """Return images per second that reach the GPU when nothing else is done, cache filled."""
    device, size_hw = CudaDevice(), SIZES[model].input_hw
    records = read_records(data)
    tiles = open_cache("ram", records, size_hw)
    dataset = DetectionDataset(records, size_hw, policy=policy_for(model), tiles=tiles)
    for index in range(len(records)):
        tiles.tile(index)
    workers = max(1, min(torch.get_num_threads() - 2, 16))
    with Loader(dataset, batch_size=batch, workers=workers, worker_kind=kind, prefetch=3, infinite=True) as loader:
        sent = ((torch.from_numpy(b.images), torch.from_numpy(b.targets)) for b in loader)
        fed = device.feed(sent, torch.device("cuda", 0))
        for _ in range(6):
            next(fed)
        start = time.perf_counter()
        for _ in range(batches):
            next(fed)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        fed.close()
    return batch * batches / seconds


class Window:
    """Hears of a training's steps: its rate, and how busy the GPU is, between the first that is told and the last."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._told: list[tuple[int, float]] = []
        self._watch: subprocess.Popen[str] | None = None
        self.busy = 0.0

    def on_start(self, settings: Any) -> None:
        """Do nothing."""

    def on_step(self, step: int, values: Any) -> None:  # noqa: ARG002
        """Remember the time, and begin to watch."""
        self._told.append((step, time.perf_counter()))
        if self._watch is None:
            command = "nvidia-smi -i 0 --query-gpu=utilization.gpu --format=csv,noheader,nounits -lms 200"
            self._watch = subprocess.Popen(command.split(), stdout=subprocess.PIPE, text=True)

    def on_evaluation(self, step: int, values: Any) -> None:
        """Do nothing."""

    def on_end(self) -> None:
        """Read what was seen."""
        if self._watch is not None:
            self._watch.terminate()
            found = [float(line) for line in self._watch.communicate()[0].split() if line.strip().isdigit()]
            self.busy = mean(found[1:-1] or found or [0.0])  # the ends lie partly outside

    @property
    def rate(self) -> float:
        """Images per second."""
        (first, start), (last, end) = self._told[0], self._told[-1]
        return (last - first) * self._batch / (end - start)


def whole_training(args: argparse.Namespace, kind: Literal["threads", "processes"], *, compiled: bool) -> Window:
    """Train and return what was heard of it."""
    window = Window(args.batch)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            model=args.model, data=args.data, output_dir=Path(folder, "run"), val=0.0, batch=args.batch,
            steps=args.train_steps, precision="bf16", device="cuda", worker_kind=kind, multiscale=False,
            eval_interval=0, no_aug_epochs=0.0, lr_per_image=1e-6, print_interval=max(args.train_steps // 4, 1),
            max_error_rate=1.0, compile=compiled or None,
        )  # fmt: skip
        train(config, callbacks=[window])
    return window


def latency_ms(model: str, batch: int, dtype: torch.dtype, runs: int) -> float:
    """Return the median time of one forward pass, input on the GPU to outputs on the GPU."""
    net = build(model, 80).eval().to("cuda", dtype, memory_format=torch.channels_last)
    images = torch.rand(batch, 3, *SIZES[model].input_hw, device="cuda", dtype=dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    times = []
    with torch.inference_mode():
        for run in range(runs + 10):
            torch.cuda.synchronize()
            start = time.perf_counter()
            net(images)
            torch.cuda.synchronize()
            if run >= 10:
                times.append((time.perf_counter() - start) * 1000)
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="yolox_s", choices=GFLOPS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--data", type=Path, help="a labelled set, for the pipeline and whole training")
    parser.add_argument("--train-steps", type=int, default=200)
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="bf16 without sparsity (default: H100, H200)")
    parser.add_argument("--compile", choices=("no", "step", "all"), default="step", help="what is also run compiled")
    parser.add_argument("--no-inference", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here: nothing to measure.")
        return
    print(f"{hardware_line()}; {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    bare: dict[bool, float] = {}
    for compiled in (False,) if args.compile == "no" else (False, True):
        parts = bare_step(args.model, args.batch, args.steps, compiled=compiled)
        bare[compiled] = args.batch / parts["step"]
        share = bare[compiled] * 3 * GFLOPS[args.model] / 1000 / args.peak_tflops
        each = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in parts.items())
        name = "compiled" if compiled else "eager"
        print(
            f"{args.model}, batch {args.batch}, bf16, bare step, {name}: {bare[compiled]:.1f} images/s, "
            f"{share:.1%} of the peak ({each})",
            flush=True,
        )
    if args.data is not None:
        for kind in KINDS:
            rate = pipeline_rate(args.data, args.model, args.batch, 40, kind)
            print(
                f"data to the GPU alone, {kind}: {rate:.1f} images/s, {rate / bare[False]:.2f}x of the step", flush=True
            )
        for compiled in (False, True) if args.compile == "all" else (False,):
            for kind in KINDS:
                window = whole_training(args, kind, compiled=compiled)
                print(
                    f"whole training, {kind}{', compiled' if compiled else ''}: {window.rate:.1f} images/s, "
                    f"{window.rate / bare[compiled]:.2f}x of the bare step, GPU busy {window.busy:.0f} % of the time",
                    flush=True,
                )
    if args.no_inference:
        return
    for model in GFLOPS:
        for batch in (1, 64):
            for dtype in (torch.float32, torch.bfloat16):
                ms = latency_ms(model, batch, dtype, 60)
                print(f"{model} batch {batch:2} {dtype}: {ms:7.2f} ms, {1000 * batch / ms:8.1f} images/s", flush=True)


if __name__ == "__main__":
    main()
