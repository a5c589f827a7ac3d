"""python benchmarks/device_inference.py --images FOLDER --weights yolox_nano.pth [--device auto] [ARTIFACT …]

From the bytes of JPEGs to boxes, in images per second: decoding alone on all cores, each network alone, and the whole
way with the weights, with each artifact and with plain PyTorch (eager fp16 and a DataLoader). All take turns; the
figures are medians. The last column is the whole way's share of the slower of decoding alone and network alone.

Give artifacts of the device and the best one of the CPU to compare them: `boxwright optimize --device` makes them.
"""

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from boxwright.core.cpu import read_cpu
from boxwright.core.timing import hardware_line
from boxwright.detector.postprocess import postprocess
from boxwright.devices.chosen import find_device
from boxwright.tasks.checkpoint import read_checkpoint
from boxwright.tasks.models import ModelOptions
from boxwright.tasks.predict.predictor import Predictor
from boxwright.vision.decode import decode_image
from boxwright.vision.letterbox import letterbox, undo_letterbox
from turns import interleave

Work = Callable[[], object]


class Pictures(Dataset[tuple[torch.Tensor, float, tuple[int, int]]]):
    """Pictures as a user's own DataLoader reads them."""

    def __init__(self, encoded: Sequence[bytes], size_hw: tuple[int, int]) -> None:
        self.encoded, self.size_hw = encoded, size_hw

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float, tuple[int, int]]:
        image = decode_image(self.encoded[index], "")
        fitted, ratio = letterbox(image, self.size_hw)
        return torch.from_numpy(fitted), ratio, (image.shape[0], image.shape[1])


def make_plain(weights: Path, encoded: Sequence[bytes], batch: int, device: str) -> Work:
    """Return the whole way with eager PyTorch in fp16 and a DataLoader."""
    model, spec = read_checkpoint(weights, ModelOptions())
    model = model.half().to(device, memory_format=torch.channels_last)
    pictures, workers = Pictures(encoded, spec.size_hw), read_cpu().usable_cores

    def run() -> None:
        loader = DataLoader(pictures, batch, num_workers=workers, pin_memory=device != "cpu", collate_fn=list)
        for rows in loader:
            images = torch.stack([row[0] for row in rows]).to(device, non_blocking=True)
            with torch.inference_mode():
                raw = model(images.permute(0, 3, 1, 2).half())
                outputs = torch.cat(tuple(raw), dim=2).float().cpu().numpy()
            for output, (_, ratio, size_hw) in zip(outputs, rows, strict=True):
                boxes, *_ = postprocess(
                    output, size_hw=spec.size_hw, strides=spec.strides, form="raw", conf=0.25, nms=0.45
                )
                undo_letterbox(boxes, ratio, size_hw)

    return run


def make_alone(predictor: Predictor, batch: int, count: int) -> Work:
    """Return the network alone, on images that are in memory, two batches at a time."""
    session: Any = predictor.session
    height, width = session.spec.size_hw
    images = np.random.default_rng(0).integers(0, 256, (batch, height, width, 3), np.uint8).transpose(0, 3, 1, 2)
    if not getattr(session, "takes_bytes", False):
        images = images.astype(np.float32)

    def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: session(images), range(-(-count // batch))))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", nargs="*", type=Path, metavar="ARTIFACT")
    parser.add_argument("--images", type=Path, required=True, help="a folder of JPEGs")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--count", type=int, default=2000, help="pictures; the folder's are repeated (default 2000)")
    parser.add_argument("-b", "--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    files = sorted(path for path in args.images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    read = [path.read_bytes() for path in files[: args.count]]
    encoded = [read[i % len(read)] for i in range(args.count)]
    device, cores = str(find_device(args.device)), read_cpu().usable_cores
    cv2.setNumThreads(0)

    def decode() -> None:
        with ThreadPoolExecutor(cores) as pool:
            deque(pool.map(lambda data: decode_image(data, ""), encoded), maxlen=0)

    works: dict[str, Work] = {"decoding alone": decode}
    predictors = {str(path): Predictor.load(path, hint="throughput", trust=True) for path in args.artifacts}
    predictors[f"{args.weights} on {device}"] = Predictor.load(
        args.weights, device=device, hint=None if device == "cpu" else "throughput"
    )
    for name, predictor in predictors.items():
        works[f"{name}, network alone"] = make_alone(predictor, args.batch, args.count)
        works[name] = lambda p=predictor: deque(p.stream(iter(encoded), batch=args.batch), maxlen=0)  # type: ignore[misc]
    works["plain PyTorch, fp16"] = make_plain(args.weights, encoded, args.batch, device)
    timed = interleave(works, args.rounds, warmup=1)
    rates = {name: 1000 * args.count / timing.median_ms for name, timing in timed.items()}
    print(f"{args.count} pictures ({len(read)} files), batch {args.batch}, {cores} cores, {device}, {hardware_line()}")
    for name, rate in rates.items():
        bound = min(rates["decoding alone"], rates.get(f"{name}, network alone", np.inf))
        share = f"  {rate / bound:6.1%}" if name in predictors else ""
        print(f"{name:60} {rate:9.1f} images/s{share}")


if __name__ == "__main__":
    main()
