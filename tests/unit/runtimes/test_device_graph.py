"""Models on a device, a made-up one over the CPU: what is captured, copied and padded, and that results are right."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from support.models import TinyDetector, tiny_detector, two_inputs
from support.pretend_device import PretendDevice
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError, MissingDependencyError, UsageError
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.devices.chosen import Chosen
from boxwright.runtimes import onnxruntime_
from boxwright.runtimes.artifact import open_graph, place_artifact, read_artifact, write_artifact
from boxwright.runtimes.base import Choice, Session, Tuning
from boxwright.runtimes.buckets import BucketGraph
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.device_graph import DeviceGraph, open_network_on, open_original_on
from boxwright.runtimes.eager import open_network
from boxwright.runtimes.onnxruntime_ import MODEL_FILE, OnnxGraph
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.source import Source
from boxwright.tasks.models import open_model
from boxwright.tasks.predict.predictor import Predictor, Thresholds

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SPEC = Spec(names=("a", "b", "c"), size_hw=(64, 96), category_ids=(2, 4, 8))


def images(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).integers(0, 256, (count, 3, 64, 96)).astype(np.float32)


@pytest.fixture(scope="module")
def network() -> TinyDetector:
    return tiny_detector()


@pytest.fixture
def source(network: TinyDetector) -> Source:
    return Source.of(network, (images(1),))


def convert(source: Source, folder: Path, pretended: PretendDevice, precision: str = "fp32") -> Path:
    choice = Choice(runtime="graph", precision=Precision.parse(precision), device=pretended.name)
    write_artifact(source, choice, folder, spec=SPEC)
    pretended.captured.clear()
    return folder


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_every_batch_size_gives_the_models_output(
    source: Source, pretended: PretendDevice, tmp_path: Path, precision: str
) -> None:
    graph = open_graph(convert(source, tmp_path / "a", pretended, precision))
    for count in (1, 3, 6, 3, 1):
        found = graph.run([images(count)])
        assert distance(found, source.run([images(count)])) < BOUNDS[Precision.parse(precision)]
        assert {a.dtype for a in found} == {np.dtype(np.float32)}
    assert [shapes[0][0] for shapes in pretended.captured] == [1, 4, 8], "each bucket once, when it is first needed"


def test_the_memory_of_each_capture_is_known(
    source: Source, pretended: PretendDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = open_graph(convert(source, tmp_path / "a", pretended))
    assert isinstance(graph, BucketGraph)
    with caplog.at_level("INFO", "boxwright"):
        graph.run([images(2)])
    assert isinstance(graph.inner, DeviceGraph)
    assert graph.inner.captured == {((2, 3, 64, 96),): 3 << 20}
    assert graph.device_bytes == 3 << 20
    assert "Captured for inputs of the shapes (2, 3, 64, 96): 3 MB more on cpu, 3 MB in all." in caplog.text


def test_what_was_returned_stays_when_the_graph_runs_again(
    source: Source, pretended: PretendDevice, tmp_path: Path
) -> None:
    graph = open_graph(convert(source, tmp_path / "a", pretended))
    first = graph.run([images(1)])
    kept = [a.copy() for a in first]
    graph.run([images(1) / 2])
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_bytes_become_floats_on_the_device(source: Source, pretended: PretendDevice, tmp_path: Path) -> None:
    graph = open_graph(convert(source, tmp_path / "a", pretended))
    as_bytes = np.ascontiguousarray(images(3).astype(np.uint8).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert distance(graph.run([as_bytes]), source.run([images(3)])) < 1e-5


def test_threads_share_one_graph_and_wait_as_they_should(
    source: Source, pretended: PretendDevice, tmp_path: Path
) -> None:
    folder = convert(source, tmp_path / "a", pretended)
    graph = open_graph(folder, Tuning(hint="throughput", streams=4))
    sizes = [1, 2, 3, 4] * 5
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: graph.run([images(n)]), sizes))
    for count, found in zip(sizes, results, strict=True):
        assert distance(found, source.run([images(count)])) < 1e-5
    in_order = list(graph.run_all([images(n)] for n in sizes))
    assert [len(found[0]) for found in in_order] == sizes
    assert all(pretended.waits[-len(sizes) :]), "many requests leave the cores to the decoders"
    pretended.waits.clear()
    open_graph(folder, Tuning(hint="latency")).run([images(1)])
    assert pretended.waits == [False]


def test_a_batch_that_does_not_fit_is_a_sentence(source: Source, pretended: PretendDevice, tmp_path: Path) -> None:
    graph = open_graph(convert(source, tmp_path / "a", pretended))
    type(pretended).full_above = 4
    with pytest.raises(
        CheckpointError, match=r"does not hold this model with .*\(8, 3, 64, 96\)\. Use a smaller batch"
    ):
        graph.run([images(5)])
    assert len(graph.run([images(4)])[0]) == 4


def test_graphs_of_too_many_sizes_are_dropped(pretended: PretendDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxwright.runtimes.device_graph._MOST_CAPTURED", 2)
    session = open_network_on(tiny_detector(), SPEC, Chosen(pretended.name))
    for count in (1, 2, 4, 4, 1):
        session(images(count))
    assert [shapes[0][0] for shapes in pretended.captured] == [1, 2, 4, 1]


def test_a_model_with_several_inputs_runs_too(pretended: PretendDevice, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs: list[Array] = [rng.normal(size=(2, 3, 8, 8)).astype(np.float32), rng.normal(size=(2, 5)).astype(np.float32)]
    source = Source.of(two_inputs(), (inputs[0],), {"vector": inputs[1]})
    write_artifact(source, Choice(runtime="graph", device=pretended.name), tmp_path / "a")
    found = open_graph(tmp_path / "a").run(inputs)
    assert distance([found[0], found[2]], [source.run(inputs)[0], source.run(inputs)[2]]) < 1e-5


def test_tensors_that_a_model_makes_itself_are_made_on_the_device(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.arange(x.shape[1], device=x.device)

    source = Source.of(Counting(), (np.ones((2, 3), np.float32),))
    write_artifact(source, Choice(runtime="graph"), tmp_path / "a")
    from boxwright.runtimes.device_graph import move_program
    from boxwright.runtimes.program import load_program

    program = move_program(load_program(tmp_path / "a"), torch.device("meta"))
    assert program(torch.ones(2, 3, device="meta"))[0].device.type == "meta"


def test_the_original_runs_there_unconverted(source: Source, network: TinyDetector, pretended: PretendDevice) -> None:
    graph = open_original_on(source, Chosen(pretended.name, 1))
    assert distance(graph.run([images(2)]), source.run([images(2)])) < 1e-6
    assert not pretended.captured
    assert not any(network is part for part in graph._function.modules())  # type: ignore[union-attr]


def test_weights_run_there_in_buckets(network: TinyDetector, source: Source, pretended: PretendDevice) -> None:
    session = open_network_on(tiny_detector(), SPEC, Chosen(pretended.name))
    found = session(images(3))
    assert distance([found], [np.concatenate(source.run([images(3)]), axis=2)]) < 1e-5
    assert pretended.captured == [[(4, 3, 64, 96)]]
    session.close()
    with pytest.raises(CheckpointError, match="session is closed"):
        session(images(3))


def test_an_artifact_says_which_device_it_is_for(source: Source, pretended: PretendDevice, tmp_path: Path) -> None:
    artifact = read_artifact(convert(source, tmp_path / "a", pretended))
    assert artifact.choice.device == pretended.name
    assert place_artifact(artifact, None) == place_artifact(artifact, "auto") == Chosen(pretended.name)
    assert place_artifact(artifact, f"{pretended.name}:1").number == 1
    open_model(tmp_path / "a", device=f"{pretended.name}:1").close()
    with pytest.raises(MissingDependencyError, match="is not here: there are 2"):
        open_model(tmp_path / "a", device=f"{pretended.name}:2")
    with pytest.raises(UsageError, match=r"is for 'cuda'. Leave it out, or convert .* --device cpu"):
        open_model(tmp_path / "a", device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_where_the_device_is_missing_the_error_says_the_way_out(source: Source, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("boxwright.devices.cuda.CudaDevice", PretendDevice)
        patch.setattr(PretendDevice, "captured", [], raising=False)
        patch.setattr(PretendDevice, "waits", [], raising=False)
        patch.setattr(PretendDevice, "full_above", 9, raising=False)
        write_artifact(source, Choice(runtime="graph", device="cuda"), tmp_path / "a", spec=SPEC)
    with pytest.raises(MissingDependencyError, match=r"for device='cuda'.* sees no CUDA device here.* --device cpu"):
        open_model(tmp_path / "a")


def test_a_runtime_for_the_cpu_alone_says_so(source: Source, pretended: PretendDevice, tmp_path: Path) -> None:
    for runtime in ("eager", "jit", "openvino"):
        with pytest.raises(UsageError, match=f"'{runtime}' does not run on device='cuda'. It offers: cpu"):
            write_artifact(source, Choice(runtime=runtime, device=pretended.name), tmp_path / runtime)
    with pytest.raises(UsageError, match="channels_last does not apply"):
        write_artifact(source, Choice(runtime="graph", device="cuda", channels_last=True), tmp_path / "b")


def test_layers_can_stay_in_float_in_fp16(source: Source, pretended: PretendDevice, tmp_path: Path) -> None:
    choice = Choice(runtime="graph", precision=Precision.FP16, device=pretended.name)
    plain = write_artifact(source, choice, tmp_path / "plain")
    assert plain.recipe["float32"] == []
    calibration = Calibration(samples=[(images(1),)], keep_float=("stem.0.conv",))
    kept = write_artifact(source, choice, tmp_path / "kept", calibration=calibration)
    assert kept.recipe["float32"] == ["stem.0.conv"]
    assert kept.distance != plain.distance


# The compiler takes long; its own tests make one package for the CPU.
@pytest.mark.more
def test_a_compiled_package_runs_in_buckets(source: Source, pretended: PretendDevice, tmp_path: Path) -> None:
    choice = Choice(runtime="compile", precision=Precision.BF16, device=pretended.name)
    artifact = write_artifact(source, choice, tmp_path / "a")
    assert artifact.recipe["device"] == "Pretended"
    pretended.captured.clear()
    graph = open_graph(tmp_path / "a")
    for count in (1, 3):
        assert distance(graph.run([images(count)]), source.run([images(count)])) < BOUNDS[Precision.BF16]
    assert [shapes[0][0] for shapes in pretended.captured] == [1, 4]


def test_without_its_provider_onnx_runtime_names_the_package(source: Source, tmp_path: Path) -> None:
    for mode, precision in (("", Precision.FP32), ("tensorrt", Precision.FP16)):
        choice = Choice(runtime="onnxruntime", precision=precision, mode=mode, device="cuda")
        with pytest.raises(MissingDependencyError, match="pip install onnxruntime-gpu"):
            write_artifact(source, choice, tmp_path / "a")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ONNX Runtime's CPU stand for its GPU."""
    monkeypatch.setattr(onnxruntime_, "_find_providers", lambda _path, _place: ["CPUExecutionProvider"])


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_an_onnx_file_for_a_gpu_gives_the_models_output(source: Source, tmp_path: Path, precision: Precision) -> None:
    choice = Choice(runtime="onnxruntime", precision=precision, device="cuda")
    artifact = write_artifact(source, choice, tmp_path / "a", spec=SPEC)
    assert artifact.distance is not None
    assert artifact.distance < BOUNDS[precision]
    graph = open_graph(tmp_path / "a")
    assert isinstance(graph, BucketGraph)
    assert distance(graph.run([images(3)]), source.run([images(3)])) < BOUNDS[precision]
    weights = onnx.load(tmp_path / "a" / MODEL_FILE).graph.initializer
    kind = onnx.TensorProto.FLOAT if precision is Precision.FP32 else onnx.TensorProto.FLOAT16
    assert {t.data_type for t in weights if len(t.dims) == 4} == {kind}


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(("precision", "int8"), [(Precision.FP16, False), (Precision.INT8, True)])
def test_an_engine_is_built_for_every_bucket_from_a_file_that_is_right(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, int8: bool
) -> None:
    built = {}

    def build(path: Path, target: Path, **settings: object) -> dict[str, object]:
        built.update(settings)
        target.write_bytes(path.read_bytes())
        return {"engine": "none"}

    monkeypatch.setattr(onnxruntime_, "build_engine", build)
    monkeypatch.setattr(onnxruntime_, "_refuse_without_tensorrt", lambda: None)
    choice = Choice(runtime="onnxruntime", precision=precision, mode="tensorrt", device="cuda")
    calibration = Calibration(samples=[(images(2),)]) if int8 else None
    artifact = write_artifact(source, choice, tmp_path / "a", calibration=calibration)
    assert artifact.distance is not None
    assert artifact.distance < BOUNDS[precision]
    assert built == {
        "half": True,
        "int8": int8,
        "profile": {
            "trt_profile_min_shapes": "images:1x3x64x96",
            "trt_profile_opt_shapes": "images:1x3x64x96",
            "trt_profile_max_shapes": "images:64x3x64x96",
        },
    }
    graph = onnx.load(tmp_path / "a" / "model.trt.onnx").graph
    zeros = {t.name: t for t in graph.initializer if t.name.endswith(("/zero", "/weight_zero"))}
    assert bool(zeros) == int8
    for tensor in zeros.values():
        assert tensor.data_type == onnx.TensorProto.INT8
        assert not onnx.numpy_helper.to_array(tensor).any(), "TensorRT rounds around zero"


def test_an_engine_has_one_size_of_image(network: TinyDetector) -> None:
    source = Source.of(network, (images(1),), axes=[(2, 3)])
    with pytest.raises(ConversionError, match="inputs of one size"):
        onnxruntime_._make_profile(source)


def test_a_provider_that_falls_back_is_noticed(monkeypatch: pytest.MonkeyPatch, source: Source, tmp_path: Path) -> None:
    write_artifact(source, Choice(runtime="onnxruntime"), tmp_path / "a")
    have = [*onnxruntime_.onnxruntime.get_available_providers(), "CUDAExecutionProvider"]
    monkeypatch.setattr(onnxruntime_.onnxruntime, "get_available_providers", lambda: have)
    session = onnxruntime_.onnxruntime.InferenceSession

    def fall_back(path: str, options: object, providers: list[object]) -> object:
        assert providers == [("CUDAExecutionProvider", {"device_id": 1, "use_tf32": 0}), "CPUExecutionProvider"]
        return session(path, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime_.onnxruntime, "InferenceSession", fall_back)
    with pytest.raises(MissingDependencyError, match="can't start its CUDAExecutionProvider"):
        OnnxGraph(tmp_path / "a" / MODEL_FILE, place=Chosen("cuda", 1))


def test_a_predictor_sends_bytes_and_finds_the_same(network: TinyDetector, pretended: PretendDevice) -> None:
    pictures = [np.random.default_rng(i).integers(0, 256, (50 + i, 70, 3), np.uint8) for i in range(3)]
    sent = []

    class Seen:
        def __init__(self, session: Session) -> None:
            self.session, self.spec = session, session.spec
            self.takes_bytes = getattr(session, "takes_bytes", False)

        def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
            sent.append(images.dtype)
            return self.session(images)

        def close(self) -> None: ...

    found = []
    for preprocessing in ("bgr255", "legacy"):
        spec = replace(SPEC, preprocessing=preprocessing)
        here = Predictor(Seen(open_network(tiny_detector(), spec)), Thresholds(conf=0))
        there = Predictor(Seen(open_network_on(tiny_detector(), spec, Chosen(pretended.name))), Thresholds(conf=0))
        for a, b in zip(here.predict_batch(pictures), there.predict_batch(pictures), strict=True):
            np.testing.assert_allclose(a.boxes_xyxy, b.boxes_xyxy, atol=1e-2)
            np.testing.assert_allclose(a.scores, b.scores, atol=1e-4)
            found.append(len(a))
    assert sent == [np.float32, np.uint8, np.float32, np.float32]
    assert all(found)
