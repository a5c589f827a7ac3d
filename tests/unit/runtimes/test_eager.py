import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import two_inputs
from support.networks import lively_nano
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError, UsageError
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, read_artifact, write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.eager import EagerRuntime, open_network
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.source import Source

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SPEC = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 64))


def _source() -> Source:
    return Source.of(two_inputs(), (torch.randn(2, 3, 8, 8),), {"vector": torch.randn(2, 5)})


def _inputs(rows: int) -> list[Array]:
    rng = np.random.default_rng(rows)
    return [rng.normal(size=(rows, 3, 8, 8)).astype(np.float32), rng.normal(size=(rows, 5)).astype(np.float32)]


def test_a_network_left_in_training_mode_is_run_as_for_predicting() -> None:
    images = np.random.default_rng(0).uniform(0, 255, (2, 3, 64, 64)).astype(np.float32)
    expected = open_network(lively_nano(), SPEC)(images)
    np.testing.assert_array_equal(open_network(lively_nano().train(), SPEC)(images), expected)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-5), (torch.bfloat16, 0.1)])
def test_a_network_of_other_numbers_takes_the_same_images(dtype: torch.dtype, bound: float) -> None:
    images = np.random.default_rng(0).uniform(0, 255, (2, 3, 64, 64)).astype(np.float32)
    expected = open_network(lively_nano(), SPEC)(images)
    found = open_network(lively_nano().to(dtype), SPEC)(images)
    assert found.dtype == np.float32
    assert 0 < np.linalg.norm(found - expected) / np.linalg.norm(expected) < bound


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_choice_stays_within_its_bound(tmp_path: Path, precision: Precision, channels_last: bool) -> None:
    source, choice = _source(), Choice(runtime="eager", precision=precision, channels_last=channels_last)
    artifact = write_artifact(source, choice, tmp_path / "art")
    assert artifact.recipe["folded"] == 1
    assert artifact.recipe.get("biases_corrected") == (3 if precision is Precision.BF16 else None)
    graph = open_graph(tmp_path / "art")
    for rows in (1, 4):
        outputs, expected = graph.run(_inputs(rows)), source.run(_inputs(rows))
        assert [a.dtype for a in outputs] == [a.dtype for a in expected]
        assert distance([outputs[0], outputs[2]], [expected[0], expected[2]]) < BOUNDS[precision]
        assert (distance([outputs[2]], [expected[2]]) > 1e-5) == (precision is Precision.BF16)


def test_plain_is_the_model_as_it_is(tmp_path: Path) -> None:
    source = _source()
    artifact = write_artifact(source, Choice(runtime="eager", mode="plain"), tmp_path / "art")
    assert artifact.recipe == {}
    for output, expected in zip(open_graph(tmp_path / "art").run(_inputs(2)), source.run(_inputs(2)), strict=True):
        np.testing.assert_array_equal(output, expected)


class FixedBatch(nn.Module):
    """Its code names the batch size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, 3, 4) * 2 if x.shape[0] == 2 else x.reshape(-1, 3, 4) * 2


def test_a_batch_that_the_code_fixes_is_told_in_the_signature(tmp_path: Path) -> None:
    source = Source.of(FixedBatch(), (torch.randn(2, 12),))
    assert source.signature.free_batch
    write_artifact(source, Choice(runtime="eager"), tmp_path / "art")
    signature = read_artifact(tmp_path / "art").signature
    assert [p.shape for p in signature.inputs + signature.outputs] == [(2, 12), (2, 3, 4)]
    with pytest.raises(UsageError, match=r"takes the shape \(2, 12\)"):
        open_graph(tmp_path / "art").signature.check([np.zeros((3, 12), np.float32)])


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def test_code_that_cannot_be_exported_is_a_conversion_error(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"torch\.export can't follow the model's code"):
        write_artifact(Source.of(Branching(), (torch.ones(2, 3),)), Choice(runtime="eager"), tmp_path / "art")


def test_a_choice_that_is_not_offered_is_refused_with_those_that_are(tmp_path: Path) -> None:
    for choice, message in (
        (Choice(runtime="eager", precision=Precision.FP16), "'16'.*: 32, bf16"),
        (Choice(runtime="eager", mode="fast"), "'fast'.*: '', 'plain'"),
    ):
        with pytest.raises(UsageError, match=message):
            EagerRuntime().convert(_source(), choice, tmp_path, None)
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_an_input_belongs_to_the_caller(tmp_path: Path) -> None:
    write_artifact(Source.of(nn.Identity(), (torch.zeros(2, 3),)), Choice(runtime="eager"), tmp_path / "art")
    given = np.ones((2, 3), np.float32)
    (output,) = open_graph(tmp_path / "art").run([given])
    output += 1
    assert given.max() == 1


def test_streams_are_refused(tmp_path: Path) -> None:
    write_artifact(Source.of(nn.Identity(), (torch.zeros(2, 3),)), Choice(runtime="eager"), tmp_path / "art")
    with pytest.raises(UsageError, match="streams=2 does not apply"):
        open_graph(tmp_path / "art", Tuning(streams=2))


def test_a_forked_child_computes_alone_instead_of_waiting_for_threads_of_its_parent(tmp_path: Path) -> None:
    images = np.random.default_rng(0).uniform(size=(2, 3, 96, 96)).astype(np.float32)
    source = Source.of(nn.Conv2d(3, 32, 3), (images,))
    write_artifact(source, Choice(runtime="eager"), tmp_path / "art")
    graph = open_graph(tmp_path / "art", Tuning(threads=2))
    (expected,) = graph.run([images])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os._exit(0 if np.allclose(graph.run([images])[0], expected, atol=1e-5) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_broken_and_missing_programs_are_refused(tmp_path: Path) -> None:
    signature = _source().signature
    with pytest.raises(CheckpointError, match=r"program\.json' can't be loaded"):
        EagerRuntime().load(tmp_path, Choice(runtime="eager"), signature, Tuning())
    (tmp_path / "program.json").write_text("hello")
    with pytest.raises(CheckpointError, match=r"program\.json' can't be loaded"):
        EagerRuntime().load(tmp_path, Choice(runtime="eager"), signature, Tuning())
