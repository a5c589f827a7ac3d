"""The whole job with no data and no network: made-up scenes, training, scoring, the fastest form, a page about it."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.cpu import read_cpu
from boxwright.core.files import write_whole
from boxwright.core.log import get_logger
from boxwright.core.signals import TERMINATED
from boxwright.data.records import Records
from boxwright.data.split import split_records
from boxwright.data.synthetic import CLEAR, generate_scenes
from boxwright.tasks.data import refuse_filled
from boxwright.tasks.demo_page import make_demo_page
from boxwright.tasks.evaluate import OFFICIAL, evaluate
from boxwright.tasks.optimize import OptimizeConfig, OptimizeResult, optimize
from boxwright.tasks.predict.inputs import Failure
from boxwright.tasks.predict.predictor import Predictor, Thresholds
from boxwright.tasks.train.progress import Progress
from boxwright.tasks.train.run import TrainConfig, train
from boxwright.vision.draw import draw_detections

_log = get_logger(__name__)
CLASSES = ("circle", "square", "star")
METHODS = ("bf16_channels_last", "jit_fp32_channels_last", "openvino_fp32", "openvino_bf16", "onnxruntime_fp32")
"""What the demo's optimiser tries: the quick ones to convert."""

STEPS = 1500
_SIZE = 192
_BATCH = 16
_EVALUATIONS = 4
_PICTURES = 12
_SHOWN_SIDE = 384  # of a picture, so that a label is legible


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo reached and where its files are."""

    ap: float
    ap50: float
    unseen: int
    seconds: float
    checkpoint: Path
    pictures: Path
    page: Path
    images_per_s: float
    optimized: OptimizeResult

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "AP": round(self.ap, 4),
            "AP50": round(self.ap50, 4),
            "seconds": round(self.seconds, 1),
            "checkpoint": str(self.checkpoint),
            "pictures": str(self.pictures),
            "page": str(self.page),
            "images_per_s": round(self.images_per_s, 2),
            "report": str(self.optimized.folder / "report.html"),
            "best": None if self.optimized.best is None else str(self.optimized.best),
        }

    def lines(self) -> list[str]:
        """Return the same for people."""
        return [
            *self.optimized.report.table().splitlines(),
            "",
            f"AP {self.ap:.3f}, AP50 {self.ap50:.3f} on {self.unseen} unseen scenes, in {self.seconds:.0f} s",
            f"trained at {self.images_per_s:.1f} images/s: {self.checkpoint}",
            f"pictures: {self.pictures}",
            f"page: {self.page}",
        ]


def run_demo(
    folder: Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
    images: int = 600,
    held_out: int = 100,
    watch: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
    quiet: bool = True,
) -> DemoResult:
    """Draw scenes, train a nano detector on them, score it on scenes it has not seen, and find its fastest form.

    Args:
        folder: where everything is written; `index.html` shows it.
        steps: training steps.
        seed: of the scenes.
        images: scenes to train on.
        held_out: scenes to score on.
        watch: opens a display of the training; it yields what is called with a report after each step.
        quiet: show no progress bar for the optimiser.

    Raises:
        UsageError: the folder is not empty.
    """
    refuse_filled(folder)
    start = time.monotonic()
    _log.info("Drawing %d scenes: %d to train on, %d held out.", images + held_out, images, held_out)
    val = held_out / (images + held_out)
    records = generate_scenes(
        folder / "scenes", images=images + held_out, seed=seed, size_hw=(_SIZE, _SIZE), classes=CLASSES, style=CLEAR
    )
    _, unseen = split_records(records, val=val, seed=seed)
    config = TrainConfig(
        model="yolox_nano",
        data=folder / "scenes",
        val=val,
        output_dir=folder / "train",
        batch=_BATCH,
        steps=steps,
        size_hw=(_SIZE, _SIZE),
        precision="bf16",
        num_processes=min(2, read_cpu().usable_cores),  # at this size threads would mostly wait for each other
        mosaic=False,  # pays in long runs only
        lr_per_image=0.00125,
        eval_interval=max(steps * _BATCH // images // _EVALUATIONS, 1),
        print_interval=max(steps // 40, 1),
        seed=seed,
    )
    _log.info("Training yolox_nano from random weights for %d steps of %d images.", steps, _BATCH)
    with watch() as progress:
        result = train(config, progress=progress)
    if result.stopped:
        raise SystemExit(TERMINATED) if result.stopped == "signal 15" else KeyboardInterrupt
    with Predictor.load(result.checkpoint, thresholds=OFFICIAL) as predictor:
        score = evaluate(predictor, unseen)
    _log.info("AP %.3f, AP50 %.3f on %d unseen scenes.", score.metrics.AP, score.metrics.AP50, len(unseen))
    pictures = _draw_pictures(result.checkpoint, unseen, folder / "pictures")
    _log.info("Trying %d ways to run it, each scored on the unseen scenes.", len(METHODS))
    optimized = optimize(
        OptimizeConfig(
            model=result.checkpoint,
            data=config.data,
            val=config.val,
            seed=seed,
            folder=folder / "optimize",
            includes=METHODS,
            max_drop=0.03,
            search_tries=1,
            latency_sample_num=50,
            quiet=quiet,
        )
    )
    demo = DemoResult(
        ap=score.metrics.AP,
        ap50=score.metrics.AP50,
        unseen=len(unseen),
        seconds=time.monotonic() - start,
        checkpoint=result.checkpoint,
        pictures=folder / "pictures",
        page=folder / "index.html",
        images_per_s=result.images_per_s,
        optimized=optimized,
    )
    summary = f"YOLOX-nano learned {len(CLASSES)} shapes from random weights in {steps} steps of {_BATCH} scenes."
    numbers = [
        (f"AP50 on {len(unseen)} unseen scenes", f"{demo.ap50:.3f}"),
        ("AP", f"{demo.ap:.3f}"),
        ("images/s in training", f"{demo.images_per_s:.0f}"),
    ]
    page = make_demo_page(summary, numbers, pictures, *_read_curves(config.output_dir), optimized.report)
    write_whole(demo.page, page)
    return demo


def _read_curves(run: Path) -> tuple[list[tuple[float, float]], dict[str, list[tuple[float, float]]]]:
    """Return the loss and the scores of a run, each as (step, value)."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    scored = [line for line in lines if "AP" in line]
    scores = {name: [(line["step"], line[name]) for line in scored] for name in ("AP50", "AP")}
    return [(line["step"], line["total"]) for line in lines if "total" in line], scores


def _draw_pictures(checkpoint: Path, unseen: Records, folder: Path) -> list[NDArray[np.uint8]]:
    """Return pictures of unseen scenes with what the detector finds, also written to a folder."""
    pictures = []
    folder.mkdir()
    with Predictor.load(checkpoint, thresholds=Thresholds(conf=0.5)) as predictor:
        for item in predictor.stream([unseen.path(i) for i in range(min(_PICTURES, len(unseen)))]):
            if isinstance(item, Failure):
                raise item.error
            large = cv2.resize(item.frame.image, (_SHOWN_SIDE, _SHOWN_SIDE), interpolation=cv2.INTER_CUBIC)
            pictures.append(draw_detections(np.asarray(large, np.uint8), item.detections))
            cv2.imwrite(str(folder / Path(item.frame.source).name), pictures[-1])
    return pictures
