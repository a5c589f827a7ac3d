from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.networks import lively_nano

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import Spec
from boxwright.detector.weights import save_weights
from boxwright.detector.yolox import Yolox
from boxwright.tasks.checkpoint import read_checkpoint
from boxwright.tasks.models import ModelOptions, open_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def network() -> Yolox:
    return lively_nano()


@pytest.fixture
def official(tmp_path: Path, network: Yolox) -> Path:
    """A file laid out as the official ones are, for three classes."""
    path = tmp_path / "best_ckpt.pth"
    torch.save({"model": network.state_dict(), "start_epoch": 3}, path)
    return path


def test_an_official_file_says_which_network_it_is(official: Path) -> None:
    spec = open_model(official).spec
    assert spec == Spec(model="yolox_nano", names=("class_0", "class_1", "class_2"), size_hw=(416, 416))


def test_the_session_gives_what_the_network_gives_at_a_size_that_is_not_square(official: Path, network: Yolox) -> None:
    session = open_model(official, ModelOptions(size_hw=(64, 96), names=("a", "b", "c")))
    images = np.random.default_rng(0).uniform(0, 255, (2, 3, 64, 96)).astype(np.float32)
    with torch.inference_mode():
        expected = torch.cat(tuple(network(torch.from_numpy(images))), dim=2).numpy()
    assert session.spec.names == ("a", "b", "c")
    assert session(images).shape == (2, 96 + 24 + 6, 8)
    np.testing.assert_allclose(session(images), expected, rtol=1e-4, atol=1e-4)


def test_our_own_file_keeps_its_classes_size_and_preprocessing(tmp_path: Path, network: Yolox) -> None:
    spec = Spec(
        model="yolox_nano", names=("x", "y", "z"), size_hw=(64, 32), preprocessing="legacy", category_ids=(3, 5, 9)
    )
    save_weights(tmp_path / "mine.safetensors", network, spec)
    assert open_model(tmp_path / "mine.safetensors").spec == spec


def test_a_wrong_number_of_names_is_refused(official: Path) -> None:
    with pytest.raises(UsageError, match=r"4 class names .* 3 classes"):
        read_checkpoint(official, ModelOptions(names=("a", "b", "c", "d")))


def test_another_activation_changes_the_network(official: Path) -> None:
    images = np.random.default_rng(0).uniform(0, 255, (1, 3, 64, 64)).astype(np.float32)
    usual = open_model(official, ModelOptions(size_hw=(64, 64)))
    other = open_model(official, ModelOptions(size_hw=(64, 64), activation="relu"))
    assert other.spec.activation == "relu"
    assert not np.allclose(usual(images), other(images), atol=1e-3)


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(CheckpointError, match=r"text\.pth' can't be read"):
        open_model(tmp_path / "text.pth")
    torch.save({"model": {"other.weight": torch.zeros(3)}}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="fits no model of the family"):
        open_model(tmp_path / "other.pth")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": tuple("abcdefghij")}, "names 10 classes, but its weights are for 3"),
        ({"model": "x"}, "no network 'x'"),
        ({"strides": (8, 16)}, r"strides \(8, 16\)"),
        ({"activation": "x"}, "Unknown activation 'x'"),
    ],
)
def test_a_description_that_does_not_fit_the_weights_is_a_model_error(
    tmp_path: Path, network: Yolox, changes: dict[str, Any], message: str
) -> None:
    spec = Spec(**{"model": "yolox_nano", "names": ("x", "y", "z"), "size_hw": (64, 64)} | changes)
    save_weights(tmp_path / "mine.safetensors", network, spec)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path / "mine.safetensors", ModelOptions())


def test_weights_of_nan_are_refused_and_not_run(tmp_path: Path, network: Yolox) -> None:
    state = {
        key: torch.full_like(v, torch.nan) if v.is_floating_point() else v for key, v in network.state_dict().items()
    }
    torch.save({"model": state}, tmp_path / "nan.pth")
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        open_model(tmp_path / "nan.pth")
