"""python benchmarks/scale_model.py [--step-s S --gradient-mb MB --latency-us US --bandwidth-gbs GB …]

Images per second of data-parallel training from 1 to 1,024 workers, by a small model (docs/explanation/scale.md).
What is not given is measured here: the step of a nano on one core set, the bytes of its gradients, the cost of an
all-reduce between two processes over loopback, and the writing of a checkpoint. `--check` compares the part of the
model that describes one machine's cores with the figures that were measured on one. `--emulate` starts 1 to 16
processes on this machine whose computing is a sleep of normal length and whose gradients and checkpoints are real,
and compares their rate with what the model says from the all-reduce of two of them and from the time that a
checkpoint took.
"""

import argparse
import math
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from boxwright.core.timing import hardware_line

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

MEASURED = {1: 100.7, 2: 118.0, 4: 117.4, 8: 126.0, 16: 131.4}
"""Images/s by processes that share one machine's 16 cores: nano, 64 images a step (docs/figures.md, B)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the model knows of a worker and of what connects the workers.

    Attributes:
        step_s: seconds of one step of one worker alone.
        images: images of one worker's step.
        gradient_bytes: what an all-reduce sums.
        latency_s: of one message between two workers.
        bandwidth: bytes a second that each worker sends while it receives as many.
        overlap: part of the step behind which the all-reduce can hide, the backward pass.
        jitter: standard deviation of a step's time, as part of it; all wait for the slowest.
        image_bytes: bytes of a stored image.
        store_rate: bytes a second that the store gives to all workers together; infinite where each has its own copy.
        checkpoint_s: seconds in which the first worker writes a checkpoint and the others wait.
        checkpoint_steps: steps between two checkpoints.
    """

    step_s: float
    images: int
    gradient_bytes: float
    latency_s: float
    bandwidth: float
    overlap: float = 0.5
    jitter: float = 0.02
    image_bytes: float = 150e3
    store_rate: float = math.inf
    checkpoint_s: float = 0.0
    checkpoint_steps: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Where a step's time goes with so many workers."""

    workers: int
    compute_s: float
    waiting_s: float
    reduce_s: float
    exposed_s: float
    checkpoint_s: float
    data_s: float
    images_per_s: float
    efficiency: float
    limit: str


def reduce_seconds(conditions: Conditions, workers: int) -> float:
    """Return how long a ring all-reduce takes: 2 (N - 1) messages of an Nth of the gradients each."""
    if workers == 1:
        return 0.0
    messages = 2 * (workers - 1)
    return messages * (conditions.latency_s + conditions.gradient_bytes / workers / conditions.bandwidth)


def predict(conditions: Conditions, workers: int) -> Prediction:
    """Return the rate of so many workers that each keep the number of images of their step (weak scaling)."""
    compute_s = conditions.step_s
    # The largest of N normal deviations is about sqrt(2 ln N).
    waiting_s = compute_s * conditions.jitter * math.sqrt(2 * math.log(workers)) if workers > 1 else 0.0
    reduce_s = reduce_seconds(conditions, workers)
    exposed_s = max(reduce_s - conditions.overlap * compute_s, 0.0)
    checkpoint_s = conditions.checkpoint_s / conditions.checkpoint_steps
    data_s = workers * conditions.images * conditions.image_bytes / conditions.store_rate
    busy_s = compute_s + waiting_s + exposed_s
    step_s = max(busy_s, data_s) + checkpoint_s
    shares = {"compute": compute_s, "waiting": waiting_s, "all-reduce": exposed_s, "checkpoint": checkpoint_s}
    limit = "data" if data_s > busy_s else max(shares, key=shares.__getitem__)
    rate = workers * conditions.images / step_s
    return Prediction(
        workers=workers,
        compute_s=compute_s,
        waiting_s=waiting_s,
        reduce_s=reduce_s,
        exposed_s=exposed_s,
        checkpoint_s=checkpoint_s,
        data_s=data_s,
        images_per_s=rate,
        efficiency=rate * conditions.step_s / (workers * conditions.images),
        limit=limit,
    )


def split_machine(measured: dict[int, float], images: int, known: tuple[int, int]) -> dict[int, float]:
    """Return images/s of processes that share one machine's cores and one step's images, by two known points.

    With N processes on C cores each has C/N cores and images/N: what threads share out takes as long as before, what
    runs on one thread (Python, assignment of small pieces, starting of parallel regions) takes an Nth. So a step takes
    P + S/N seconds. Loopback all-reduce is left out: a nano's gradients are 3.6 MB.
    """
    (a, b), t = known, {n: images / measured[n] for n in known}
    serial_s = (t[a] - t[b]) / (1 / a - 1 / b)
    parallel_s = t[a] - serial_s / a
    return {n: images / (parallel_s + serial_s / n) for n in measured}


def check() -> list[tuple[int, float, float]]:
    """Return processes, measured and predicted images/s; 1 and 16 processes are what the prediction is made from."""
    predicted = split_machine(MEASURED, 64, (1, 16))
    return [(n, rate, predicted[n]) for n, rate in MEASURED.items()]


def measure(images: int, size: int) -> Conditions:
    """Return what this machine can tell: a nano's step, its gradients, loopback all-reduce, a checkpoint's writing."""
    import torch

    from boxwright.detector.yolox import build
    from boxwright.launchers.local import SubprocessLauncher
    from boxwright.launchers.placement import make_workers_anywhere

    model = build("yolox_nano", 80).train()
    batch = torch.rand(images, 3, size, size) * 255
    times = []
    for _ in range(4):
        start_s = time.perf_counter()
        loss = sum(part.float().mean() for part in model(batch))
        loss.backward()
        times.append(time.perf_counter() - start_s)
    values = sum(p.numel() for p in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        with Path(folder, "checkpoint.pt").open("wb") as file:  # weights, their average, momenta
            torch.save([model.state_dict()] * 2 + [[p.grad for p in model.parameters()]], file)
            file.flush()
            os.fsync(file.fileno())
        checkpoint_s = time.perf_counter() - start_s
    workers = [replace(worker, anywhere=False) for worker in make_workers_anywhere(2)]
    latency_s, whole_s = SubprocessLauncher().run(TimeReduce(values), workers)
    return Conditions(
        step_s=min(times),
        images=images,
        gradient_bytes=4.0 * values,
        latency_s=latency_s / 2,
        bandwidth=4.0 * values / max(whole_s - latency_s, 1e-9),
        checkpoint_s=checkpoint_s,
    )


@dataclass(frozen=True)
class TimeReduce:
    """A job that times all-reduces of one value and of all gradients; the best of several counts."""

    values: int

    def __call__(self, _: object) -> tuple[float, float]:
        """Return the seconds of both."""
        from datetime import timedelta

        import torch
        from torch import distributed

        distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
        seconds = []
        for count in (1, self.values):
            data, times = torch.ones(count), []
            for _ in range(10):
                distributed.barrier()
                start_s = time.perf_counter()
                distributed.all_reduce(data)
                times.append(time.perf_counter() - start_s)
            seconds.append(min(times))
        return seconds[0], seconds[1]


EMULATED = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Emulate:
    """A job of steps that sleep, share gradients and write a checkpoint now and then."""

    step_s: float
    jitter: float
    values: int
    checkpoint_steps: int
    checkpoint_mb: float
    steps: int

    def __call__(self, worker: object) -> tuple[float, float]:  # noqa: ARG002
        """Return seconds of one step, and of one checkpoint's writing in the first worker."""
        from datetime import timedelta

        import numpy as np
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        distributed.init_process_group("gloo", timeout=timedelta(seconds=300))
        rank = distributed.get_rank()
        lengths = np.random.default_rng(rank).normal(self.step_s, self.jitter * self.step_s, self.steps)
        gradients, state = torch.zeros(self.values), os.urandom(int(self.checkpoint_mb * 1e6))
        written = []
        with tempfile.TemporaryDirectory() as folder:
            distributed.all_reduce(gradients)
            distributed.barrier()
            start_s = time.perf_counter()
            for step, length in enumerate(lengths):
                time.sleep(length)
                distributed.all_reduce(gradients)
                if rank == 0 and (step + 1) % self.checkpoint_steps == 0:
                    before_s = time.perf_counter()
                    with Path(folder, "checkpoint").open("wb") as file:
                        file.write(state)
                        file.flush()
                        os.fsync(file.fileno())
                    written.append(time.perf_counter() - before_s)
            distributed.barrier()
            seconds = (time.perf_counter() - start_s) / self.steps
        distributed.destroy_process_group()
        return seconds, sum(written) / max(len(written), 1)


def emulate(step_s: float, jitter: float) -> None:
    """Print measured and predicted images/s (64 a step) of emulated workers on this machine.

    The link of each is its share of what the cores can copy, measured with two workers.
    """
    from boxwright.launchers.local import SubprocessLauncher
    from boxwright.launchers.placement import make_workers_anywhere

    def start(job: object, count: int) -> tuple[float, float]:
        workers = [replace(worker, anywhere=False) for worker in make_workers_anywhere(count)]
        found: tuple[float, float] = SubprocessLauncher().run(job, workers)  # type: ignore[arg-type]
        return found

    values, every = 912_000, 10  # a nano's gradients, fp32
    cores = max(len(os.sched_getaffinity(0)), 2)
    latency_s, whole_s = start(TimeReduce(values), 2)
    for count in EMULATED:
        job = Emulate(step_s=step_s, jitter=jitter, values=values, checkpoint_steps=every, checkpoint_mb=11, steps=60)
        seconds, checkpoint_s = start(job, count)
        share = cores / max(count, cores)
        conditions = Conditions(
            step_s=step_s,
            images=64,
            gradient_bytes=4.0 * values,
            latency_s=latency_s / 2,
            bandwidth=4.0 * values / max(whole_s - latency_s, 1e-9) * share,
            overlap=0.0,
            jitter=jitter,
            checkpoint_s=checkpoint_s,
            checkpoint_steps=every,
        )
        rate, said = 64 * count / seconds, predict(conditions, count).images_per_s
        off = 100 * (said / rate - 1)
        print(f"{count:5} workers   measured {rate:8.1f}   predicted {said:8.1f}   {off:+5.1f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare with the measured figures")
    parser.add_argument("--emulate", action="store_true", help="only compare with workers whose computing is a sleep")
    parser.add_argument("--images", type=int, default=8, help="images of one worker's step")
    parser.add_argument("--size", type=int, default=416, help="their side in pixels, where the step is measured")
    parser.add_argument("--step-s", type=float)
    parser.add_argument("--gradient-mb", type=float)
    parser.add_argument("--latency-us", type=float)
    parser.add_argument("--bandwidth-gbs", type=float, help="GB/s of one worker's link")
    parser.add_argument("--overlap", type=float, default=0.5)
    parser.add_argument("--jitter", type=float, default=0.02)
    parser.add_argument("--image-kb", type=float, default=150.0)
    parser.add_argument("--store-gbs", type=float, default=math.inf, help="GB/s of the store for all workers")
    parser.add_argument("--checkpoint-s", type=float)
    parser.add_argument("--checkpoint-steps", type=int, default=1000)
    args = parser.parse_args()
    if args.emulate:
        print(f"{hardware_line()}; steps of {args.step_s or 0.455:g} s, jitter {args.jitter:g}")
        emulate(args.step_s or 0.455, args.jitter)
        return
    print("One machine's cores, shared by processes (from 1 and 16; docs/figures.md):")
    for processes, rate, said in check():
        off = 100 * (said / rate - 1)
        print(f"{processes:5} processes   measured {rate:7.1f}   predicted {said:7.1f}   {off:+5.1f} %")
    if args.check:
        return
    given = {
        "step_s": args.step_s,
        "gradient_bytes": None if args.gradient_mb is None else args.gradient_mb * 1e6,
        "latency_s": None if args.latency_us is None else args.latency_us * 1e-6,
        "bandwidth": None if args.bandwidth_gbs is None else args.bandwidth_gbs * 1e9,
        "checkpoint_s": args.checkpoint_s,
    }
    if all(value is not None for value in given.values()):
        conditions, where = Conditions(images=args.images, **given), "all given"
    else:
        known = {name: value for name, value in given.items() if value is not None}
        conditions, where = replace(measure(args.images, args.size), **known), hardware_line()
    conditions = replace(
        conditions,
        overlap=args.overlap,
        jitter=args.jitter,
        image_bytes=args.image_kb * 1e3,
        store_rate=args.store_gbs * 1e9,
        checkpoint_steps=args.checkpoint_steps,
    )
    print(f"\n{conditions} ({where})")
    print("workers   images/s   of N times one   all-reduce ms   shown ms   waiting ms   data ms   limit")
    for workers in WORKERS:
        one = predict(conditions, workers)
        print(
            f"{workers:7} {one.images_per_s:10.1f} {100 * one.efficiency:14.1f} % {1e3 * one.reduce_s:15.1f} "
            f"{1e3 * one.exposed_s:10.1f} {1e3 * one.waiting_s:12.1f} {1e3 * one.data_s:9.1f}   {one.limit}"
        )


if __name__ == "__main__":
    main()
