from pathlib import Path

import cv2
import numpy as np
import pytest
from support.scenes import save_scene
from support.toy import toy_spec

from boxwright.core.errors import DataError
from boxwright.tasks.images import ImageInputs, find_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images."""
    for i in range(3):
        save_scene(tmp_path / f"{i}.png", ("red", i, 0))
    return tmp_path


def test_images_are_found_in_a_folder_or_as_one_file(folder: Path) -> None:
    assert [p.name for p in find_images(folder)] == ["0.png", "1.png", "2.png"]
    assert find_images(folder / "1.png") == [folder / "1.png"]
    (folder / "none").mkdir()
    with pytest.raises(DataError, match=r"no images in .*none"):
        find_images(folder / "none")


def test_a_few_images_are_spread_over_all_of_them(folder: Path) -> None:
    paths = [folder / f"{i}.png" for i in range(10)]
    assert [p.stem for p in ImageInputs(paths, toy_spec(), most=3).paths] == ["0", "3", "6"]


def test_requests_have_the_batch_size_and_begin_again_to_fill_the_last(folder: Path) -> None:
    requests = ImageInputs(find_images(folder), toy_spec(), batch=2)
    assert len(requests) == 2
    assert [r[0].shape for r in requests] == [(2, 3, 64, 64)] * 2
    np.testing.assert_array_equal(requests[1][0][1], requests[0][0][0])
    first = cv2.imread(str(folder / "0.png"))
    np.testing.assert_array_equal(requests[0][0][0], first.transpose(2, 0, 1))
    assert len(requests[1:]) == 1
    with pytest.raises(IndexError):
        requests[2]


def test_an_unreadable_image_is_replaced_and_named_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "0.png").write_bytes(b"not an image")
    requests = ImageInputs(find_images(folder), toy_spec())
    for _ in range(2):
        np.testing.assert_array_equal(requests[0][0], requests[1][0])
    assert caplog.text.count("0.png") == 1


def test_only_unreadable_images_are_an_error(folder: Path) -> None:
    (folder / "0.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"None of the 1 images.*0\.png"):
        ImageInputs([folder / "0.png"], toy_spec()).stack(0, 1)


def test_without_images_scenes_are_drawn() -> None:
    requests = ImageInputs([], toy_spec())
    assert len(requests) == 0
    inputs = requests.stack(0, 2)
    assert inputs.shape == (2, 3, 64, 64)
    assert inputs[0].std() > 5
    assert not np.array_equal(inputs[0], inputs[1])
