"""python benchmarks/train_step.py [--model yolox_nano] [--batch 16] [--data PATH] [--precision bf16] [--cpu-time]

A training step on a CPU, and what its data costs:

- the bare step: images lie ready; forward, loss, backward, SGD and weight average, as in `boxwright train`;
- the samples alone, on one thread, images in the RAM cache: how much of a core they need beside the bare step;
- the step with its samples made ahead by worker threads (as `boxwright train` does with 1 and 2 of them), and made
  between two steps by as many threads as there are cores; as a fraction of the bare step. Modes take turns.

`--cpu-time` measures the bare step in the processor's seconds: on one thread (OMP_NUM_THREADS=1) that is steady on a
machine that others use, too.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np

from boxwright import keep_freed_memory

keep_freed_memory()  # as `boxwright train`; before torch is imported

import torch  # noqa: E402

from boxwright.accel.averages import WeightAverage  # noqa: E402
from boxwright.accel.nano import TorchNano  # noqa: E402
from boxwright.core.timing import hardware_line  # noqa: E402
from boxwright.data.batch import pad_targets  # noqa: E402
from boxwright.data.cache import open_cache  # noqa: E402
from boxwright.data.dataset import DetectionDataset  # noqa: E402
from boxwright.data.formats import read_records  # noqa: E402
from boxwright.data.loader import Loader  # noqa: E402
from boxwright.data.policy import policy_for  # noqa: E402
from boxwright.data.synthetic import generate_scenes  # noqa: E402
from boxwright.detector.loss import yolox_loss  # noqa: E402
from boxwright.detector.sizes import SIZES  # noqa: E402
from boxwright.tasks.train.config import TrainConfig  # noqa: E402
from boxwright.tasks.train.network import image_type, make_network, make_optimizer  # noqa: E402

Pair = tuple[np.ndarray, np.ndarray]


def make_step(model: str, classes: int, precision: str, batch: int) -> Callable[[Pair], None]:
    """Return a function that trains with a batch: uint8 images (B, H, W, 3) and targets (B, G, 5)."""
    config = TrainConfig(model=model, data="", output_dir=Path(), precision=precision)
    nano = TorchNano(precision=precision, channels_last=True, seed=0, batch=batch)
    network = make_network(config, classes)
    inner = make_optimizer(network, config, nano.hardware)
    running, optimizer = nano.setup(network, inner)
    average = WeightAverage(network, move=nano.hardware.average)
    taken = image_type(network, config)
    running.train()
    for group in inner.param_groups:
        group["lr"] = 1e-5

    def step(pair: Pair) -> None:
        images = torch.from_numpy(pair[0]).permute(0, 3, 1, 2).to(taken)
        losses = yolox_loss(running(images), torch.from_numpy(pair[1]), (images.shape[2], images.shape[3]))
        nano.backward(losses.total)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update(network)

    return step


def ahead(dataset: DetectionDataset, batch: int, workers: int, stack: ExitStack) -> Iterator[Pair]:
    """Yield batches that worker threads make while the caller computes."""
    loader = stack.enter_context(Loader(dataset, batch_size=batch, workers=workers, prefetch=3, infinite=True))
    for made in loader:
        yield made.images, made.targets


def between(dataset: DetectionDataset, batch: int, threads: int, stack: ExitStack) -> Iterator[Pair]:
    """Yield batches that are made when they are asked for, by several threads."""
    pool = stack.enter_context(ThreadPoolExecutor(threads))
    number = 0
    while True:
        images = np.empty((batch, *dataset.size_hw, 3), np.uint8)
        indices = [(number + row) % len(dataset) for row in range(batch)]
        samples = list(pool.map(lambda row, index: dataset.sample(0, index, out=row), images, indices))
        number += batch
        yield images, pad_targets([sample.targets for sample in samples], None)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="yolox_nano", choices=SIZES)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="of each mode in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="bf16", choices=["32", "bf16"])
    parser.add_argument("--data", type=Path, help="a labelled set in one piece (default: scenes drawn for it)")
    parser.add_argument("--cpu-time", action="store_true", help="only the bare step, in seconds of the processor")
    args = parser.parse_args()
    threads, size_hw = torch.get_num_threads(), SIZES[args.model].input_hw
    with tempfile.TemporaryDirectory() as scratch:
        if args.data is None:
            generate_scenes(scratch, images=200, seed=0, size_hw=(480, 640))
        records = read_records(args.data or Path(scratch))
        tiles = open_cache("ram", records, size_hw)
        dataset = DetectionDataset(records, size_hw, policy=policy_for(args.model), tiles=tiles)
        for index in range(len(records)):
            tiles.tile(index)
        step = make_step(args.model, len(records.names), args.precision, args.batch)
        with ExitStack() as stack:
            source = between(dataset, args.batch, 1, stack)
            ready = next(source)
            marks = [time.perf_counter()]
            for _ in range(4):
                next(source)
                marks.append(time.perf_counter())
            sample_s = min(np.diff(marks)) / args.batch
        clock = time.process_time if args.cpu_time else time.perf_counter
        modes: dict[str, Callable[[ExitStack], Iterator[Pair]]] = {"bare step": lambda _: iter(lambda: ready, None)}
        if not args.cpu_time:
            modes["1 worker, ahead"] = lambda stack: ahead(dataset, args.batch, 1, stack)
            modes["2 workers, ahead"] = lambda stack: ahead(dataset, args.batch, 2, stack)
            modes[f"{threads} threads, between steps"] = lambda stack: between(dataset, args.batch, threads, stack)
        times: dict[str, list[float]] = {name: [] for name in modes}
        for _ in range(args.rounds):
            for name, open_source in modes.items():
                with ExitStack() as stack:
                    source = open_source(stack)
                    for number in range(args.steps + 2):
                        start = clock()
                        step(next(source))
                        if number >= 2:
                            times[name].append(clock() - start)
    print(f"{hardware_line()}; torch {torch.__version__}, {threads} threads")
    print(f"{args.model} at {size_hw}, batch {args.batch}, precision {args.precision}")
    bare = median(times["bare step"])
    for name, seconds in times.items():
        # The mean: batches that were made ahead come in bursts.
        mean = sum(seconds) / len(seconds) if name != "bare step" else bare
        rate = args.batch / mean
        print(f"{name:26} {1000 * mean:7.1f} ms   {rate:7.1f} images/s   {bare / mean:6.1%} of the bare step")
    core = sample_s * args.batch / bare
    print(f"samples alone: {1000 * sample_s:.2f} ms each, {core:.1%} of a core beside the bare step")


if __name__ == "__main__":
    main()
