"""python benchmarks/inference.py [--model yolox_nano.pth | --untrained yolox_s] [--calibration IMAGES] [--batch 1 64]

How fast the runtimes are, as ratios to PyTorch as it is (eager, fp32, one request after the other) in the same run.
Each model is loaded in a process of its own; they take turns, while one runs the others are stopped.

Latency: one request of the batch at a time. Throughput: many images as single requests, as many side by side as the
runtime's streams allow. Rows with streams below a batch compute its images that way. The original is there twice: with
the C library's allocator as it is, and told to keep freed memory (what `boxwright run` does), which matters at large
batches.

Accuracy is not measured here; `boxwright optimize` does that on the same artifacts.
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import BoxwrightError
from boxwright.core.signature import Array
from boxwright.core.timing import hardware_line
from boxwright.detector.sizes import SIZES
from boxwright.devices.chosen import Chosen
from boxwright.optimize.candidates import METHODS, ORIGINAL
from boxwright.optimize.case import open_case, write_case
from boxwright.optimize.process import Limits, open_nursery
from boxwright.optimize.timing import RaceRules, Target, race
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Graph, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.tasks.optimize import DetectorCase, OptimizeConfig, make_case

DEFAULT = (
    "fp32_channels_last", "bf16_channels_last", "jit_fp32", "compile_fp32", "compile_bf16", "openvino_fp32",
    "openvino_bf16", "openvino_int8", "openvino_int8_bf16", "onnxruntime_fp32", "onnxruntime_int8_qlinear",
)  # fmt: skip
STREAMED = ("openvino_bf16", "openvino_int8", "openvino_int8_bf16", "openvino_int8_nncf")
REQUESTS = 16


def open_keeping_memory(case: Path, tuning: Tuning) -> Graph:
    """Return the original in a process that keeps freed memory."""
    from boxwright.launchers.allocator import keep_freed_memory

    assert keep_freed_memory()
    return open_case(case, Chosen(), tuning)


def open_many(case: Path, tuning: Tuning) -> Graph:
    """Return the original, given the images of a batch one by one."""
    return _Many(open_case(case, Chosen(), tuning))


def open_streams(artifact: Path, streams: int, tuning: Tuning) -> Graph:  # noqa: ARG001  streams decide the threads
    """Return an artifact that computes so many images of a batch in parallel."""
    return _Many(open_graph(artifact, Tuning(hint="throughput", streams=streams)))


class _Many:
    """A batch as single requests in one timed run."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.signature = graph.signature

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        requests = [[a[i : i + 1] for a in inputs] for i in range(len(inputs[0]))]
        return tuple(outputs[0] for outputs in self._graph.run_all(requests))

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        raise NotImplementedError

    def close(self) -> None:
        self._graph.close()


def convert(case: DetectorCase, method: str, folder: Path, batch: int) -> Path | None:
    """Return the artifact of a method, or None (said why) where it can't be had."""
    choice = METHODS[method].choice
    assert choice is not None
    try:
        calibration = Calibration(samples=case.calibration(), cache=folder / "cache") if "int8" in method else None
        # Compiled for a batch of this size.
        target = folder / f"{method}_{batch}"
        write_artifact(case.source(), choice, target, spec=case.spec, calibration=calibration, golden=case.probes()[0])
    except BoxwrightError as error:
        print(f"{method}: {error}", flush=True)
        return None
    return target


def streamed(artifacts: dict[str, Path | None], streams: Iterable[int]) -> dict[str, Target]:
    """Return the artifacts that have streams, with each number of them."""
    found = {m: path for m in STREAMED if (path := artifacts.get(m)) is not None}
    return {f"{m}, {n} streams": partial(open_streams, path, n) for m, path in found.items() for n in streams}


def report(title: str, rows: dict[str, float], images: int) -> None:
    """Print milliseconds, images per second and the ratio to the first row."""
    first = next(iter(rows.values()))
    print(f"\n{title}")
    for name, ms in rows.items():
        print(f"{name:34} {ms:9.2f} ms  {1000 * images / ms:8.1f} images/s  {first / ms:5.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="weights (.pth, .safetensors)")
    parser.add_argument("--untrained", default="yolox_nano", choices=SIZES, help="without --model: random weights")
    parser.add_argument("--calibration", type=Path, help="a folder of images for int8 (default: scenes drawn for it)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--methods", nargs="+", default=list(DEFAULT), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--time", type=float, default=8.0, help="seconds of timed runs a model, at most")
    parser.add_argument("--no-throughput", action="store_true")
    args = parser.parse_args()
    cpu = read_cpu()
    with tempfile.TemporaryDirectory() as scratch, open_nursery() as nursery:
        folder = Path(scratch)
        model, images = args.model, args.calibration
        if model is None:
            from safetensors.torch import save_file

            from boxwright.detector.yolox import build

            model = folder / f"{args.untrained}.safetensors"
            save_file(build(args.untrained, 80).state_dict(), model)
        if images is None:
            from boxwright.data.synthetic import generate_scenes

            generate_scenes(folder / "scenes", images=32, seed=0)
            images = folder / "scenes"
        limits = Limits(threads=cpu.usable_cores)
        rules = RaceRules(runs=args.runs, time_s=args.time, baseline=ORIGINAL, early_stop=None)
        print(f"{hardware_line()}; {model.stem}, {cpu.usable_cores} threads", flush=True)
        for batch in args.batch:
            config = OptimizeConfig(model=model, folder=folder / "x", calibration=images, batch=batch, max_drop=None)
            case, _ = make_case(config)
            file = folder / f"case{batch}"
            write_case(case, file)
            artifacts = {m: convert(case, m, folder, batch) for m in args.methods}
            targets: dict[str, Target] = {
                ORIGINAL: partial(open_case, file, Chosen()),
                "original, keeps memory": partial(open_keeping_memory, file),
            }
            targets |= {m: partial(open_graph, path) for m, path in artifacts.items() if path is not None}
            if batch > 1 and not args.no_throughput:
                targets |= streamed(artifacts, (cpu.usable_cores,))
            found = race(nursery, targets, case.timing_inputs(), rules=rules, limits=limits, logs=folder)
            rows = {n: r.timing.median_ms for n, r in found.items() if r.timing is not None}
            report(f"latency, batch {batch}, median", rows, batch)
            for name, latency in found.items():
                if latency.failure:
                    print(f"{name}: {latency.failure}")
            if batch != 1 or args.no_throughput:
                continue
            inputs = tuple(np.repeat(a, REQUESTS, axis=0) for a in case.timing_inputs())
            many: dict[str, Target] = {ORIGINAL: partial(open_many, file)}
            many |= streamed(artifacts, sorted({1, cpu.usable_cores}))
            found = race(nursery, many, inputs, rules=rules, limits=limits, logs=folder)
            rows = {n: r.timing.median_ms for n, r in found.items() if r.timing is not None}
            report(f"throughput, {REQUESTS} single requests, median", rows, REQUESTS)


if __name__ == "__main__":
    main()
