"""What every runtime of the catalogue promises: convert, folder, load, and the model's own output comes back."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.models import TinyDetector, tiny_detector, two_inputs

from boxwright.core import catalogue
from boxwright.core.errors import CheckpointError, MissingDependencyError, UsageError
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, read_artifact, read_golden, write_artifact
from boxwright.runtimes.base import Choice, Graph, Session, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.source import Source
from boxwright.tasks.models import open_model

# What the module's tests share is made once.
pytestmark = [pytest.mark.xdist_group("runtimes"), pytest.mark.usefixtures("one_torch_thread")]
SPEC = Spec(names=("a", "b", "c"), size_hw=(64, 96), category_ids=(2, 4, 8))
NAMES = catalogue.names("runtime")
# Runtimes that have no fp32.
PRECISIONS = {"int8": Precision.INT8}


@dataclass(frozen=True)
class Converted:
    """An artifact folder of one runtime; tests must not change it."""

    choice: Choice
    folder: Path

    @property
    def bound(self) -> float:
        return BOUNDS[self.choice.precision]


def _images(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).uniform(0, 255, (count, 3, 64, 96)).astype(np.float32)


def _vectors(seed: int) -> tuple[Array, Array]:
    """Return an image batch and a vector batch for the model with two inputs."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, 3, 8, 8)).astype(np.float32), rng.normal(size=(2, 5)).astype(np.float32)


def _convert(
    name: str, source: Source, folder: Path, *, spec: Spec | None, samples: Sequence[tuple[Array, ...]]
) -> Converted:
    choice = Choice(runtime=name, precision=PRECISIONS.get(name, Precision.FP32))
    calibration = Calibration(samples=samples) if choice.precision is Precision.INT8 else None
    try:
        write_artifact(source, choice, folder, spec=spec, calibration=calibration)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    return Converted(choice, folder)


@pytest.fixture(scope="module")
def network() -> TinyDetector:
    return tiny_detector()


@pytest.fixture(scope="module", params=NAMES)
def converted(
    request: pytest.FixtureRequest, network: TinyDetector, tmp_path_factory: pytest.TempPathFactory
) -> Converted:
    """A detector, converted from an example of one image with a free batch."""
    source = Source.of(network, (_images(1),))
    folder = tmp_path_factory.mktemp(request.param) / "artifact"
    return _convert(request.param, source, folder, spec=SPEC, samples=[(_images(2),)])


@pytest.fixture(scope="module", params=NAMES)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Source, Graph]]:
    """A model that is no detector: two inputs, one by keyword, and nested outputs."""
    image, vector = _vectors(0)
    source = Source.of(two_inputs(), (image,), {"vector": vector})
    folder = tmp_path_factory.mktemp(request.param) / "artifact"
    _convert(request.param, source, folder, spec=None, samples=[_vectors(seed) for seed in range(20, 28)])
    graph = open_graph(folder)
    yield source, graph
    graph.close()


@pytest.fixture(scope="module")
def session(converted: Converted) -> Iterator[Session]:
    """The detector, opened; tests share it."""
    opened = open_model(converted.folder)
    yield opened
    opened.close()


@pytest.fixture
def copied(converted: Converted, tmp_path: Path) -> Path:
    """A copy that a test may change, in another place than the one it was written to."""
    return Path(shutil.copytree(converted.folder, tmp_path / "moved"))


@pytest.mark.parametrize("count", [1, 3])
def test_the_session_gives_the_models_output(
    converted: Converted, session: Session, network: TinyDetector, count: int
) -> None:
    images = _images(count)
    with torch.inference_mode():
        expected = torch.cat(tuple(network(torch.from_numpy(images))), dim=2).numpy()
    output = session(images)
    assert output.dtype == np.float32
    assert output.shape == (count, SPEC.num_anchors, 8)
    assert distance([output], [expected]) < converted.bound


def test_any_model_gives_its_outputs_in_its_own_form(other: tuple[Source, Graph]) -> None:
    source, graph = other
    assert [p.name for p in graph.signature.inputs] == ["image", "vector"]
    image, vector = _vectors(3)
    outputs = graph.run(graph.signature.flatten_call((image,), {"vector": vector}))
    expected = source.run([image, vector])
    assert [(a.shape, a.dtype) for a in outputs] == [(a.shape, a.dtype) for a in expected]
    assert distance([outputs[0], outputs[2]], [expected[0], expected[2]]) < 0.1
    result = graph.signature.build_result(outputs)
    assert result["pair"].best is outputs[1]
    assert result["maps"][0] is outputs[2]


def test_many_requests_come_back_in_their_order(other: tuple[Source, Graph]) -> None:
    _, graph = other
    requests = [_vectors(seed) for seed in range(5)]
    together = list(graph.run_all(iter(requests)))
    assert len(together) == 5
    for request, outputs in zip(requests, together, strict=True):
        np.testing.assert_allclose(outputs[2], graph.run(request)[2], rtol=0, atol=1e-4)


def test_a_call_built_otherwise_is_refused(other: tuple[Source, Graph]) -> None:
    _, graph = other
    with pytest.raises(UsageError, match=r"Input .vector. is missing"):
        graph.signature.flatten_call((np.zeros((2, 3, 8, 8), np.float32),))


def test_images_that_lie_channels_last_give_the_same(session: Session) -> None:
    images = _images(2)
    channels_last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(session(channels_last), session(images), rtol=0, atol=1e-4)


def test_images_that_must_not_be_written_to_are_taken(session: Session) -> None:
    images = _images(1)
    expected = session(images)
    images.flags.writeable = False
    np.testing.assert_array_equal(session(images), expected)


def test_an_output_stays_as_it_is_when_the_session_runs_again(session: Session) -> None:
    first = session(_images(1))
    kept = first.copy()
    session(_images(1) / 2)
    np.testing.assert_array_equal(first, kept)


def test_threads_of_one_graph_are_not_those_of_the_process(converted: Converted, session: Session) -> None:
    images, before = _images(1), torch.get_num_threads()
    graph = open_graph(converted.folder, Tuning(threads=2))
    outputs = graph.run([images])
    graph.close()
    assert torch.get_num_threads() == before
    assert distance([np.concatenate(outputs, axis=2)], [session(images)]) < 1e-3


def test_the_folder_can_be_moved_and_needs_nothing_else(copied: Path) -> None:
    session = open_model(copied)
    assert session.spec == SPEC
    assert session(_images(1)).shape == (1, SPEC.num_anchors, 8)


def test_converting_leaves_the_model_as_it_was(converted: Converted, network: TinyDetector) -> None:
    fresh = tiny_detector()
    assert not network.training
    for (key, value), original in zip(network.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(value, original), key


def test_a_closed_session_says_so(converted: Converted) -> None:
    session = open_model(converted.folder)
    session.close()
    session.close()
    with pytest.raises(CheckpointError, match="session is closed"):
        session(_images(1))


def test_the_golden_pair_is_the_original_models(converted: Converted, network: TinyDetector) -> None:
    inputs, outputs = read_golden(converted.folder)
    np.testing.assert_array_equal(inputs[0], _images(1))
    with torch.inference_mode():
        expected = [t.numpy() for t in network(torch.from_numpy(inputs[0]))]
    assert distance(outputs, expected) < 1e-4
    artifact = read_artifact(converted.folder)
    assert artifact.distance is not None
    assert artifact.distance < converted.bound
    assert artifact.choice == converted.choice


def test_a_precision_that_a_runtime_lacks_is_refused(tmp_path: Path, converted: Converted) -> None:
    source = Source.of(two_inputs(), (torch.zeros(1, 3, 8, 8),), {"vector": torch.zeros(1, 5)})
    choice = Choice(runtime=converted.choice.runtime, precision=Precision.FP64)
    with pytest.raises(UsageError, match="precision"):
        write_artifact(source, choice, tmp_path / "art")


def test_every_file_is_under_a_hash(converted: Converted) -> None:
    on_disk = {str(path.relative_to(converted.folder)) for path in converted.folder.rglob("*") if path.is_file()}
    assert set(read_artifact(converted.folder).files) == on_disk - {"artifact.json"} != set()


def test_a_changed_file_is_refused(copied: Path) -> None:
    for name in read_artifact(copied).files:
        data = (copied / name).read_bytes()
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        (copied / name).write_bytes(changed)
        with pytest.raises(CheckpointError, match=rf"{name}' of the artifact .* has changed"):
            open_model(copied)
        (copied / name).write_bytes(data)


def test_a_missing_file_is_refused(copied: Path) -> None:
    (name, *_) = read_artifact(copied).files
    (copied / name).unlink()
    with pytest.raises(CheckpointError, match=f"lacks its file '{name}'"):
        open_model(copied)


@pytest.mark.parametrize(("step", "word"), [(1, "newer"), (-1, "older")])
def test_another_format_is_refused(copied: Path, step: int, word: str) -> None:
    description = json.loads((copied / "artifact.json").read_text())
    (copied / "artifact.json").write_text(json.dumps(description | {"format": description["format"] + step}))
    with pytest.raises(CheckpointError, match=f"{word} Boxwright"):
        open_model(copied)
