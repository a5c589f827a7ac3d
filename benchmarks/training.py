"""python benchmarks/training.py [--model yolox_nano] [--batch 16] [--processes 1 2] [--data PATH]

Images per second of whole training, data included: the original code (fp32, channels first, assignment image by image,
data pipeline in worker processes, plain weight average) against `boxwright train`, in fp32 and bf16 and with several
processes. The original is the package of `benchmarks/peer.py` where it is installed (its docstring says how), otherwise
the same recipe written out here, which is somewhat faster than the package. Rounds are interleaved; each figure is the
best of its rounds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from boxwright.core.timing import hardware_line
from boxwright.data.formats import read_records, write_records
from boxwright.data.policy import policy_for
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes
from boxwright.detector.sizes import SIZES
from boxwright.detector.yolox import build
from data_pipeline import Original
from simota import plain_loss

WARMUP = 2


class PlainSet(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The plain pipeline as a torch data set."""

    def __init__(self, records: Records, model: str) -> None:
        self.source = Original(records, SIZES[model].input_hw, policy_for(model), cached=False)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.source.sample(index % len(self.source.records))


def run_original(records: Records, model: str, batch: int, steps: int) -> float:
    """Return images per second of the plain recipe."""
    size_hw = SIZES[model].input_hw
    workers = min(4, torch.get_num_threads())
    loader = torch.utils.data.DataLoader(PlainSet(records, model), batch_size=batch, num_workers=workers)
    net = build(model, len(records.names)).train()
    average = deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
    start = 0.0
    for step, (images, targets) in enumerate(loader):
        if step == WARMUP:
            start = time.perf_counter()
        loss = plain_loss(net(images.float()), targets.float(), size_hw)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            state = net.state_dict()
            for key, value in average.state_dict().items():
                if value.dtype.is_floating_point:
                    value *= 0.999
                    value += 0.001 * state[key]
        if step + 1 == steps + WARMUP:
            break
    return batch * steps / (time.perf_counter() - start)


def run_peer(data: Path, model: str, batch: int, steps: int, device: str) -> float:
    """Return images per second of the original package, in a process of its own."""
    command = [
        sys.executable, str(Path(__file__).with_name("peer.py")), "--data", str(data), "--images", "images/train",
        "--model", model, "--batch", str(batch), "--steps", str(steps), "--device", device,
    ]  # fmt: skip
    if device != "cpu":
        command.append("--amp")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1])["images_per_s"])


def run_ours(
    data: Path, model: str, batch: int, steps: int, precision: str, processes: int, device: str
) -> tuple[float, float]:
    """Return images per second of `boxwright train`, and the first process's peak memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "boxwright", "train", "-n", model, "--data", str(data), "--val", "0.1",
            "-b", str(batch), "--precision", precision, "--num_processes", str(processes), "--out", folder,
            "--device", device, "--json", "-q", "steps", str(steps), "print_interval", str(steps), "multiscale=false",
            "max_error_rate=1", "eval_interval=0", "no_aug_epochs=0", "lr_per_image=1e-6",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        result = json.loads(done.stdout)
        return result["images_per_s"], result["peak_mb"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="yolox_nano", choices=SIZES)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=["32", "bf16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--data", type=Path, help="a labelled set in one piece (default: scenes drawn for it)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = args.data or Path(scratch) / "scenes"
        if args.data is None:
            generate_scenes(data, images=200, seed=0, size_hw=(480, 640))
        records = read_records(data)
        peer = find_spec("yolox") is not None
        original = "original package" if peer else "original, written out"
        if peer:
            write_records(records, Path(scratch) / "coco", "coco")
        best: dict[str, float] = {original: 0.0}
        memory: dict[str, float] = {}
        for _ in range(args.rounds):
            if peer:
                rate = run_peer(Path(scratch) / "coco", args.model, args.batch, args.steps, args.device)
            elif args.device == "cpu":
                rate = run_original(records, args.model, args.batch, args.steps)
            else:
                raise SystemExit("On a GPU the original package is needed; see benchmarks/peer.py.")
            best[original] = max(best[original], rate)
            print(f"{original}: {rate:.1f} images/s", file=sys.stderr, flush=True)
            for precision in args.precisions:
                for processes in args.processes:
                    name = f"boxwright {precision}, {processes} process{'es' if processes > 1 else ''}"
                    rate, peak = run_ours(data, args.model, args.batch, args.steps, precision, processes, args.device)
                    best[name], memory[name] = max(best.get(name, 0.0), rate), peak
                    print(f"{name}: {rate:.1f} images/s", file=sys.stderr, flush=True)
    print(f"{hardware_line()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(
        f"{args.model} at {SIZES[args.model].input_hw}, batch {args.batch}, {args.steps} steps, best of {args.rounds}"
    )
    for name, rate in best.items():
        peak = f"   {memory[name]:6.0f} MB a process" if name in memory else ""
        cost = f"   {100 * best[original] / rate:5.1f} % of the time"
        print(f"{name:28} {rate:7.1f} images/s   {rate / best[original]:.2f}x{cost}{peak}", flush=True)


if __name__ == "__main__":
    main()
