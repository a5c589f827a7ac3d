"""python benchmarks/int8_accuracy.py [--weights yolox_nano.pth] [--data coco_val300] [--calibration images/]

What each precision costs a detector in AP, on converted artifacts: OpenVINO in fp32, bf16 and int8 (with our ranges and
NNCF's), and int8 with the most sensitive layers left in float. Calibrate with other images than those that are scored.
Without arguments it looks for the official nano and its images in the folder BOXWRIGHT_TEST_DATA (default: `shared`
beside the checkout).
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch

from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.core.timing import hardware_line
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_artifact, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import fold_batch_norms
from boxwright.runtimes.quantized import PREFIX, measure_layers
from boxwright.runtimes.sensitivity import rank_layers
from boxwright.runtimes.source import Source
from boxwright.tasks.checkpoint import read_checkpoint
from boxwright.tasks.evaluate import OFFICIAL, evaluate
from boxwright.tasks.models import ModelOptions
from boxwright.tasks.predict.predictor import Predictor
from boxwright.vision.decode import read_image
from boxwright.vision.letterbox import letterbox, to_input

ROOT = Path(os.environ.get("BOXWRIGHT_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"))


def read_samples(folder: Path, count: int, spec: Spec) -> list[tuple[Array, ...]]:
    samples: list[tuple[Array, ...]] = []
    for path in sorted(folder.glob("*.jpg"))[:count]:
        boxed = np.empty((1, *spec.size_hw, 3), np.uint8)
        letterbox(read_image(path), spec.size_hw, boxed[0])
        samples.append((np.ascontiguousarray(to_input(boxed, spec.preprocessing)),))
    return samples


def find_ranking(source: Source, samples: Sequence[tuple[Array, ...]]) -> list[str]:
    """Return the layers that int8 is for, the one that suffers most first."""
    module = source.flat()
    fold_batch_norms(module, source.example)
    quantized = {name.removeprefix(PREFIX) for name in measure_layers(module, source, Calibration(samples=samples[:3]))}
    return [name for name, _ in rank_layers(source, samples[:3]) if name in quantized]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[2] if __doc__ else None)
    parser.add_argument("--weights", type=Path, default=ROOT / "weights/yolox_nano/yolox_nano.pth")
    parser.add_argument("--data", type=Path, default=ROOT / "data/coco_val300")
    parser.add_argument("--calibration", type=Path, default=ROOT / "data/coco_train_mini/images")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--limit", type=int, help="score only the first so many images")
    parser.add_argument("--keep", type=int, nargs="*", default=[2, 4, 8], help="how many layers to leave in float")
    parser.add_argument("--keep-names", nargs="*", default=[], help="modules to leave in float in one more row")
    parser.add_argument("--quick", action="store_true", help="int8 rows only")
    options = parser.parse_args(arguments)
    if not options.weights.exists():
        print(f"There are no weights at {options.weights}; give --weights, --data and --calibration.")
        return
    model, spec = read_checkpoint(options.weights, ModelOptions())
    source = Source.of(model, (torch.zeros(1, 3, *spec.size_hw),))
    samples = read_samples(options.calibration, options.samples, spec)
    ranking = find_ranking(source, samples) if options.keep else []
    rows: list[tuple[str, Choice, tuple[str, ...]]] = []
    if not options.quick:
        floats = (Precision.FP32, Precision.BF16, Precision.FP16)
        rows += [(f"openvino {p}", Choice(runtime="openvino", precision=p), ()) for p in floats]
    int8 = Choice(runtime="openvino", precision=Precision.INT8)
    mixture = Choice(runtime="openvino", precision=Precision.INT8, mode="bf16")
    nncf = Choice(runtime="openvino", precision=Precision.INT8, mode="nncf")
    rows += [
        ("openvino int8", int8, ()),
        ("openvino int8, the rest in bf16", mixture, ()),
        ("openvino int8, NNCF", nncf, ()),
    ]
    for count in options.keep:
        rows.append((f"openvino int8, {count} layers in float", int8, tuple(ranking[:count])))
    if options.keep_names:
        rows.append((f"openvino int8, {len(options.keep_names)} modules in float", int8, tuple(options.keep_names)))
        rows.append(("the same, the rest in bf16", mixture, tuple(options.keep_names)))

    print(f"{hardware_line()}; {len(samples)} calibration images")
    print(f"{'artifact':<44} {'AP':>7} {'AP50':>7} {'distance':>9} {'seconds':>8}")
    with TemporaryDirectory() as folder:
        for number, (name, choice, keep) in enumerate(rows):
            start = perf_counter()
            target = Path(folder) / str(number)
            calibration = Calibration(samples=samples, keep_float=keep, cache=Path(folder) / "cache")
            used = calibration if choice.precision is Precision.INT8 else None
            artifact = write_artifact(source, choice, target, spec=spec, calibration=used, golden=samples[0])
            with Predictor(open_artifact(target), OFFICIAL) as predictor:
                found = evaluate(predictor, options.data, batch=1, limit=options.limit).to_dict()
            print(
                f"{name:<44} {found['AP']:>7.4f} {found['AP50']:>7.4f} {artifact.distance or 0:>9.4f} "
                f"{perf_counter() - start:>8.1f}",
                flush=True,
            )
            if keep:
                print(f"    in float: {', '.join(keep)}")


if __name__ == "__main__":
    main()
