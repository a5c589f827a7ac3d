"""python detectors.py LIBRARY JOB …: what one library does for benchmarks/libraries.py, by its public interface.

    train NETWORK SET EPOCHS PRECISION   prints the seconds of each epoch as JSON
    export NETWORK FORM FOLDER           prints the path of the exported model
    predict MODEL PICTURES               prints `ready`; then, for each line on stdin, the ms from a file to boxes, the
                                         mean over the pictures, and the number of boxes

The size is 416, the batch 16 with mosaics and without evaluation, the device the CPU. YOLOX-nano is trained with its
own recipe: half of the images are mosaics, none is mixed. The rest are the defaults.
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

SIZE, BATCH = 416, 16


class Library(ABC):
    """The three jobs."""

    @abstractmethod
    def train(self, network: str, data: Path, epochs: int, precision: str) -> list[float]:
        """Return the seconds of each epoch."""

    @abstractmethod
    def export(self, network: str, form: str, folder: Path) -> Path:
        """Return the exported model's path."""

    @abstractmethod
    def open(self, model: str) -> Callable[[Path], int]:
        """Return a function that finds objects in a file, and returns their number."""


class Boxwright(Library):
    """This project; NETWORK is a weight file."""

    def train(self, network: str, data: Path, epochs: int, precision: str) -> list[float]:
        """Return the seconds of each epoch."""
        from boxwright import keep_freed_memory

        keep_freed_memory()  # as the command does
        from boxwright import TrainConfig, train

        ends = [time.perf_counter()]

        def note(report: Any) -> None:
            if report.epoch >= len(ends):
                ends.append(time.perf_counter())

        config = TrainConfig(
            model="yolox_nano", data=data, batch=BATCH, max_epoch=epochs, precision=precision, ckpt=Path(network),
            size_hw=(SIZE, SIZE), multiscale=False, no_aug_epochs=0, eval_interval=0,
            output_dir=Path(f"boxwright_{precision}"),
        )  # fmt: skip
        train(config, progress=note)
        return [end - start for start, end in pairwise(ends)]

    def export(self, network: str, form: str, folder: Path) -> Path:
        """Return the exported model's path."""
        import subprocess

        out = folder / f"boxwright_{form}{'.onnx' if form == 'onnx' else ''}"
        command = [sys.executable, "-m", "boxwright", "export", network, "--format", form, "--out", str(out)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        return out

    def open(self, model: str) -> Callable[[Path], int]:
        """Return a function that finds objects in a file, and returns their number."""
        from boxwright import keep_freed_memory

        keep_freed_memory()
        from boxwright import Predictor

        predictor = Predictor.load(model)
        return lambda path: len(predictor(path))


class LibreYolo(Library):
    """LibreYOLO with the same network; NETWORK is a weight file of the official release."""

    def train(self, network: str, data: Path, epochs: int, precision: str) -> list[float]:
        """Return the seconds of each epoch."""
        require_float32(precision)
        from libreyolo import LibreYOLOX

        class Note:
            seconds: list[float] = []  # noqa: RUF012

            def on_train_epoch_end(self, event: Any) -> None:
                self.seconds.append(event.epoch_seconds)

        note = Note()
        LibreYOLOX(network, size="n", device="cpu").train(
            str(data / "data.yaml"), epochs=epochs, batch=BATCH, imgsz=SIZE, device="cpu", eval_interval=0,
            no_aug_epochs=0, mosaic_prob=0.5, mosaic_scale=(0.5, 1.5), mixup_prob=0.0,  # as the network's own recipe
            project="libreyolo_run", callbacks=note,
        )  # fmt: skip
        return note.seconds

    def export(self, network: str, form: str, folder: Path) -> Path:
        """Return the exported model's path."""
        from libreyolo import LibreYOLOX

        model = LibreYOLOX(network, size="n", device="cpu")
        suffix = ".onnx" if form == "onnx" else "_openvino"
        return Path(model.export(format=form, output_path=str(folder / f"libreyolo{suffix}")))

    def open(self, model: str) -> Callable[[Path], int]:
        """Return a function that finds objects in a file, and returns their number."""
        from libreyolo import LibreYOLO, LibreYOLOX

        opened = LibreYOLOX(model, size="n", device="cpu") if model.endswith(".pth") else LibreYOLO(model, device="cpu")
        return lambda path: len(opened(str(path)))


class Ultralytics(Library):
    """Ultralytics with its own nano network; NETWORK is its name, and the weights are random."""

    def train(self, network: str, data: Path, epochs: int, precision: str) -> list[float]:
        """Return the seconds of each epoch."""
        require_float32(precision)
        from ultralytics import YOLO

        model = YOLO(f"{network}.yaml")
        marks: list[float] = []
        model.add_callback("on_train_epoch_start", lambda _: marks.append(time.perf_counter()))
        seconds: list[float] = []
        model.add_callback("on_train_epoch_end", lambda _: seconds.append(time.perf_counter() - marks[-1]))
        model.train(
            data=str(data / "data.yaml"), epochs=epochs, batch=BATCH, imgsz=SIZE, device="cpu", val=False, plots=False,
            close_mosaic=0, project=str(Path.cwd() / "ultralytics_run"),
        )  # fmt: skip
        return seconds

    def export(self, network: str, form: str, folder: Path) -> Path:
        """Return the exported model's path."""
        from ultralytics import YOLO

        os.chdir(folder)  # it writes beside the weights
        model = YOLO(f"{network}.yaml")
        model.save(f"{network}.pt")
        return folder / str(YOLO(f"{network}.pt").export(format=form, imgsz=SIZE, device="cpu"))

    def open(self, model: str) -> Callable[[Path], int]:
        """Return a function that finds objects in a file, and returns their number."""
        from ultralytics import YOLO

        opened = YOLO(model if "/" in model else f"{model}.yaml", task="detect")
        return lambda path: len(opened(path, imgsz=SIZE, device="cpu", verbose=False)[0])


LIBRARIES: dict[str, type[Library]] = {"boxwright": Boxwright, "libreyolo": LibreYolo, "ultralytics": Ultralytics}


def require_float32(precision: str) -> None:
    """End where another precision is asked for: on CPUs these two libraries train in float32 alone."""
    if precision != "32":
        sys.exit(f"It does not train in {precision!r} on a CPU.")


def offer_nms() -> None:
    """Let torchvision be imported beside a torch without CUDA.

    The wheel that PyPI has needs CUDA for its operators; of these only the suppression is used here, and OpenCV's
    takes its place.
    """
    import cv2
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
        sides = torch.cat((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), 1)
        kept = cv2.dnn.NMSBoxes(sides.numpy(), scores.numpy(), 0.0, iou_threshold)
        return torch.as_tensor(kept, dtype=torch.int64).reshape(-1)

    library.impl("nms", nms, "CPU")
    import torchvision
    from torchvision.ops import boxes

    if torchvision.extension._has_ops():
        sys.exit("torchvision has its own operators here; this is for a torch without CUDA.")
    boxes._assert_has_ops = lambda: None
    torchvision._keep = library


def serve_turns(find: Callable[[Path], int], pictures: list[Path]) -> None:
    """Answer each line on stdin with the mean time of a picture."""
    for path in pictures:
        find(path)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        boxes = sum(find(path) for path in pictures)
        ms = (time.perf_counter() - start) * 1000 / len(pictures)
        print(json.dumps({"ms": ms, "boxes": boxes}), flush=True)


def main() -> None:
    name, job, *words = sys.argv[1:]
    results, sys.stdout = sys.stdout, sys.stderr  # what the libraries print is no result
    if name != "boxwright":
        offer_nms()
    library = LIBRARIES[name]()
    if job == "predict":
        find = library.open(words[0])
        sys.stdout = results
        serve_turns(find, sorted(Path(words[1]).iterdir()))
        return
    result: object
    if job == "train":
        result = library.train(words[0], Path(words[1]), int(words[2]), words[3])
    else:
        result = str(library.export(words[0], words[1], Path(words[2])))
    print(json.dumps(result), file=results, flush=True)


if __name__ == "__main__":
    main()
