"""Training a detector in one process: letterbox and flip, SGD, warm-up and cosine, averaged weights."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from boxwright.accel.ema import WeightAverage
from boxwright.accel.schedule import WarmupCosine
from boxwright.core.config import to_yaml
from boxwright.core.errors import BoxwrightError, DataError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.spec import Spec
from boxwright.data.decode import read_image
from boxwright.data.formats import read_records
from boxwright.data.records import Records
from boxwright.detector.loss import Losses, yolox_loss
from boxwright.detector.sizes import SIZES
from boxwright.detector.weights import load_weights, read_state, save_weights
from boxwright.detector.yolox import Yolox, build
from boxwright.vision.letterbox import letterbox

_log = get_logger(__name__)
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One complete training run.

    Attributes:
        model: a name of the family.
        data: a COCO json, or a folder with one.
        output_dir: where the run's files go.
        batch: images a step.
        steps: how many steps.
        size_hw: input size; None for the model's own.
        lr_per_image: learning rate for a batch of one; the recipe's rate is this times the batch.
        ckpt: weights to start from.
        seed: of the weights, the order of the images and the flips.
    """

    model: str
    data: Path
    output_dir: Path
    batch: int = 16
    steps: int = 1000
    size_hw: tuple[int, int] | None = None
    lr_per_image: float = 0.01 / 64
    ckpt: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)!r} must be at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a run left behind."""

    checkpoint: Path
    steps: int
    images_per_s: float
    final_loss: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "checkpoint": str(self.checkpoint),
            "steps": self.steps,
            "images_per_s": round(self.images_per_s, 2),
            "final_loss": round(self.final_loss, 4),
        }


def train(config: TrainConfig, *, progress: Report | None = None) -> TrainResult:
    """Train, write `weights/last.safetensors` (the averaged weights) and `metrics.jsonl`, and return the result.

    Raises:
        DataError: the set can't be read, or one of its images can't.
        CheckpointError: `ckpt` does not fit the model.
        BoxwrightError: the loss is no longer a number.
    """
    torch.manual_seed(config.seed)
    records = read_records(config.data)
    size_hw = config.size_hw or SIZES[config.model].input_hw
    spec = Spec(model=config.model, names=records.names, size_hw=size_hw, category_ids=records.category_ids)
    # Channels last: twice the speed of the usual layout on CPUs, and the way the images lie in memory anyway.
    model = build(config.model, spec.num_classes).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.ckpt is not None:
        _log.info("%s", load_weights(model, read_state(config.ckpt)[0]).sentence())
    images, targets = _prepare(records, size_hw)

    # A short run must leave the warm-up and the average's ramp behind it, or it learns nothing.
    warmup = min(max(config.steps // 20, 1), 500)
    curve = WarmupCosine(
        base_lr=config.lr_per_image * config.batch,
        total_steps=config.steps,
        warmup_steps=warmup,
        flat_steps=config.steps // 10,
    )
    optimizer = _make_optimizer(model, curve(0))
    average = WeightAverage(model, base=0.998 if config.steps < 10_000 else 0.9998, ramp=min(2000, config.steps / 10))
    folder = config.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "args.yaml").write_text(to_yaml(config), encoding="utf-8")
    checkpoint = folder / "weights" / "last.safetensors"

    start = time.perf_counter()
    total = 0.0
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as metrics:
        for step, (batch, truth) in enumerate(_batches(images, targets, config)):
            for group in optimizer.param_groups:
                group["lr"] = curve(step)
            last_phase = step >= config.steps - config.steps // 10
            losses = yolox_loss(model(batch), truth, size_hw, l1=last_phase)
            optimizer.zero_grad(set_to_none=True)
            losses.total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            average.update(model)
            total = _check(losses, step)
            metrics.write(json.dumps({"step": step, "lr": curve(step)} | _numbers(losses)) + "\n")
            if progress is not None:
                progress(step + 1, config.steps)
    save_weights(checkpoint, average.model, spec)
    seconds = time.perf_counter() - start
    return TrainResult(
        checkpoint=checkpoint, steps=config.steps, images_per_s=config.steps * config.batch / seconds, final_loss=total
    )


def _prepare(records: Records, size_hw: tuple[int, int]) -> tuple[NDArray[np.uint8], list[NDArray[np.float32]]]:
    """Return every image letterboxed, and its boxes as (class, cx, cy, w, h) in input pixels."""
    images = np.empty((len(records), *size_hw, 3), np.uint8)
    targets = []
    for i in range(len(records)):
        _, ratio = letterbox(read_image(records.path(i)), size_hw, images[i])
        keep = ~records.crowd_of(i)
        boxes = records.boxes(i)[keep] * np.float32(ratio)
        classes = records.class_ids_of(i)[keep].astype(np.float32)[:, None]
        targets.append(
            np.concatenate((classes, (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]), axis=1)
        )
    if not any(len(t) for t in targets):
        raise DataError(f"None of the {len(records)} images has a box: there is nothing to learn.")
    return images, targets


def _batches(
    images: NDArray[np.uint8], targets: list[NDArray[np.float32]], config: TrainConfig
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield `steps` batches; each pass over the set is a new order, and every image comes once a pass."""
    rng = np.random.default_rng(config.seed)
    order: list[int] = []
    for _ in range(config.steps):
        while len(order) < config.batch:
            order.extend(rng.permutation(len(images)).tolist())
        picked, order = order[: config.batch], order[config.batch :]
        batch = images[picked]
        truth = np.zeros((len(picked), max(1, *(len(targets[i]) for i in picked)), 5), np.float32)
        for row, i in enumerate(picked):
            truth[row, : len(targets[i])] = targets[i]
            if rng.random() < 0.5:
                batch[row] = batch[row, :, ::-1]
                truth[row, : len(targets[i]), 1] = batch.shape[2] - truth[row, : len(targets[i]), 1]
        yield torch.from_numpy(batch).permute(0, 3, 1, 2).float(), torch.from_numpy(truth)


def _make_optimizer(model: Yolox, lr: float) -> torch.optim.SGD:
    """Return SGD with Nesterov momentum; only convolution weights decay."""
    norms: list[torch.Tensor] = []
    weights: list[torch.Tensor] = []
    biases: list[torch.Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            norms.append(module.weight)
            biases.append(module.bias)
        elif isinstance(module, nn.Conv2d):
            weights.append(module.weight)
            if module.bias is not None:
                biases.append(module.bias)
    groups: list[dict[str, Any]] = [{"params": norms}, {"params": weights, "weight_decay": 5e-4}, {"params": biases}]
    return torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)


def _numbers(losses: Losses) -> dict[str, float]:
    return {name: float(value.detach()) for name, value in losses._asdict().items()}


def _check(losses: Losses, step: int) -> float:
    total = float(losses.total.detach())
    if not np.isfinite(total):
        raise BoxwrightError(f"The loss of step {step} is {total}: {_numbers(losses)!r}. Lower the learning rate.")
    return total
