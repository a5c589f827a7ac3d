from pathlib import Path

import numpy as np
import pytest
from support.networks import lively_nano

from boxwright.core.errors import CheckpointError, ConversionError, UsageError
from boxwright.core.spec import Spec
from boxwright.runtimes.eager import EagerRuntime, EagerSession

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SPEC = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 64))


def test_a_network_left_in_training_mode_is_run_as_for_predicting() -> None:
    images = np.random.default_rng(0).uniform(0, 255, (2, 3, 64, 64)).astype(np.float32)
    expected = EagerSession(lively_nano(), SPEC)(images)
    np.testing.assert_array_equal(EagerSession(lively_nano().train(), SPEC)(images), expected)


def test_outputs_that_the_network_does_not_give_are_not_promised(tmp_path: Path) -> None:
    spec = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 64), output="decoded")
    with pytest.raises(ConversionError, match="output='decoded'"):
        EagerRuntime().convert(lively_nano(), spec, tmp_path)


def test_a_network_of_no_known_name_cannot_be_rebuilt(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Unknown model 'mine'"):
        EagerRuntime().convert(lively_nano(), Spec(model="mine", names=("a",), size_hw=(64, 64)), tmp_path)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    EagerRuntime().convert(lively_nano(), SPEC, tmp_path)
    other = Spec(model="yolox_nano", names=("a", "b"), size_hw=(64, 64))
    with pytest.raises(CheckpointError, match="don't fit yolox_nano"):
        EagerRuntime().load(tmp_path, other)


def test_broken_and_missing_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="don't fit yolox_nano"):
        EagerRuntime().load(tmp_path, SPEC)
    (tmp_path / "weights.safetensors").write_text("hello")
    with pytest.raises(CheckpointError, match="don't fit yolox_nano"):
        EagerRuntime().load(tmp_path, SPEC)
