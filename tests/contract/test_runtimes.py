"""What every runtime of the catalogue promises: convert, folder, load, and the model's own output comes back."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.networks import lively_nano

from boxwright.core import catalogue
from boxwright.core.errors import CheckpointError
from boxwright.core.spec import Spec
from boxwright.detector.yolox import Yolox
from boxwright.recipes.models import open_model
from boxwright.runtimes.artifact import open_artifact, read_artifact, write_artifact

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SPEC = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 96), category_ids=(2, 4, 8))


@pytest.fixture(scope="module")
def network() -> Yolox:
    return lively_nano()


@pytest.fixture(scope="module", params=catalogue.names("runtime"))
def converted(request: pytest.FixtureRequest, network: Yolox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact folder of one runtime; tests must not change it."""
    folder = tmp_path_factory.mktemp(request.param) / "artifact"
    write_artifact(network, SPEC, folder, runtime=request.param)
    return folder


@pytest.fixture
def copied(converted: Path, tmp_path: Path) -> Path:
    """A copy that a test may change, in another place than the one it was written to."""
    return Path(shutil.copytree(converted, tmp_path / "moved"))


def _images(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).uniform(0, 255, (count, 3, 64, 96)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 3])
def test_the_session_gives_the_models_output(converted: Path, network: Yolox, count: int) -> None:
    images = _images(count)
    with torch.inference_mode():
        expected = torch.cat(tuple(network(torch.from_numpy(images))), dim=2).numpy()
    output = open_artifact(converted)(images)
    assert output.dtype == np.float32
    assert output.shape == (count, SPEC.num_anchors, 8)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-3)


def test_images_that_lie_channels_last_give_the_same(converted: Path) -> None:
    session, images = open_artifact(converted), _images(2)
    channels_last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(session(channels_last), session(images), rtol=0, atol=1e-4)


def test_an_output_stays_as_it_is_when_the_session_runs_again(converted: Path) -> None:
    session = open_artifact(converted)
    first = session(_images(1))
    kept = first.copy()
    session(_images(1) / 2)
    np.testing.assert_array_equal(first, kept)


def test_the_folder_can_be_moved_and_needs_nothing_else(copied: Path) -> None:
    session = open_model(copied)
    assert session.spec == SPEC
    assert session(_images(1)).shape == (1, SPEC.num_anchors, 8)


def test_converting_leaves_the_model_as_it_was(tmp_path: Path, converted: Path, network: Yolox) -> None:
    # By now the model has been converted; only its memory layout may have changed.
    fresh = lively_nano()
    assert not network.training
    for (key, value), original in zip(network.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(value, original), key


def test_a_closed_session_says_so(converted: Path) -> None:
    session = open_artifact(converted)
    session.close()
    session.close()
    with pytest.raises(CheckpointError, match="session is closed"):
        session(_images(1))


def test_every_file_is_under_a_hash(converted: Path) -> None:
    on_disk = {path.name for path in converted.iterdir()} - {"artifact.json"}
    assert set(read_artifact(converted).files) == on_disk != set()


def test_a_changed_file_is_refused(copied: Path) -> None:
    (name, *_) = read_artifact(copied).files
    data = bytearray((copied / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copied / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name}' of the artifact .* has changed"):
        open_artifact(copied)


def test_a_missing_file_is_refused(copied: Path) -> None:
    (name, *_) = read_artifact(copied).files
    (copied / name).unlink()
    with pytest.raises(CheckpointError, match=f"lacks its file '{name}'"):
        open_artifact(copied)


def test_a_newer_format_is_refused(copied: Path) -> None:
    description = json.loads((copied / "artifact.json").read_text())
    (copied / "artifact.json").write_text(json.dumps(description | {"format": description["format"] + 1}))
    with pytest.raises(CheckpointError, match="newer Boxwright"):
        open_artifact(copied)
