"""python benchmarks/end_to_end.py --model yolox_nano.pth [--artifact FOLDER ...] [--calibration IMAGES]

JPEG bytes to boxes at 640 x 480 and 1920 x 1080: the original's pipeline (decode, letterbox, eager fp32, decode of the
outputs, NMS class by class) against `Predictor` over artifacts. One picture at a time (the wait for one), and with
a worker for each core (answers in a second); with the C library's allocator as it is, and told to keep freed memory, as
`boxwright predict` does. Without --artifact, OpenVINO artifacts in bf16 and int8 are made for it.

Each pipeline has a process of its own; they take turns. Prints the medians and their ratio to the original as it is.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright import Predictor, Thresholds, keep_freed_memory
from boxwright.core.cpu import read_cpu
from boxwright.core.signature import Array, Signature
from boxwright.core.timing import hardware_line
from boxwright.core.types import Precision
from boxwright.data.synthetic import generate_scenes
from boxwright.detector.postprocess import anchor_grid
from boxwright.optimize.candidates import ORIGINAL
from boxwright.optimize.process import Limits, open_nursery
from boxwright.optimize.timing import RaceRules, Target, race
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice, Graph, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.tasks.checkpoint import read_checkpoint
from boxwright.tasks.models import ModelOptions
from boxwright.tasks.optimize import OptimizeConfig, make_case
from postprocess import STRIDES, plain_postprocess

CONF, NMS = 0.25, 0.45
PICTURES, SIZE = 16, 416


@dataclass(frozen=True, kw_only=True)
class Original:
    """The pipeline as it is usually written around the original code, in a process of its own."""

    weights: Path
    pictures: Path
    workers: int = 1
    keeps: bool = False

    def __call__(self, tuning: Tuning) -> Graph:  # noqa: ARG002  PyTorch takes its threads from the environment
        """Return the pipeline over all pictures."""
        if self.keeps:
            assert keep_freed_memory()
        import torch

        model, spec = read_checkpoint(self.weights, ModelOptions())
        assert spec.size_hw == (416, 416), "plain_postprocess is written for 416 x 416"
        assert len(anchor_grid(spec.size_hw, STRIDES)[0]) == spec.num_anchors

        def run(data: bytes) -> NDArray[np.float32]:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
            assert image is not None
            padded = np.ones((*spec.size_hw, 3), np.uint8) * 114
            ratio = min(spec.size_hw[0] / image.shape[0], spec.size_hw[1] / image.shape[1])
            resized = cv2.resize(image, (int(image.shape[1] * ratio), int(image.shape[0] * ratio)))
            padded[: resized.shape[0], : resized.shape[1]] = resized
            tensor = torch.from_numpy(np.ascontiguousarray(padded.transpose(2, 0, 1), np.float32))[None]
            with torch.no_grad():
                boxes, objectness, classes = model(tensor)
            output = torch.cat((boxes, objectness.sigmoid(), classes.sigmoid()), dim=2)[0].numpy()
            found, _, _ = plain_postprocess(output, CONF, NMS)
            return found / ratio

        data = read_pictures(self.pictures)
        if self.workers == 1:
            return Pipeline(lambda: [run(one) for one in data])
        torch.set_num_threads(1)
        pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        return Pipeline(lambda: list(pool.map(run, data)))


@dataclass(frozen=True, kw_only=True)
class Ours:
    """`Predictor` over an artifact, in a process of its own."""

    artifact: Path
    pictures: Path
    workers: int = 1
    keeps: bool = False
    scaled: bool = False

    def __call__(self, tuning: Tuning) -> Graph:  # noqa: ARG002  the predictor shares out the cores
        """Return the predictor over all pictures."""
        if self.keeps:
            assert keep_freed_memory()
        predictor = Predictor.load(
            self.artifact,
            thresholds=Thresholds(conf=CONF, nms=NMS),
            on_mismatch="ignore",
            scaled_decode=self.scaled,
            workers=self.workers,
        )
        data = read_pictures(self.pictures)
        if self.workers == 1:
            return Pipeline(lambda: [predictor(one) for one in data])
        return Pipeline(lambda: list(predictor.stream(iter(data))))


class Pipeline:
    """Behind the seam of the race: a run is all pictures, and there is nothing to give in."""

    signature = Signature(inputs=(), outputs=(), call=None, result=None)

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:  # noqa: ARG002
        """Run over all pictures."""
        self._run()
        return ()

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Not needed here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to give back: the process ends."""


def read_pictures(folder: Path) -> list[bytes]:
    """Return the encoded pictures of a folder, in order."""
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def write_pictures(images: Path, folder: Path, size: tuple[int, int]) -> int:
    """Write pictures of one size; return how many."""
    folder.mkdir()
    paths = sorted(p for p in images.rglob("*") if p.suffix.lower() in (".jpg", ".png"))[:PICTURES]
    for number, path in enumerate(paths):
        image = cv2.resize(cv2.imread(str(path)), size)
        cv2.imwrite(str(folder / f"{number:03d}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
    return len(paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--artifact", type=Path, nargs="*", default=[])
    parser.add_argument("--calibration", type=Path, help="a folder of images (default: scenes drawn for it)")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--time", type=float, default=10.0, help="seconds of timed runs of each, at most")
    args = parser.parse_args()
    cores = read_cpu().usable_cores
    with tempfile.TemporaryDirectory() as scratch, open_nursery() as nursery:
        folder = Path(scratch)
        images = args.calibration
        if images is None:
            generate_scenes(folder / "scenes", images=32, seed=0)
            images = folder / "scenes"
        artifacts = list(args.artifact)
        if not artifacts:
            case, _ = make_case(OptimizeConfig(model=args.model, folder=folder / "x", calibration=images))
            for precision in (Precision.BF16, Precision.INT8):
                calibration = Calibration(samples=case.calibration()) if precision is Precision.INT8 else None
                artifacts.append(folder / f"openvino_{precision}")
                choice = Choice(runtime="openvino", precision=precision)
                write_artifact(case.source(), choice, artifacts[-1], spec=case.spec, calibration=calibration)
        print(f"{hardware_line()}; {args.model.stem}, {cores} threads", flush=True)
        rules = RaceRules(runs=args.runs, time_s=args.time, baseline=ORIGINAL, early_stop=None)
        for width, height in ((640, 480), (1920, 1080)):
            pictures = folder / f"{width}"
            count = write_pictures(images, pictures, (width, height))
            targets: dict[str, Target] = {
                ORIGINAL: Original(weights=args.model, pictures=pictures),
                f"{ORIGINAL}, keeps memory": Original(weights=args.model, pictures=pictures, keeps=True),
                f"{ORIGINAL}, keeps memory, {cores} workers": Original(
                    weights=args.model, pictures=pictures, keeps=True, workers=cores
                ),
            }
            scalings = (False, True) if width > 2 * SIZE else (False,)
            for artifact in artifacts:
                for scaled, (keeps, workers) in product(scalings, ((False, 1), (True, 1), (True, cores))):
                    name = artifact.name + ", scaled decoding" * scaled + ", keeps memory" * keeps
                    targets[name + f", {workers} workers" * (workers > 1)] = Ours(
                        artifact=artifact, pictures=pictures, workers=workers, keeps=keeps, scaled=scaled
                    )
            limits = Limits(threads=cores)
            found = race(nursery, targets, (), rules=rules, limits=limits, logs=folder)
            base = found[ORIGINAL].timing
            assert base is not None, found[ORIGINAL].failure
            for name, latency in found.items():
                if latency.timing is None:
                    print(f"{width} x {height}  {name}: {latency.failure}", flush=True)
                    continue
                ms = latency.timing.median_ms
                ratio = f"{ms / count:7.2f} ms a picture  {base.median_ms / ms:5.2f}x"
                print(f"{width} x {height}  {name:52} {ratio}", flush=True)


if __name__ == "__main__":
    main()
