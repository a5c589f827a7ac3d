"""Calls of the Python interface with arguments of any kind. They may raise `BoxwrightError` or Python's own errors."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz.values import NUMBERS, odd_text, odd_value


def run_call(seed: str, seeds: Path) -> int:
    """Make a call that the seed chooses, and return the exit code: 0, or 1 with a traceback if it failed badly."""
    from boxwright import BoxwrightError

    rng = Random(seed)
    call = rng.choice(CALLS)
    print(call.__name__, flush=True)
    try:
        call(rng, seeds)
    except (BoxwrightError, TypeError, ValueError, OverflowError, MemoryError, OSError) as error:
        print(f"{type(error).__name__}: {error}".encode("unicode_escape").decode()[:300])
    except Exception:  # noqa: BLE001 - this is what is looked for
        traceback.print_exc()
        return 1
    sys.stdout.flush()
    return 0


def odd_array(rng: Random) -> Any:
    """Return an array, or what a user may take for an image."""
    import numpy as np

    shapes = (
        (64, 64, 3), (64, 48), (1, 1, 3), (0, 0, 3), (64, 0, 3), (64, 64, 4), (64, 64, 1), (3, 64, 64), (2, 64, 64, 3),
        (7,), (), (1, 5000, 3), (64, 64, 2),
    )  # fmt: skip
    kinds = (
        "uint8",
        "uint8",
        "uint8",
        "float32",
        "float64",
        "int64",
        "bool",
        "complex64",
        "uint16",
        "object",
        "U3",
        "float16",
    )
    array = np.random.default_rng(rng.randrange(99)).integers(0, 255, rng.choice(shapes)).astype(rng.choice(kinds))
    change = rng.randrange(8)
    if change == 0 and array.dtype.kind == "f" and array.size:
        array.flat[0] = rng.choice((np.nan, np.inf, -1e30))
    elif change == 1 and array.ndim > 1:
        array = array[::-1, ::2]
    elif change == 2:
        array.setflags(write=False)
    elif change == 3:
        return rng.choice(
            (
                None,
                5,
                "x.jpg",
                b"\xff\xd8",
                [],
                [[1, 2], [3]],
                {},
                Path("x"),
                array.tolist(),
                memoryview(b"abc"),
                object(),
            )
        )
    return array


def _predict(rng: Random, seeds: Path) -> None:
    from boxwright import Predictor, Thresholds

    values = {name: rng.choice((0.3, 0.0, 1.0, odd_value(rng))) for name in ("conf", "nms") if rng.random() < 0.4}
    if rng.random() < 0.2:
        values["classes"] = rng.choice((("red",), "red", (), (odd_text(rng),), odd_value(rng)))
    more = {"workers": odd_value(rng)} if rng.random() < 0.1 else {}
    with Predictor.load(seeds / "models" / "toy.onnx", thresholds=Thresholds(**values), **more) as predictor:
        predictor(odd_array(rng))
        list(predictor.stream([odd_array(rng), odd_array(rng)], batch=rng.choice((1, 2, 3))))


def _detections(rng: Random, seeds: Path) -> None:
    import numpy as np

    from boxwright import Detections

    count = rng.choice((0, 1, 3))
    values: dict[str, Any] = {
        "boxes_xyxy": np.zeros((count, 4), np.float32), "scores": np.zeros(count, np.float32),
        "class_ids": np.zeros(count, np.int64), "names": ("a", "b"), "size_hw": (5, 5),
    }  # fmt: skip
    values[rng.choice(("boxes_xyxy", "scores", "class_ids", "size_hw"))] = rng.choice((odd_array(rng), odd_value(rng)))
    found = Detections(**values)
    found.filter(classes=rng.choice((("a",), ("x",), odd_value(rng))))
    found.to_list()


def _spec(rng: Random, seeds: Path) -> None:
    from boxwright import Precision, Spec

    values: dict[str, Any] = {"names": ("a",), "size_hw": (64, 64)}
    values[rng.choice(("names", "size_hw", "strides", "category_ids", "output", "preprocessing", "model"))] = odd_value(
        rng
    )
    Precision.parse(odd_value(rng)) if rng.random() < 0.3 else Spec(**values)


def _plan(rng: Random, seeds: Path) -> None:
    from boxwright import examine

    values = {
        name: odd_value(rng)
        for name in ("device", "precision", "num_processes", "strategy", "batch")
        if rng.random() < 0.4
    }
    examine(**values)


def _records(rng: Random, seeds: Path) -> None:
    from boxwright import read_records

    where: Any = rng.choice([seeds / "sets" / name for name in ("coco", "voc", "yolo")])
    options = {name: odd_value(rng) for name in ("split", "format") if rng.random() < 0.4}
    read_records(
        where if rng.random() < 0.8 else rng.choice((odd_text(rng).replace("/", ""), odd_value(rng))), **options
    )


def _train_settings(rng: Random, seeds: Path) -> None:
    from boxwright import TrainConfig

    names = sorted(name for name in TrainConfig.__slots__ if not name.startswith("_"))
    values = {
        name: rng.choice((odd_value(rng), rng.choice(NUMBERS))) for name in rng.sample(names, rng.choice((1, 1, 3)))
    }
    TrainConfig(**({"data": seeds, "output_dir": Path("x"), "model": "yolox_nano"} | values))


def _transforms(rng: Random, seeds: Path) -> None:
    import warnings

    import torch

    from boxwright.vision import transforms

    warnings.simplefilter("ignore")
    makers: tuple[Callable[[], Any], ...] = (
        lambda: transforms.Resize(rng.choice((32, (16, 24), 0, -1, odd_value(rng)))),
        lambda: transforms.CenterCrop(rng.choice((32, 999, 0, odd_value(rng)))),
        lambda: transforms.RandomCrop(rng.choice((32, 64, 999)), padding=rng.choice((None, 4, (1, 2), odd_value(rng)))),
        lambda: transforms.RandomResizedCrop(rng.choice((32, (16, 8)))),
        lambda: transforms.ColorJitter(*[rng.choice((0, 0.2, 1, odd_value(rng))) for _ in range(4)]),
        lambda: transforms.RandomRotation(rng.choice((10, (5, 5), 400, odd_value(rng)))),
        lambda: transforms.RandomAffine(rng.choice((10, 0, odd_value(rng)))),
        lambda: transforms.GaussianBlur(rng.choice((3, 5, 2, 0, 99, odd_value(rng)))),
        lambda: transforms.RandomPosterize(rng.choice((4, 0, 8, 9, odd_value(rng))), p=1),
        lambda: transforms.RandomEqualize(p=1),
        lambda: transforms.RandomAutocontrast(p=1),
        lambda: transforms.RandomPerspective(p=1),
        lambda: transforms.RandomErasing(p=1),
        lambda: transforms.Pad(rng.choice((3, (1, 2, 3, 4), -1, 10**9, odd_value(rng)))),
        transforms.Grayscale,
        transforms.ToTensor,
        transforms.ToPILImage,
        transforms.PILToTensor,
        lambda: transforms.Normalize([0.5] * rng.choice((1, 3, 4)), rng.choice(([0.5], [0.0] * 3, odd_value(rng)))),
        lambda: transforms.TenCrop(rng.choice((8, 999))),
    )
    torch.manual_seed(rng.randrange(99))
    steps = transforms.Compose([rng.choice(makers)() for _ in range(rng.choice((1, 1, 3)))])
    image = odd_array(rng)
    if rng.random() < 0.2:
        image = torch.rand(rng.choice(((3, 8, 8), (1, 8, 8), (8, 8), (0, 8, 8), (2, 3, 8, 8))))
    steps(image)


CALLS = (_predict, _predict, _detections, _spec, _plan, _records, _train_settings, _transforms, _transforms)
