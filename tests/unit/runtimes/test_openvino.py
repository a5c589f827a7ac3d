import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.models import Branching
from support.networks import lively_nano
from support.signal_stack import read_signal_stack
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError, UsageError
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice, Graph, Tuning
from boxwright.runtimes.parity import distance
from boxwright.runtimes.source import Source

openvino_ = pytest.importorskip("boxwright.runtimes.openvino_")
pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Both(NamedTuple):
    total: Tensor
    scaled: Tensor


class Pair(nn.Module):
    """Two inputs, one by keyword; nested outputs; a batch that goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)

    def forward(self, left: Tensor, *, right: Tensor, factor: float = 2.0) -> dict[str, Any]:
        hidden = self.first(left).relu()
        return {"both": Both(hidden + right, hidden * factor), "largest": [right.argmax(dim=1)]}


class Small(nn.Module):
    """A network of three layers: quick to convert."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 8, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


@pytest.fixture
def small() -> Source:
    torch.manual_seed(0)
    return Source.of(Small().eval(), (_images(1) / 255,))


@pytest.fixture(scope="module")
def nano() -> Source:
    return Source.of(lively_nano(), (_images(1),))


@pytest.fixture(scope="module")
def folder(nano: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted nano; tests must not change it."""
    path = tmp_path_factory.mktemp("openvino") / "artifact"
    write_artifact(nano, Choice(runtime="openvino"), path)
    return path


@pytest.fixture
def graph(folder: Path) -> Graph:
    return open_graph(folder, Tuning(threads=1))


def _images(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0, 255, (count, 3, 64, 96)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_batch_size_gives_the_models_outputs(graph: Graph, nano: Source, count: int) -> None:
    images = _images(count)
    outputs = graph.run([images])
    assert [o.shape[0] for o in outputs] == [count] * 3
    assert distance(outputs, nano.run([images])) < 1e-4


def test_more_batch_sizes_than_forms_still_give_the_models_outputs(graph: Graph, nano: Source) -> None:
    for count in range(1, 8):
        assert distance(graph.run([_images(count)]), nano.run([_images(count)])) < 1e-4


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_other_precisions_are_close_and_say_what_computes(small: Source, tmp_path: Path, precision: Precision) -> None:
    artifact = write_artifact(small, Choice(runtime="openvino", precision=precision), tmp_path / "a")
    assert artifact.distance is not None
    assert 0 < artifact.distance < 0.1
    wanted = "f16" if precision is Precision.FP16 else "bf16"
    assert artifact.recipe["inference"] in (wanted, "f32")
    assert ("note" in artifact.recipe) == (artifact.recipe["inference"] != wanted)


def test_half_precision_halves_the_file(small: Source, tmp_path: Path) -> None:
    sizes = {}
    for precision in (Precision.FP16, Precision.FP32):
        write_artifact(small, Choice(runtime="openvino", precision=precision), tmp_path / precision)
        sizes[precision] = (tmp_path / precision / "model.bin").stat().st_size
    assert sizes[Precision.FP16] < 0.6 * sizes[Precision.FP32]


def test_batch_normalisation_is_folded(folder: Path) -> None:
    kinds = {op.get_type_name() for op in openvino_.openvino.Core().read_model(folder / "model.xml").get_ops()}
    assert "Convolution" in kinds
    assert not kinds & {"BatchNormInference", "Divide", "Sqrt"}


def test_two_inputs_by_keyword_and_nested_outputs(tmp_path: Path) -> None:
    model = Pair().eval()
    left, right = torch.rand(2, 6), torch.rand(2, 4)
    source = Source.of(model, (left,), {"right": right, "factor": 3.0})
    write_artifact(source, Choice(runtime="openvino"), tmp_path / "a")
    graph = open_graph(tmp_path / "a")
    flat = graph.signature.flatten_call((left[:1].numpy(),), {"right": right[:1].numpy(), "factor": 3.0})
    result = graph.signature.build_result(graph.run(flat))
    expected = model(left[:1], right=right[:1], factor=3.0)
    np.testing.assert_allclose(result["both"].scaled, expected["both"].scaled.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(result["both"].total, expected["both"].total.detach().numpy(), atol=1e-5)
    assert result["largest"][0].dtype == np.int64
    assert result["largest"][0].tolist() == expected["largest"][0].tolist()


def test_a_transformer_block_with_a_fixed_shape(tmp_path: Path) -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    source = Source.of(block, (torch.rand(2, 5, 16),), free_batch=False)
    assert write_artifact(source, Choice(runtime="openvino"), tmp_path / "a").distance == pytest.approx(0, abs=1e-4)


def test_converting_leaves_the_log_level_of_the_program_alone(tmp_path: Path) -> None:
    before = logging.getLogger().level
    source = Source.of(nn.Linear(3, 2).eval(), (torch.rand(2, 3),))
    write_artifact(source, Choice(runtime="openvino"), tmp_path / "a")
    assert logging.getLogger().level == before


def test_a_transformer_block_follows_the_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    source = Source.of(block, (torch.rand(2, 5, 16),))
    write_artifact(source, Choice(runtime="openvino"), tmp_path / "a")
    more = np.random.default_rng(0).normal(size=(3, 5, 16)).astype(np.float32)
    assert distance(open_graph(tmp_path / "a").run([more]), source.run([more])) < 1e-4


@pytest.mark.parametrize("hint", ["latency", "throughput"])
def test_many_requests_come_back_in_order_also_a_smaller_last_one(folder: Path, nano: Source, hint: Any) -> None:
    requests = [[_images(2, seed)] for seed in range(7)] + [[_images(1, 7)]]
    graph = open_graph(folder, Tuning(threads=1, hint=hint, streams=2))
    results = list(graph.run_all(iter(requests)))
    assert len(results) == len(requests)
    for outputs, inputs in zip(results, requests, strict=True):
        assert distance(outputs, nano.run(inputs)) < 1e-4


def test_many_requests_are_read_no_further_than_needed(folder: Path) -> None:
    taken = []

    def endless() -> Any:
        while True:
            taken.append(len(taken))
            yield [_images(1, len(taken))]

    results = open_graph(folder, Tuning(threads=1, streams=2)).run_all(endless())
    for _ in range(3):
        next(results)
    results.close()
    assert len(taken) <= 3 + 2 + 1


def test_outputs_belong_to_the_caller(graph: Graph) -> None:
    first = graph.run([_images(1)])
    kept = [o.copy() for o in first]
    graph.run([_images(1, seed=1)])
    for mine, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(mine, copy)
        mine[:] = 0  # it may be written to
    np.testing.assert_array_equal(graph.run([_images(1)])[0], kept[0])


def test_threads_may_call_at_once(graph: Graph) -> None:
    expected = {seed: graph.run([_images(1, seed)])[0] for seed in range(4)}
    wrong: list[int] = []

    def work(seed: int) -> None:
        same = [np.array_equal(graph.run([_images(1, seed)])[0], expected[seed]) for _ in range(5)]
        wrong.extend([seed] * same.count(False))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_closed_graph_says_so(graph: Graph) -> None:
    graph.run([_images(1)])
    graph.close()
    graph.close()
    with pytest.raises(CheckpointError, match="session is closed"):
        graph.run([_images(1)])


def test_the_model_is_left_as_it_was(nano: Source, folder: Path) -> None:
    fresh = lively_nano()
    assert not nano.model.training
    for (key, value), other in zip(nano.model.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(value, other), key


def test_the_thread_limit_stays_with_openvino(folder: Path) -> None:
    before = torch.get_num_threads()
    open_graph(folder, Tuning(threads=2)).run([_images(1)])
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("tuning", "settings"),
    [
        (Tuning(threads=3), {"INFERENCE_NUM_THREADS": 3, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}),
        (Tuning(threads=2, streams=4, hint="throughput"), {"INFERENCE_NUM_THREADS": 8, "NUM_STREAMS": 4}),
        (Tuning(streams=2), {"NUM_STREAMS": 2}),
    ],
)
def test_tuning_becomes_settings(tuning: Tuning, settings: dict[str, Any]) -> None:
    found = openvino_.to_settings(Choice(runtime="openvino"), tuning)
    assert found | settings == found
    # Left alone, OpenVINO would compute in bf16 on a CPU that can.
    assert found["INFERENCE_PRECISION_HINT"] == "f32"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": Precision.FP64}, "no precision '64'"),
        ({"channels_last": True}, "channels_last does not apply"),
        ({"mode": "bf16"}, "no mode 'bf16' for precision '32'"),
        ({"mode": "fast", "precision": Precision.INT8}, "no mode 'fast'"),
        ({"precision": Precision.INT8}, "needs calibration"),
    ],
)
def test_what_is_not_offered_is_refused(nano: Source, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        openvino_.OpenvinoRuntime().convert(nano, Choice(runtime="openvino", **changes), tmp_path, None)


@pytest.mark.parametrize("tuning", [Tuning(threads=0), Tuning(streams=-1)])
def test_impossible_tunings_are_refused(folder: Path, tuning: Tuning) -> None:
    with pytest.raises(UsageError, match="not possible"):
        open_graph(folder, tuning)


def test_a_broken_file_is_refused(tmp_path: Path, nano: Source) -> None:
    (tmp_path / "model.xml").write_text("<net/>")
    with pytest.raises(CheckpointError, match=r"can't be read by OpenVINO"):
        openvino_.OpenvinoRuntime().load(tmp_path, Choice(runtime="openvino"), nano.signature, Tuning())


def test_a_missing_file_is_refused(tmp_path: Path, nano: Source) -> None:
    with pytest.raises(CheckpointError, match=r"no 'model.xml'"):
        openvino_.OpenvinoRuntime().load(tmp_path, Choice(runtime="openvino"), nano.signature, Tuning())


def test_a_model_that_openvino_cannot_read_is_a_conversion_error(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.svd(x)[1]

    with pytest.raises(ConversionError, match="OpenVINO can't read the model"):
        write_artifact(Source.of(Odd(), (torch.rand(2, 3, 3),)), Choice(runtime="openvino"), tmp_path / "a")


BINDING = """
import os, sys
from pathlib import Path
import torch
torch.rand(300, 300) @ torch.rand(300, 300)  # OpenMP binds the main thread now
bound = os.sched_getaffinity(0)
assert len(bound) == 1, bound
from boxwright.runtimes.artifact import open_graph, read_golden
folder = Path(sys.argv[1])
before = set(os.listdir("/proc/self/task"))
graph = open_graph(folder)
graph.run(read_golden(folder)[0])
started = set(os.listdir("/proc/self/task")) - before
cpus = set().union(*(os.sched_getaffinity(int(thread)) for thread in started))
print(len(cpus), os.sched_getaffinity(0) == bound)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cpus")
def test_threads_bound_for_torch_do_not_leave_openvino_on_one_core(small: Source, tmp_path: Path) -> None:
    write_artifact(small, Choice(runtime="openvino"), tmp_path / "a")
    count = len(os.sched_getaffinity(0))
    env = os.environ | {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "OMP_NUM_THREADS": str(count)}
    command = [sys.executable, "-c", BINDING, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    cpus, kept = done.stdout.split()
    assert int(cpus) > 1
    assert kept == "True"


FORKING = """
import os, signal, sys
from pathlib import Path
from boxwright.core.errors import WorkerError
from boxwright.runtimes.artifact import open_graph, read_golden
folder = Path(sys.argv[1])
graph, inputs = open_graph(folder), read_golden(folder)[0]
graph.run(inputs)
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        graph.run(inputs)
    except WorkerError as error:
        print(error, flush=True)
    graph.close()
    sys.exit(0)  # as any program ends: what OpenVINO holds is not freed here
assert os.waitpid(child, 0)[1] == 0
graph.run(inputs)
"""


def test_a_forked_child_gets_a_sentence_and_ends(small: Source, tmp_path: Path) -> None:
    write_artifact(small, Choice(runtime="openvino"), tmp_path / "a")
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "in each process after it is forked" in done.stdout


def test_signals_are_safe_after_models_have_come_and_gone(small: Source, tmp_path: Path) -> None:
    # OpenVINO's compiled models leave a signal stack behind and free it: the next Ctrl-C was a segmentation fault.
    before = read_signal_stack()
    write_artifact(small, Choice(runtime="openvino"), tmp_path / "out")
    graphs = [open_graph(tmp_path / "out", Tuning(threads=1)) for _ in range(3)]
    for count, graph in enumerate(graphs, 1):
        graph.run([_images(count) / 255])
        assert read_signal_stack() == before
    for graph in graphs:
        graph.close()
        assert read_signal_stack() == before


def test_a_branch_on_values_is_told_beside_what_the_cpu_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OldCpu(openvino_.openvino.Core):
        def get_property(self, *names: str) -> Any:
            return ["FP32"] if names[-1] == "OPTIMIZATION_CAPABILITIES" else super().get_property(*names)

    source = Source.of(Branching(), (torch.ones(2, 4),))
    monkeypatch.setattr(openvino_.openvino, "Core", OldCpu)
    recipe = write_artifact(source, Choice(runtime="openvino", precision=Precision.BF16), tmp_path / "art").recipe
    assert recipe["read"] == "traced"
    assert recipe["note"].startswith("frozen as the example took it: the branch at models.py:")
    assert recipe["note"].endswith("this CPU does not compute in bf16; f32 is used here")
