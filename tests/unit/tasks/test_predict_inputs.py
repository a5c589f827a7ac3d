import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from support.scenes import save_scene, save_video, scene

from boxwright.core.errors import DataError, UsageError
from boxwright.tasks.predict.inputs import EncodedImage, Failure, Frame, as_image, list_sources, source_folders


def read_sources(sources: Any, *, fit_hw: tuple[int, int] | None = None) -> Iterator[Frame | Failure]:
    for item in list_sources(sources):
        yield item.read(fit_hw) if isinstance(item, EncodedImage) else item


def _frames(sources: Any) -> list[Frame]:
    items = list(read_sources(sources))
    assert all(isinstance(item, Frame) for item in items), items
    return items  # type: ignore[return-value]


def _failure(sources: Any) -> Failure:
    (item,) = read_sources(sources)
    assert isinstance(item, Failure)
    return item


def test_an_image_file_is_one_still_frame(tmp_path: Path) -> None:
    path = save_scene(tmp_path / "a.png", ("red", 1, 2))
    for source in (path, str(path), [path], (str(path),)):
        (frame,) = _frames(source)
        assert (frame.source, frame.index) == (str(path), None)
        np.testing.assert_array_equal(frame.image, scene(("red", 1, 2)))


def test_a_folder_gives_its_images_and_videos_by_name_and_leaves_the_rest(tmp_path: Path) -> None:
    save_scene(tmp_path / "c.png")
    save_scene(tmp_path / "a.JPG".lower())
    save_video(tmp_path / "b.mp4", [scene(), scene()])
    save_scene(tmp_path / ".hidden.png")
    (tmp_path / "._b.mp4").write_bytes(b"what some systems leave beside a video")
    (tmp_path / "notes.txt").write_text("no image")
    save_scene(tmp_path / "deeper" / "d.png")
    assert [Path(f.source).name for f in _frames(tmp_path)] == ["a.jpg", "b.mp4", "b.mp4", "c.png"]


def test_a_glob_gives_its_matches_in_order_and_may_reach_deeper(tmp_path: Path) -> None:
    for name in ("b.png", "a.png", "x/c.png", "x/d.jpg"):
        save_scene(tmp_path / name)
    assert [Path(f.source).name for f in _frames(f"{tmp_path}/*.png")] == ["a.png", "b.png"]
    assert [Path(f.source).name for f in _frames(f"{tmp_path}/**/*.png")] == ["a.png", "b.png", "c.png"]


def test_a_file_whose_name_looks_like_a_pattern_or_a_camera_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_scene(tmp_path / "photo[1].png", ("red", 0, 0))
    save_scene(tmp_path / "~$draft.png", ("blue", 0, 0))
    (tmp_path / "7").write_bytes((tmp_path / "photo[1].png").read_bytes())
    assert [f.source for f in _frames(["photo[1].png", "~$draft.png", "7"])] == ["photo[1].png", "~$draft.png", "7"]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save_scene(tmp_path / "a.png")
    assert [f.source for f in _frames("~/a.png")] == [str(tmp_path / "a.png")]


def test_a_video_gives_numbered_frames_and_its_speed(tmp_path: Path) -> None:
    path = save_video(tmp_path / "clip.avi", [scene(), scene(), scene()], fps=12)
    frames = _frames(path)
    assert [f.index for f in frames] == [0, 1, 2]
    assert {f.fps for f in frames} == {12.0}
    assert {f.image.shape for f in frames} == {(64, 64, 3)}


def test_a_dash_is_one_image_on_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = save_scene(tmp_path / "a.png", ("green", 3, 3)).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    (frame,) = _frames("-")
    assert frame.source == "stdin"
    np.testing.assert_array_equal(frame.image, scene(("green", 3, 3)))
    assert "0 bytes" in str(_failure("-").error)


def test_bytes_are_an_encoded_image(tmp_path: Path) -> None:
    data = save_scene(tmp_path / "a.png", ("green", 3, 3)).read_bytes()
    assert [f.source for f in _frames([data, data])] == ["bytes 0", "bytes 1"]
    assert "'bytes 0'" in str(_failure(b"hello").error)


def test_arrays_of_every_usual_shape_become_bgr() -> None:
    colour = scene(("red", 0, 0))
    grey = np.full((5, 7), 9, np.uint8)
    with_alpha = np.dstack((colour, np.zeros((64, 64), np.uint8)))
    np.testing.assert_array_equal(as_image(colour), colour)
    np.testing.assert_array_equal(as_image(with_alpha), colour)
    for value in (grey, grey[..., None]):
        np.testing.assert_array_equal(as_image(value), np.full((5, 7, 3), 9, np.uint8))
    assert [f.source for f in _frames([colour, grey])] == ["array 0", "array 1"]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_a_pil_image_becomes_bgr(mode: str) -> None:
    image = Image.fromarray(scene(("red", 0, 0), ("blue", 1, 1))[..., ::-1]).convert(mode)
    np.testing.assert_array_equal(as_image(image), scene(("red", 0, 0), ("blue", 1, 1)))


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        object(),
        3.5,
        io.BytesIO(b"an open file"),
    ],
    ids=["float", "two channels", "a batch", "object", "a number", "an open file"],
)
def test_what_is_no_image_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"array source must be uint8|can't be read"):
        list(read_sources(value))


def test_an_array_without_pixels_fails_alone() -> None:
    for empty in (np.zeros((0, 5), np.uint8), np.zeros((5, 0, 3), np.uint8)):
        failure, frame = read_sources([empty, scene()])
        assert isinstance(failure, Failure)
        assert "no pixels" in str(failure.error)
        assert isinstance(frame, Frame)


def test_no_source_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="No source was given"):
        list(read_sources([]))


def _broken(folder: Path, kind: str) -> str:
    path = folder / {"text": "text.jpg", "half": "half.jpg", "empty": "empty.png", "video": "clip.mp4"}.get(kind, kind)
    if kind == "text":
        path.write_text("this is no picture")
    elif kind == "half":
        data = save_scene(path, ("red", 0, 0)).read_bytes()
        path.write_bytes(data[: len(data) * 2 // 3])
    elif kind == "empty":
        path.touch()
    elif kind == "video":
        path.write_bytes(b"no video")
    elif kind == "folder":
        path.mkdir()
    return str(path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("text", "not an image that OpenCV knows"),
        ("half", "cut off"),
        ("empty", "0 bytes"),
        ("video", "can't be opened"),
        ("folder", "holds no image and no video"),
        ("missing.jpg", "no such file"),
        ("missing.mp4", "no such file"),
        ("none*.jpg", "No file matches"),
        ("x" * 300 + ".jpg", "File name too long"),
        ("caf\udce9.jpg", "no such file"),
    ],
)
def test_an_input_that_cannot_be_read_says_why_and_the_others_go_on(tmp_path: Path, kind: str, message: str) -> None:
    good = save_scene(tmp_path / "good" / "a.png")
    broken = _broken(tmp_path, kind)
    first, failure, last = read_sources([good, broken, good])
    assert isinstance(first, Frame)
    assert isinstance(failure, Failure)
    assert isinstance(last, Frame)
    assert failure.source == broken
    assert message in str(failure.error)


def test_a_broken_image_in_a_folder_or_glob_fails_alone(tmp_path: Path) -> None:
    save_scene(tmp_path / "a.jpg")
    _broken(tmp_path, "half")
    save_scene(tmp_path / "z.jpg")
    for source in (tmp_path, f"{tmp_path}/*.jpg"):
        items = list(read_sources(source))
        assert [type(i).__name__ for i in items] == ["Frame", "Failure", "Frame"]
        assert items[1].source.endswith("half.jpg")


def test_a_video_that_is_cut_off_gives_its_frames_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = save_video(tmp_path / "whole.avi", [scene(("red", i % 8, 1)) for i in range(50)]).read_bytes()
    (tmp_path / "half.avi").write_bytes(data[: (data.index(b"movi") + data.index(b"idx1")) // 2])
    frames = _frames(tmp_path / "half.avi")
    assert 0 < len(frames) < 50
    assert f"ended after {len(frames)} frames; its header promises" in caplog.text


def test_a_video_without_a_frame_is_a_failure(tmp_path: Path) -> None:
    data = save_video(tmp_path / "whole.avi", [scene()] * 50).read_bytes()
    (tmp_path / "start.avi").write_bytes(data[: data.index(b"movi") + 4])
    assert "gave no frame" in str(_failure(tmp_path / "start.avi").error)


def test_a_video_whose_name_is_not_utf8_is_a_failure_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9.mp4"
    save_video(tmp_path / "clip.mp4", [scene()]).rename(path)
    assert "not valid UTF-8" in str(_failure(path).error)


@pytest.mark.parametrize(
    "text", ["ffconcat version 1.0\nfile near.avi\n", "#EXTM3U\n#EXTINF:1,\nnear.avi\n", "v=0\nc=IN IP4 127.0.0.1\n"]
)
def test_a_playlist_that_is_named_like_a_video_is_a_failure(tmp_path: Path, text: str) -> None:
    save_video(tmp_path / "near.avi", [scene(("red", 1, 2))] * 3)
    (tmp_path / "list.mp4").write_text(text)
    assert "list.mp4' is a playlist" in str(_failure(tmp_path / "list.mp4").error)


@pytest.mark.parametrize("camera", ["99999999999", 99999999999, -1])
def test_a_camera_that_cannot_exist_is_a_failure(camera: str | int) -> None:
    assert "There is no camera" in str(_failure(camera).error)


def test_an_iterator_of_sources_is_read_only_as_far_as_it_is_asked(tmp_path: Path) -> None:
    paths = [save_scene(tmp_path / f"{i}.png") for i in range(3)]
    taken = []

    def endless() -> Iterator[Path]:
        for path in paths:
            taken.append(path)
            yield path

    items = read_sources(endless())
    next(items)
    assert taken == paths[:1]


def test_frames_and_failures_pass_through() -> None:
    frame = Frame(source="mine", image=scene(), index=4)
    failure = Failure(source="other", error=DataError("gone"))
    assert list(read_sources([frame, failure])) == [frame, failure]


def test_the_folders_of_the_sources_are_known_beforehand(tmp_path: Path) -> None:
    for name in ("one/a.png", "two/b.png", "three/c.png"):
        save_scene(tmp_path / name)
    sources = [
        f"{tmp_path}/one",
        tmp_path / "two" / "b.png",
        f"{tmp_path}/th*/*.png",
        "-",
        "0",
        "rtsp://x/y",
        1,
        scene(),
    ]
    assert source_folders(sources) == {tmp_path / "one", tmp_path / "two", tmp_path / "three"}


def _jpeg(height: int, width: int) -> bytes:
    image = np.zeros((height, width, 3), np.uint8)
    image[: height // 2, : width // 2] = (10, 20, 200)
    return cv2.imencode(".jpg", image)[1].tobytes()


@pytest.mark.parametrize(
    ("size_hw", "decoded_hw"),
    [((100, 150), (100, 150)), ((128, 100), (64, 50)), ((300, 257), (75, 65)), ((1200, 512), (150, 64))],
)
def test_a_large_jpeg_is_decoded_smaller_but_never_smaller_than_what_fits(
    size_hw: tuple[int, int], decoded_hw: tuple[int, int], tmp_path: Path
) -> None:
    data = _jpeg(*size_hw)
    path = tmp_path / "large.jpg"
    path.write_bytes(data)
    for source in (data, path):
        (frame,) = read_sources(source, fit_hw=(64, 96))
        assert isinstance(frame, Frame)
        assert frame.image.shape[:2] == decoded_hw
        assert frame.full_size_hw == (None if decoded_hw == size_hw else size_hw)
        assert abs(int(frame.image[2, 2, 2]) - 200) < 8  # red where the full picture is red


def test_without_a_size_to_fit_and_for_other_formats_the_whole_picture_is_decoded() -> None:
    image = np.full((300, 300, 3), 7, np.uint8)
    png = cv2.imencode(".png", image)[1].tobytes()
    for frame in (*read_sources(png, fit_hw=(64, 64)), *read_sources(_jpeg(300, 300))):
        assert isinstance(frame, Frame)
        assert (frame.image.shape[:2], frame.full_size_hw) == ((300, 300), None)


def test_a_cut_jpeg_is_a_failure_when_it_is_decoded_smaller_too() -> None:
    (failure,) = read_sources(_jpeg(300, 300)[:-50], fit_hw=(64, 64))
    assert isinstance(failure, Failure)
    assert "cut off" in str(failure.error)


def test_a_fifo_or_a_device_is_a_failure_that_says_so(tmp_path: Path) -> None:
    save_scene(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    os.mkfifo(tmp_path / "c.mp4")
    (tmp_path / "d.jpg").symlink_to("/dev/zero")
    for source in (tmp_path, f"{tmp_path}/*"):
        first, *others = read_sources(source)
        assert isinstance(first, Frame)
        assert [Path(failure.source).name for failure in others] == ["b.png", "c.mp4", "d.jpg"]
        for failure, kind in zip(others, ("a FIFO", "a FIFO", "a device"), strict=True):
            assert isinstance(failure, Failure)
            assert f"it is {kind}" in str(failure.error)


def test_a_shells_pipe_is_read(tmp_path: Path) -> None:
    data = save_scene(tmp_path / "a.png").read_bytes()
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, data)
        os.close(write_end)
        (frame,) = read_sources(f"/dev/fd/{read_end}")
    finally:
        os.close(read_end)
    assert isinstance(frame, Frame)
    (failure,) = read_sources("/dev/fd/987654")
    assert isinstance(failure, Failure)


def test_a_video_with_too_large_frames_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = cv2.VideoWriter(str(tmp_path / "a.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 5, (96, 64))
    writer.write(np.zeros((64, 96, 3), np.uint8))
    writer.release()
    monkeypatch.setenv("BOXWRIGHT_MAX_PIXELS", "6143")
    (failure,) = read_sources(tmp_path / "a.avi")
    assert isinstance(failure, Failure)
    assert "96 x 64 pixels" in str(failure.error)


def test_an_empty_text_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_scene(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is empty"):
        list(list_sources(""))
    assert len(list(list_sources("."))) == 1
