"""python benchmarks/end_to_end.py --model yolox_nano.pth [--artifact FOLDER ...] [--calibration IMAGES]

JPEG bytes to boxes at 640 x 480 and 1920 x 1080: the original's pipeline (decode, letterbox, eager fp32, decode of the
outputs, NMS class by class) against `Predictor` over artifacts, one picture at a time (the wait for an answer) and with
a worker for each core (answers in a second); the original's pipeline is run with a thread for each core too. Without
--artifact, OpenVINO artifacts in bf16 and int8 are made for it. Interleaved; prints the medians and their ratio.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.core.cpu import read_cpu
from boxwright.core.timing import hardware_line, interleave
from boxwright.core.types import Precision
from boxwright.data.synthetic import generate_scenes
from boxwright.detector.postprocess import anchor_grid
from boxwright.recipes.checkpoint import read_checkpoint
from boxwright.recipes.models import ModelOptions
from boxwright.recipes.optimize import OptimizeConfig, make_case
from boxwright.recipes.predict import Predictor, Thresholds
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from postprocess import STRIDES, plain_postprocess

CONF, NMS = 0.25, 0.45


def original(model: torch.nn.Module, size_hw: tuple[int, int]) -> Callable[[bytes], NDArray[np.float32]]:
    """Return the pipeline as it is usually written around the original code."""

    def run(data: bytes) -> NDArray[np.float32]:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        padded = np.ones((*size_hw, 3), np.uint8) * 114
        ratio = min(size_hw[0] / image.shape[0], size_hw[1] / image.shape[1])
        resized = cv2.resize(image, (int(image.shape[1] * ratio), int(image.shape[0] * ratio)))
        padded[: resized.shape[0], : resized.shape[1]] = resized
        tensor = torch.from_numpy(np.ascontiguousarray(padded.transpose(2, 0, 1), np.float32))[None]
        with torch.no_grad():
            boxes, objectness, classes = model(tensor)
        output = torch.cat((boxes, objectness.sigmoid(), classes.sigmoid()), dim=2)[0].numpy()
        found, _, _ = plain_postprocess(output, CONF, NMS)
        return found / ratio

    return run


def side_by_side(run: Callable[[bytes], object], data: Sequence[bytes], workers: int) -> list[object]:
    """Return what the pipeline gives for each picture, computed by threads with one computing thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(run, data))
    finally:
        torch.set_num_threads(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--artifact", type=Path, nargs="*", default=[])
    parser.add_argument("--calibration", type=Path, help="a folder of images (default: scenes drawn for it)")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    model, spec = read_checkpoint(args.model, ModelOptions())
    assert spec.size_hw == (416, 416), "plain_postprocess is written for 416 x 416"
    assert len(anchor_grid(spec.size_hw, STRIDES)[0]) == spec.num_anchors
    with tempfile.TemporaryDirectory() as scratch:
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
                write_artifact(case.source(), choice, artifacts[-1], spec=spec, calibration=calibration)
        pictures = sorted(p for p in images.rglob("*") if p.suffix.lower() in (".jpg", ".png"))[:8]
        keep = Thresholds(conf=CONF, nms=NMS)
        cores = read_cpu().usable_cores
        ways: dict[str, dict[str, Any]] = {"": {}, ", scaled decoding": {"scaled_decode": True}}
        ways |= {f"{name}, {cores} workers": {**settings, "workers": cores} for name, settings in ways.items()}
        print(hardware_line(), f"{torch.get_num_threads()} threads", flush=True)
        for width, height in ((640, 480), (1920, 1080)):
            data = []
            for path in pictures:
                image = cv2.resize(cv2.imread(str(path)), (width, height))
                data.append(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())
            before = original(model, spec.size_hw)
            runs: dict[str, Callable[[], object]] = {
                "original": lambda d=data, f=before: [f(x) for x in d],
                f"original, {cores} workers": lambda d=data * cores, f=before: side_by_side(f, d, cores),
            }
            for artifact in artifacts:
                for name, settings in ways.items():
                    if "scaled_decode" in settings and width <= 2 * spec.size_hw[1]:
                        continue
                    made = Predictor.load(artifact, thresholds=keep, on_mismatch="ignore", **settings)
                    label = f"{artifact.name}{name}"
                    if "workers" in settings:
                        runs[label] = lambda d=data * cores, p=made: list(p.stream(iter(d)))
                    else:
                        runs[label] = lambda d=data, p=made: [p(x) for x in d]
            times = interleave(runs, args.rounds)
            each = {name: times[name].median_ms / len(data) / (cores if "workers" in name else 1) for name in runs}
            for name, ms in each.items():
                print(
                    f"{width} x {height}  {name:44} {ms:7.2f} ms a picture  {each['original'] / ms:5.2f}x", flush=True
                )


if __name__ == "__main__":
    main()
