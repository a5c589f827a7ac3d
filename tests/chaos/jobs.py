"""The commands that are killed: how each is started, how it is run again, and what its result must be."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS, IMAGES = 6, 300


@dataclass(frozen=True)
class Job:
    """One kind of command.

    Attributes:
        name: what it is called in the counts.
        first: the words of the command, for a folder.
        again: the words of the one after the kill, for the same folder.
        result: reads the result from the folder; it must equal that of an uninterrupted run.
        has_children: whether it starts processes that may be killed instead.
        child_name: how the names of these processes begin, if a cluster starts them.
    """

    name: str
    first: Callable[[Path], list[str]]
    again: Callable[[Path], list[str]]
    result: Callable[[Path], Any]
    has_children: bool = False
    child_name: str = ""


def make_inputs(folder: Path) -> None:
    """Write a small set, pictures and models."""
    import cv2
    import torch
    from support.networks import lively_nano
    from support.scenes import NAMES, scene
    from support.toy import save_toy_onnx, toy_spec

    from boxwright.core.spec import Spec
    from boxwright.data.synthetic import generate_scenes
    from boxwright.detector.weights import save_weights

    generate_scenes(folder / "set", images=12, seed=0, size_hw=(64, 64), classes=("circle", "square"))
    (folder / "pictures").mkdir()
    for number in range(IMAGES):
        data = cv2.imencode(".jpg", scene((NAMES[number % 3], number // 3 % 8, 0)))[1].tobytes()
        (folder / "pictures" / f"{number:03d}.jpg").write_bytes(data)
    save_toy_onnx(folder / "toy.onnx", spec=toy_spec())
    torch.set_num_threads(1)
    save_weights(folder / "nano.safetensors", lively_nano(), Spec(model="yolox_nano", names=NAMES, size_hw=(64, 64)))


def make_jobs(inputs: Path, ray_address: str = "") -> list[Job]:
    """Return every kind of command; those of Ray only where there is a cluster."""
    toy, pictures, nano = str(inputs / "toy.onnx"), str(inputs / "pictures"), str(inputs / "nano.safetensors")

    def train(*more: str) -> tuple[Callable[[Path], list[str]], Callable[[Path], list[str]]]:
        words = [
            "train", "--data", str(inputs / "set"), "--val", "0.25", "-b", "4", "--size", "64", f"steps={STEPS}",
            "eval_interval=1", "print_interval=1", "workers=1", "augment=false", *more,
        ]  # fmt: skip

        def again(folder: Path) -> list[str]:
            begun = any((folder / "run" / "weights").glob("last*.pt"))  # otherwise there is nothing to resume
            return [*(["train", "--resume"] if begun else words), "--out", str(folder / "run")]

        return lambda folder: [*words, "--out", str(folder / "run")], again

    def predict(*more: str) -> tuple[Callable[[Path], list[str]], Callable[[Path], list[str]]]:
        words = ["predict", toy, pictures, "--save", "json", "csv", "coco", "images", *more, "--out"]
        return lambda folder: [*words, str(folder / "one")], lambda folder: [*words, str(folder / "two")]

    def batch(*more: str) -> tuple[Callable[[Path], list[str]], Callable[[Path], list[str]]]:
        words = ["predict", toy, pictures, "--part-rows", "15", *more, "--out"]
        return lambda folder: [*words, str(folder / "rows")], lambda folder: [*words, str(folder / "rows")]

    search = [
        "optimize",
        nano,
        "--includes",
        "onnxruntime_fp32",
        "openvino_fp32",
        "--runs",
        "3",
        "--threads",
        "1",
        "--out",
    ]
    write = ["export", nano, "--format", "onnx", "--out"]

    def export_again(folder: Path) -> list[str]:
        # An existing file is complete, and a second export to the same path is refused.
        return [*write, str(folder / ("second.onnx" if (folder / "model.onnx").exists() else "model.onnx"))]

    jobs = [
        Job("train", *train(), read_weights),
        Job("train of two processes", *train("--num_processes", "2"), read_parameters, has_children=True),
        Job("predict", *predict(), read_predictions),
        Job("predict with workers", *predict("--workers", "2"), read_predictions, has_children=True),
        Job("optimize", lambda f: [*search, str(f / "one")], lambda f: [*search, str(f / "two")], read_report, True),
        Job("batch prediction", *batch("--engine", "local", "--workers", "2"), read_rows, has_children=True),
        Job("export", lambda f: [*write, str(f / "model.onnx")], export_again, read_export, True),
        Job("Spark batch", *batch("--engine", "spark", "--master", "local[2]"), read_rows, has_children=True),
    ]
    if ray_address:
        words = batch("--engine", "ray", "--address", ray_address, "--workers", "2")
        jobs.append(Job("Ray batch", *words, read_rows, has_children=True, child_name="ray::PartWorker"))
    return jobs


def read_weights(folder: Path) -> Any:
    """Return the network of the last checkpoint, number by number."""
    import torch

    saved = torch.load(folder / "run" / "weights" / "last.pt", weights_only=True)
    assert saved["step"] == STEPS, f"it ended at step {saved['step']}"
    return {key: value.tolist() for key, value in saved["model"].items()}


def read_parameters(folder: Path) -> Any:
    """Return the same without batch-norm statistics: stopping several processes averages them once more."""
    return {key: value for key, value in read_weights(folder).items() if "running_" not in key and "tracked" not in key}


def read_predictions(folder: Path) -> Any:
    """Return what was found in each picture."""
    place = folder / "two" if (folder / "two").exists() else folder / "one"
    lines = [json.loads(line) for line in (place / "predictions.jsonl").read_text().splitlines()]
    return {Path(line["source"]).name: line["detections"] for line in lines}


def read_rows(folder: Path) -> Any:
    """Return the rows of all parts; each picture has one."""
    import pyarrow.parquet as parquet

    rows = parquet.read_table(folder / "rows").to_pylist()
    assert len(rows) == IMAGES, f"there are {len(rows)} rows"
    return {Path(row["path"]).name: (row["names"], row["boxes_xyxy"]) for row in rows}


def read_report(folder: Path) -> Any:
    """Return the methods that were tried, and how each ended."""
    place = folder / "two" if (folder / "two").exists() else folder / "one"
    rows = json.loads((place / "report.json").read_text())["rows"]
    return sorted((row["method"], row["status"]) for row in rows)


def read_export(folder: Path) -> Any:
    """Return the names of the outputs; ONNX's checker must accept the file."""
    import onnx

    path = folder / "second.onnx" if (folder / "second.onnx").exists() else folder / "model.onnx"
    model = onnx.load(path)
    onnx.checker.check_model(model)
    return [output.name for output in model.graph.output]
