import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.scenes import NAMES, save_scene, save_video, scene
from support.toy import ToySession, save_toy_onnx, toy_spec
from torch import Tensor, nn

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, DataError, UsageError
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.source import Source
from boxwright.tasks.models import ModelOptions
from boxwright.tasks.predict.inputs import Failure, Frame
from boxwright.tasks.predict.predictor import Prediction, Predictor, Thresholds, predict

TWO_CORES = pytest.mark.skipif(read_cpu().usable_cores < 2, reason="needs two cores")


@pytest.fixture
def predictor() -> Predictor:
    return Predictor(ToySession())


def test_squares_are_found_where_they_are(predictor: Predictor) -> None:
    found = predictor(scene(("red", 1, 2), ("blue", 6, 0)))
    assert found.names == NAMES
    assert found.size_hw == (64, 64)
    assert {(name, *box.tolist()) for box, _, name in found} == {("red", 8, 16, 16, 24), ("blue", 48, 0, 56, 8)}
    assert found.scores.min() > 0.999


def test_boxes_are_in_pixels_of_the_original_image(predictor: Predictor) -> None:
    found = predictor(scene(("green", 5, 1), size_hw=(64, 128), cell=16))
    assert found.size_hw == (64, 128)
    np.testing.assert_allclose(found.boxes_xyxy, [[80, 16, 96, 32]])


def test_the_input_may_be_wider_than_high() -> None:
    predictor = Predictor(ToySession(toy_spec(size_hw=(32, 96))))
    found = predictor(scene(("green", 5, 1), size_hw=(64, 192), cell=16))
    np.testing.assert_allclose(found.boxes_xyxy, [[80, 16, 96, 32]])


def test_a_pil_image_and_the_bgr_array_of_it_give_the_same(predictor: Predictor, tmp_path: Path) -> None:
    array = scene(("red", 1, 1), ("blue", 3, 3))
    path = save_scene(tmp_path / "a.png", ("red", 1, 1), ("blue", 3, 3))
    expected = predictor(array).to_list()
    assert sorted(row["class"] for row in expected) == ["blue", "red"]
    with Image.open(path) as image:
        assert predictor(image).to_list() == expected
    for source in (path, str(path), path.read_bytes()):
        assert predictor(source).to_list() == expected


def test_images_of_different_sizes_share_a_batch(predictor: Predictor) -> None:
    images = [
        scene(("red", 0, 0)),
        scene(("red", 1, 1), size_hw=(128, 64), cell=16),
        scene(),
        scene(("blue", 7, 7), size_hw=(640, 640), cell=80),
    ]
    together = predictor.predict_batch(images)
    assert [found.to_list() for found in together] == [predictor(image).to_list() for image in images]
    assert [len(found) for found in together] == [1, 1, 0, 1]
    assert predictor.predict_batch([]) == []


def test_only_the_classes_asked_for_come_back() -> None:
    predictor = Predictor(ToySession(), Thresholds(classes=("blue",)))
    assert predictor(scene(("red", 1, 1), ("blue", 3, 3))).labels == ["blue"]


def test_one_class_may_be_given_as_a_plain_name() -> None:
    predictor = Predictor(ToySession(), Thresholds(classes="blue"))
    assert predictor(scene(("red", 1, 1), ("blue", 3, 3))).labels == ["blue"]


def test_a_model_that_gives_nan_is_an_error_and_not_nothing_found() -> None:
    class Broken(ToySession):
        def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
            return np.full_like(super().__call__(images), np.nan)

    with pytest.raises(CheckpointError, match="not a number"):
        Predictor(Broken())(scene(("red", 1, 1)))


def test_boxes_of_two_classes_in_one_place_both_stay_unless_asked_otherwise(tmp_path: Path) -> None:
    model = save_toy_onnx(tmp_path / "toy.onnx", twins=True, spec=toy_spec())
    image = scene(("red", 0, 0), ("blue", 1, 0))
    assert sorted(predict(model, image).labels) == ["blue", "red"]
    assert len(predict(model, image, class_agnostic=True)) == 1


def test_an_unknown_class_is_refused_before_the_first_image() -> None:
    with pytest.raises(UsageError, match=r"Unknown class 'blu'\. Did you mean 'blue'"):
        Predictor(ToySession(), Thresholds(classes=("blu",)))


@pytest.mark.parametrize("wrong", [{"conf": -0.1}, {"conf": 1.1}, {"nms": 2}, {"nms": float("nan")}])
def test_a_threshold_outside_0_to_1_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        Thresholds(**wrong)  # type: ignore[arg-type]


def test_the_thresholds_decide_what_stays() -> None:
    # Half the light: purity 127 gives a logit of about -4.6.
    dim = (scene(("red", 1, 1)) // 2).astype(np.uint8)
    assert len(Predictor(ToySession(), Thresholds(conf=0.25))(dim)) == 0
    assert len(Predictor(ToySession(), Thresholds(conf=0.00005))(dim)) == 1


def test_one_call_is_one_image(predictor: Predictor, tmp_path: Path) -> None:
    paths = [save_scene(tmp_path / "two" / f"{i}.png") for i in range(2)]
    video = save_video(tmp_path / "clip.mp4", [scene()])
    for source in (tmp_path / "two", paths, video):
        with pytest.raises(UsageError, match="is not one image"):
            predictor(source)
    with pytest.raises(DataError, match="no such file"):
        predictor("missing.jpg")


def test_legacy_weights_see_rgb_and_others_bgr() -> None:
    image = scene(("red", 0, 0))
    for preprocessing, expected in (
        ("bgr255", [0, 0, 255]),
        ("legacy", [(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0 - 0.406) / 0.225]),
    ):
        session = ToySession(toy_spec(preprocessing=preprocessing))
        Predictor(session)(image)
        (given,) = session.inputs
        assert given.shape == (1, 3, 64, 64)
        np.testing.assert_allclose(given[0, :, 0, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_a_stream_keeps_the_order_around_a_failure(tmp_path: Path, batch: int, workers: int) -> None:
    predictor = Predictor(ToySession(), workers=workers)
    good = [save_scene(tmp_path / f"{i}.png", ("red", i, i)) for i in range(5)]
    sources = [good[0], good[1], tmp_path / "missing.png", *good[2:]]
    items = list(predictor.stream(sources, batch=batch))
    assert [type(item) for item in items] == [Prediction, Prediction, Failure, Prediction, Prediction, Prediction]
    corners = [item.detections.boxes_xyxy[0, 0] for item in items if isinstance(item, Prediction)]
    assert corners == [0, 8, 16, 24, 32]


def test_one_bad_frame_does_not_take_its_batch_with_it(predictor: Predictor) -> None:
    frames = [
        Frame(source="a", image=scene(("red", 0, 0))),
        Frame(source="b", image=np.zeros((0, 4, 3), np.uint8)),
        Frame(source="c", image=scene(("red", 1, 1))),
    ]
    items = list(predictor.stream(frames, batch=3))
    assert [type(item) for item in items] == [Prediction, Failure, Prediction]
    assert isinstance(items[1], Failure)
    assert items[1].source == "b"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_stream_reads_no_further_than_a_batch_for_each_worker_ahead(batch: int, workers: int) -> None:
    predictor, read = Predictor(ToySession(), workers=workers), 0

    def endless() -> Iterator[Frame]:
        nonlocal read
        while True:
            read += 1
            yield Frame(source="camera 0", image=scene(), index=read - 1)

    results = predictor.stream(endless(), batch=batch)
    for done in range(1, 10):
        next(results)
        assert read <= done + batch - 1 + (0 if workers == 1 else workers * batch)
    results.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("boxwright-predict")]


class Meeting(ToySession):
    """A session whose first two calls wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self._together = threading.Barrier(2, timeout=20)
        self._calls = itertools.count()

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        if next(self._calls) < 2:
            self._together.wait()
        return super().__call__(images)


def test_two_workers_are_in_the_network_at_the_same_time() -> None:
    pictures = [scene(("red", i, i)) for i in range(4)]
    items = list(Predictor(Meeting(), workers=2).stream(pictures))
    assert [item.detections.boxes_xyxy[0, 0] for item in items if isinstance(item, Prediction)] == [0, 8, 16, 24]


def test_what_a_worker_raises_comes_out_of_the_stream() -> None:
    class Broken(ToySession):
        def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
            raise CheckpointError("no more")

    with pytest.raises(CheckpointError, match="no more"):
        list(Predictor(Broken(), workers=2).stream([scene()] * 5))


@pytest.mark.parametrize("batch", [1, 3])
def test_what_was_read_before_a_source_failed_comes_out_first(batch: int) -> None:
    def broken() -> Iterator[Frame]:
        for index in range(5):
            yield Frame(source="camera 0", image=scene(("red", index, index)), index=index)
        raise ConnectionError("gone")

    results = Predictor(ToySession(), workers=2).stream(broken(), batch=batch)
    found = [next(results) for _ in range(5)]
    assert [item.frame.index for item in found if isinstance(item, Prediction)] == [0, 1, 2, 3, 4]
    with pytest.raises(ConnectionError, match="gone"):
        next(results)


def test_closing_ends_the_workers_of_a_stream_that_goes_on() -> None:
    predictor = Predictor(ToySession(), workers=2)
    results = predictor.stream(Frame(source="camera 0", image=scene(), index=i) for i in itertools.count())
    next(results)
    predictor.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("boxwright-predict")]


@TWO_CORES
def test_a_file_is_loaded_for_several_workers(toy_onnx: Path) -> None:
    pictures = [scene(("red", i, i)) for i in range(7)]
    with Predictor.load(toy_onnx) as one, Predictor.load(toy_onnx, workers=2) as many:
        found = [[item.detections.to_list() for item in p.stream(pictures)] for p in (one, many)]  # type: ignore[union-attr]
    assert found[0] == found[1]
    assert len(found[0]) == 7


@pytest.mark.parametrize("hint", ["latency", "throughput"])
def test_a_hint_changes_no_result(toy_onnx: Path, hint: Any) -> None:
    pictures = [scene(("red", i, i)) for i in range(7)]
    with Predictor.load(toy_onnx) as plain, Predictor.load(toy_onnx, hint=hint) as arranged:
        found = [[item.detections.to_list() for item in p.stream(pictures, batch=3)] for p in (plain, arranged)]  # type: ignore[union-attr]
    assert found[0] == found[1]
    assert len(found[0]) == 7
    assert plain.arrangement is None
    assert arranged.arrangement is not None
    cores = read_cpu().usable_cores
    assert arranged.arrangement.side_by_side == (1 if hint == "latency" else cores)


class Pixels(nn.Module):
    """Takes the first pixels of a picture for boxes and scores."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(1).flatten(1)[:, : 84 * 8].reshape(-1, 84, 8) / 255


@TWO_CORES
def test_a_hint_may_mean_processes_of_the_models_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    cpu = read_cpu()
    cores = tuple(replace(core, node=node) for node, core in enumerate(cpu.cores[:2]))  # two nodes of one core each
    cpu = replace(cpu, all_cores=cores, allowed=tuple(c for core in cores for c in core.cpus))
    monkeypatch.setattr("boxwright.tasks.models.read_cpu", lambda: cpu)
    pictures = [scene(("red", i, 0)) for i in range(5)]
    source = Source.of(Pixels(), (np.zeros((1, 3, 64, 64), np.float32),))
    spec = toy_spec(output="scores")
    write_artifact(source, Choice(runtime="openvino"), tmp_path / "art", spec=spec)
    load = partial(Predictor.load, tmp_path / "art", on_mismatch="ignore", thresholds=Thresholds(conf=0.01))
    with load() as plain, load(hint="throughput") as arranged:
        before, after = [list(p.stream(pictures, batch=2)) for p in (plain, arranged)]
        assert arranged.arrangement is not None
        assert arranged.arrangement.cpus == tuple(core.cpus for core in cores)
        assert not arranged.arrangement.here
    for one, other in zip(before, after, strict=True):
        assert isinstance(one, Prediction)
        assert isinstance(other, Prediction)
        assert one.detections.to_list() == other.detections.to_list() != []
    with pytest.raises(CheckpointError, match="closed"):
        arranged(pictures[0])


def test_hints_that_make_no_sense_are_refused(toy_onnx: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'fast'.* latency, throughput"):
        Predictor.load(toy_onnx, hint="fast")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"hint='latency'.*workers=2"):
        Predictor.load(toy_onnx, workers=2, hint="latency")
    (tmp_path / "weights.pth").touch()
    with pytest.raises(UsageError, match=r"hint='latency'.*weights\.pth"):
        Predictor.load(tmp_path / "weights.pth", hint="latency")


def test_impossible_numbers_of_workers_are_refused(toy_onnx: Path) -> None:
    with pytest.raises(UsageError, match="workers=0 must be at least 1"):
        Predictor.load(toy_onnx, workers=0)
    with pytest.raises(UsageError, match=r"workers=9999 is more than the \d+ cores"):
        Predictor.load(toy_onnx, workers=9999)


def test_workers_are_for_converted_models(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.touch()
    with pytest.raises(UsageError, match=r"workers=2 does not apply to weights\.pth"):
        Predictor.load(path, workers=2)


def test_the_network_sees_whole_batches_and_the_rest() -> None:
    session = ToySession()
    list(Predictor(session).stream([scene()] * 7, batch=3))
    assert [len(images) for images in session.inputs] == [3, 3, 1]


def test_a_batch_of_nothing_is_refused(predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="batch=0"):
        next(predictor.stream(scene(), batch=0))


def test_leaving_the_with_block_closes_the_session() -> None:
    session = ToySession()
    with Predictor(session):
        assert not session.closed
    assert session.closed


@pytest.mark.parametrize("workers", [1, 2])
def test_closing_ends_a_running_stream(workers: int) -> None:
    predictor = Predictor(ToySession(), workers=workers)
    results = predictor.stream([scene(("red", 1, 2))] * 20)
    assert isinstance(next(results), Prediction)
    predictor.close()
    assert list(results) == []
    with pytest.raises(CheckpointError, match="closed"):
        next(predictor.stream(scene()))


def test_closing_in_another_thread_ends_a_stream_that_waits_for_results() -> None:
    class Blocking(ToySession):
        entered, leave = threading.Event(), threading.Event()

        def __call__(self, images: Any) -> Any:
            self.entered.set()
            self.leave.wait(20)
            return super().__call__(images)

    session = Blocking()
    predictor = Predictor(session, workers=2)
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.extend(predictor.stream([scene()] * 20)))
    reader.start()
    assert session.entered.wait(20)
    closer = threading.Thread(target=predictor.close)
    closer.start()
    session.leave.set()
    for thread in (reader, closer):
        thread.join(20)
        assert not thread.is_alive()
    assert len(found) < 20


def test_predict_opens_a_file_and_gives_the_detections(toy_onnx: Path) -> None:
    assert predict(toy_onnx, scene(("red", 1, 2)), conf=0.5).labels == ["red"]


def test_a_loaded_file_takes_the_users_names(toy_onnx: Path) -> None:
    with Predictor.load(toy_onnx, options=ModelOptions(names=("a", "b", "c"))) as predictor:
        assert predictor(scene(("blue", 1, 2))).labels == ["c"]
        assert predictor.names == predictor.session.spec.names == ("a", "b", "c")


def test_a_scaled_decoding_gives_boxes_of_the_full_picture() -> None:
    picture = scene(("green", 5, 1), size_hw=(256, 512), cell=64)
    data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes()
    whole, scaled = Predictor(ToySession()), Predictor(ToySession(), scaled_decode=True)
    found = scaled(data)
    assert found.size_hw == (256, 512)
    assert len(found) == len(whole(data)) == 1
    np.testing.assert_allclose(found.boxes_xyxy, [[320, 64, 384, 128]])
    (prediction,) = scaled.stream(data)
    assert isinstance(prediction, Prediction)
    assert prediction.frame.image.shape[:2] == (32, 64)  # an eighth: the network of 64 x 64 sees no more
