"""Intel's extension on real kernels: `make test-ipex` builds the environment; elsewhere these are skipped."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from support.models import two_inputs
from support.shared import shared_path

from boxwright.core.errors import MissingDependencyError
from boxwright.core.signature import Array
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.ipex_ import load_extension
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.source import Source
from boxwright.tasks.checkpoint import read_checkpoint
from boxwright.tasks.models import ModelOptions
from boxwright.vision.letterbox import letterbox, to_input

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:JIT pass will be deprecated"),  # the extension's own, at a trace's first run
]
CHOICES = [
    Choice(runtime="ipex", precision=precision, mode=mode, channels_last=last)
    for precision in (Precision.FP32, Precision.BF16)
    for mode in ("", "jit")
    for last in (False, True)
] + [Choice(runtime="ipex", precision=Precision.INT8)]


def _name(choice: Choice) -> str:
    return "-".join((str(choice.precision), choice.mode or "eager", "last" if choice.channels_last else "first"))


@pytest.fixture(scope="module", autouse=True)
def _extension() -> None:
    try:
        load_extension()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def nano() -> Source:
    """The official nano with a real image."""
    model, _ = read_checkpoint(shared_path("weights/yolox_nano/yolox_nano.pth"), ModelOptions())
    return Source.of(model, _photos(1)[0])


def _photos(count: int) -> list[tuple[Array, ...]]:
    files = sorted(shared_path("data/coco_val300/images").rglob("*.jpg"))[:count]
    return [(to_input(letterbox(cv2.imread(str(file)), (416, 416))[0][None], "bgr255"),) for file in files]


def _convert(source: Source, choice: Choice, folder: Path, samples: Sequence[tuple[Array, ...]]) -> None:
    calibration = Calibration(samples=samples) if choice.precision is Precision.INT8 else None
    write_artifact(source, choice, folder, calibration=calibration)


@pytest.mark.parametrize("choice", CHOICES, ids=_name)
def test_every_choice_runs_any_model(tmp_path: Path, choice: Choice) -> None:
    rng = np.random.default_rng(0)
    samples = [
        (rng.normal(size=(2, 3, 8, 8)).astype(np.float32), rng.normal(size=(2, 5)).astype(np.float32)) for _ in range(8)
    ]
    source = Source.of(two_inputs(), samples[0][:1], {"vector": samples[0][1]})
    _convert(source, choice, tmp_path / "art", samples)
    graph = open_graph(tmp_path / "art")
    for rows in (1, 2):
        inputs = [a[:rows] for a in samples[3]]
        outputs, expected = graph.run(inputs), source.run(inputs)
        assert [a.dtype for a in outputs] == [a.dtype for a in expected]
        assert distance([outputs[0], outputs[2]], [expected[0], expected[2]]) < BOUNDS[choice.precision] / 5


@pytest.mark.parametrize("choice", CHOICES, ids=_name)
def test_every_choice_runs_the_official_detector(tmp_path: Path, nano: Source, choice: Choice) -> None:
    photos = _photos(6)
    _convert(nano, choice, tmp_path / "art", photos[2:])
    graph = open_graph(tmp_path / "art")
    found = [distance(graph.run(photo), nano.run(photo)) for photo in photos[:2]]
    assert max(found) < BOUNDS[choice.precision]
    graph.close()


def test_the_extensions_kernels_are_used(tmp_path: Path) -> None:
    example = (torch.randn(2, 3, 8, 8),), {"vector": torch.randn(2, 5)}
    source = Source.of(two_inputs(), *example)
    write_artifact(source, Choice(runtime="ipex", mode="jit"), tmp_path / "art")
    assert b"ipex_prepack" in (tmp_path / "art" / "model.ts").read_bytes()


@pytest.mark.parametrize("mode", ["", "jit"])
def test_a_layer_that_stays_in_float32_is_not_rounded(tmp_path: Path, mode: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 1), torch.nn.SiLU(), torch.nn.Conv2d(4, 2, 1)).eval()
    with torch.no_grad():
        net[0].weight[:] = torch.tensor([1 + 2**-9, -1]).view(1, 2, 1, 1)  # in bf16 the two cancel each other out
    numbers = torch.arange(256.0).view(1, 1, 16, 16)
    source = Source.of(net, (torch.cat((numbers, numbers), dim=1),))
    inputs = [t.numpy() for t in source.example]
    choice = Choice(runtime="ipex", precision=Precision.BF16, mode=mode)
    distances = []
    for kept in ((), ("0",)):
        calibration = Calibration(samples=[tuple(inputs)], keep_float=kept) if kept else None
        artifact = write_artifact(source, choice, tmp_path / str(len(kept)), calibration=calibration)
        assert artifact.recipe["float32"] == ["2", *kept]
        distances.append(distance(open_graph(tmp_path / str(len(kept))).run(inputs), source.run(inputs)))
    assert distances[0] > 20 * distances[1]
