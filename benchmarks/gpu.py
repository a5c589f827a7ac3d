"""python benchmarks/gpu.py [--device cuda] [--model yolox_s] [--batch 64]

On a GPU: images per second of the bare training step (bf16, images already there), which says how much of it a whole
training reaches (`benchmarks/training.py --device cuda`), with the share of the GPU's peak that is used; and latencies
of inference, nano and s, batch 1 and 64, fp32 and bf16, as medians.
"""

import argparse
import time
from statistics import median

import torch

from boxwright.core.timing import hardware_line
from boxwright.core.types import Precision
from boxwright.detector.loss import yolox_loss
from boxwright.detector.sizes import SIZES
from boxwright.detector.yolox import build
from boxwright.devices.cuda import CudaDevice

GFLOPS = {"yolox_nano": 1.05, "yolox_s": 26.69}  # of one image forward, see `boxwright info`


def train_step(device: CudaDevice, model: str, batch: int, steps: int) -> float:
    """Return images per second of forward, loss, backward and SGD on images that lie on the GPU."""
    size_hw = SIZES[model].input_hw
    net = build(model, 80).train().to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9, nesterov=True, fused=True)
    images = (torch.rand(batch, 3, *size_hw, device="cuda") * 255).contiguous(memory_format=torch.channels_last)
    targets = torch.zeros(batch, 120, 5, device="cuda")
    targets[:, :20, 1:3] = torch.rand(batch, 20, 2, device="cuda") * size_hw[0]
    targets[:, :20, 3:] = 20 + torch.rand(batch, 20, 2, device="cuda") * 100
    start = 0.0
    for step in range(steps + 5):
        if step == 5:
            torch.cuda.synchronize()
            start = time.perf_counter()
        with device.autocast(Precision.BF16):
            raw = net(images)
        loss = yolox_loss(raw, targets, size_hw, static=True).total
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return batch * steps / (time.perf_counter() - start)


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
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="bf16 without sparsity (default: H100, H200)")
    args = parser.parse_args()
    device = CudaDevice()
    print(f"{hardware_line()}; {torch.cuda.get_device_name()}, torch {torch.__version__}")
    rate = train_step(device, args.model, args.batch, args.steps)
    share = rate * 3 * GFLOPS[args.model] / 1000 / args.peak_tflops
    print(
        f"{args.model}, batch {args.batch}, bf16, bare step: {rate:.1f} images/s, {share:.1%} of the peak", flush=True
    )
    for model in GFLOPS:
        for batch in (1, 64):
            for dtype in (torch.float32, torch.bfloat16):
                ms = latency_ms(model, batch, dtype, 60)
                print(f"{model} batch {batch:2} {dtype}: {ms:7.2f} ms, {1000 * batch / ms:8.1f} images/s", flush=True)


if __name__ == "__main__":
    main()
