"""The whole job with no data and no network: made-up scenes, training, scoring, pictures, the fastest form."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.core.log import get_logger
from boxwright.core.signals import TERMINATED
from boxwright.data.split import split_records
from boxwright.data.synthetic import generate_scenes
from boxwright.tasks.data import refuse_filled
from boxwright.tasks.evaluate import OFFICIAL, evaluate
from boxwright.tasks.optimize import OptimizeConfig, OptimizeResult, optimize
from boxwright.tasks.predict.inputs import Failure
from boxwright.tasks.predict.outputs import Outputs
from boxwright.tasks.predict.predictor import Predictor, Thresholds
from boxwright.tasks.train.run import TrainConfig, train

_log = get_logger(__name__)
CLASSES = ("circle", "square", "star")
METHODS = (
    "fp32_channels_last", "bf16_channels_last", "jit_fp32", "openvino_fp32", "openvino_bf16", "openvino_int8",
    "onnxruntime_fp32", "onnxruntime_int8_qlinear",
)  # fmt: skip
"""What the demo's optimiser tries: the quick ones to convert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo reached and where its files are."""

    ap: float
    ap50: float
    checkpoint: Path
    pictures: Path
    images_per_s: float
    optimized: OptimizeResult

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "AP": round(self.ap, 4),
            "AP50": round(self.ap50, 4),
            "checkpoint": str(self.checkpoint),
            "pictures": str(self.pictures),
            "images_per_s": round(self.images_per_s, 2),
            "report": str(self.optimized.folder / "report.html"),
            "best": None if self.optimized.best is None else str(self.optimized.best),
        }

    def lines(self) -> list[str]:
        """Return the same for people."""
        return [
            f"AP {self.ap:.3f}, AP50 {self.ap50:.3f} on scenes it has not seen",
            f"trained at {self.images_per_s:.1f} images/s: {self.checkpoint}",
            f"pictures: {self.pictures}",
            *self.optimized.report.table().splitlines(),
            f"report: {self.optimized.folder / 'report.html'}",
        ]


def run_demo(folder: Path, *, steps: int, seed: int = 0, images: int = 400, held_out: int = 80) -> DemoResult:
    """Draw scenes, train a nano detector on them, score it on scenes it has not seen, and find its fastest form.

    Raises:
        UsageError: the folder is not empty.
    """
    refuse_filled(folder)
    _log.info("Drawing %d scenes.", images + held_out)
    records = generate_scenes(folder / "scenes", images=images + held_out, seed=seed, classes=CLASSES)
    _, unseen = split_records(records, val=held_out / (images + held_out), seed=seed)
    _log.info("%d of them are held out.", len(unseen))
    config = TrainConfig(
        model="yolox_nano",
        data=folder / "scenes",
        val=held_out / (images + held_out),
        output_dir=folder / "train",
        batch=16,
        steps=steps,
        size_hw=(256, 256),
        mosaic=False,  # pays in long runs only
        lr_per_image=0.0025,
        eval_interval=max(steps * 16 // images // 4, 1),
        print_interval=max(steps // 20, 1),
        seed=seed,
    )
    _log.info("Training yolox_nano for %d steps of %d images.", config.steps, config.batch)
    result = train(config)
    if result.stopped:
        raise SystemExit(TERMINATED) if result.stopped == "signal 15" else KeyboardInterrupt
    with Predictor.load(result.checkpoint, thresholds=OFFICIAL) as predictor:
        score = evaluate(predictor, unseen)
    for line in score.metrics.lines():
        _log.info("%s", line)
    pictures = folder / "pictures"
    with (
        Predictor.load(result.checkpoint, thresholds=Thresholds(conf=0.2)) as predictor,
        Outputs(pictures, ["images", "json"]) as outputs,
    ):
        for item in predictor.stream([unseen.path(i) for i in range(min(12, len(unseen)))]):
            if isinstance(item, Failure):
                raise item.error
            outputs.write(item)
    _log.info("Trying %d ways to run it, each measured on the unseen scenes.", len(METHODS))
    optimized = optimize(
        OptimizeConfig(
            model=result.checkpoint,
            data=config.data,
            val=config.val,
            seed=seed,
            folder=folder / "optimize",
            includes=METHODS,
            max_drop=0.02,
        )
    )
    return DemoResult(
        ap=score.metrics.AP,
        ap50=score.metrics.AP50,
        checkpoint=result.checkpoint,
        pictures=pictures,
        images_per_s=result.images_per_s,
        optimized=optimized,
    )
