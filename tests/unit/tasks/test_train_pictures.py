from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from support.scenes import save_labelled_set

from boxwright.data.formats import read_records
from boxwright.data.records import Records
from boxwright.tasks.train.pictures import LARGEST, drop_pictures, find_pictures, save_pictures

TILE_PX = 320
SCENES: list[list[tuple[str, int, int]]] = [[("red", 1, 1)], [("green", 2, 2), ("blue", 5, 5)], [], [("red", 0, 0)]]


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return read_records(save_labelled_set(tmp_path / "set", SCENES))


def state_of(records: Records, *found: tuple[int, tuple[float, ...], float]) -> dict[str, Any]:
    """The detections of an evaluator: the image's place, box and score of each."""
    return {
        "detection_image_ids": np.array([records.image_ids[at] for at, _, _ in found], np.int64),
        "detection_boxes_xywh": np.array([box for _, box, _ in found], np.float64).reshape(-1, 4),
        "detection_scores": np.array([score for _, _, score in found], np.float64),
        "detection_class_ids": np.zeros(len(found), np.int64),
    }


def draw(folder: Path, records: Records, *found: tuple[int, tuple[float, ...], float]) -> np.ndarray:
    save_pictures(folder, 1, records, state_of(records, *found))
    sheet = cv2.imread(str(find_pictures(folder)[1]))
    assert sheet is not None
    return sheet.astype(int)


def tiles_that_differ(a: np.ndarray, b: np.ndarray) -> list[int]:
    rows, columns = a.shape[0] // TILE_PX, a.shape[1] // TILE_PX
    parts = np.abs(a - b).max(axis=2).reshape(rows, TILE_PX, columns, TILE_PX).max(axis=(1, 3))
    return np.flatnonzero(parts > 60).tolist()


def test_a_detection_is_drawn_into_its_own_image_if_its_score_is_high_enough(tmp_path: Path, records: Records) -> None:
    none = draw(tmp_path, records)
    assert none.shape == (2 * TILE_PX, 2 * TILE_PX, 3)
    box = (10.0, 20.0, 30.0, 20.0)
    assert tiles_that_differ(none, draw(tmp_path, records, (2, box, 0.9), (0, box, 0.29))) == [2]


def test_labels_are_drawn_into_their_own_image(tmp_path: Path, records: Records) -> None:
    sheet = draw(tmp_path, records)
    labelled, bare = sheet[:TILE_PX, :TILE_PX], sheet[TILE_PX:, :TILE_PX]  # the first image and the third
    assert (labelled.min(axis=2) > 200).any()
    assert not (bare.min(axis=2) > 60).any()


def test_at_most_nine_images_are_drawn_and_one_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    many = read_records(save_labelled_set(tmp_path / "set", SCENES * 5))
    assert draw(tmp_path, many).shape == (3 * TILE_PX, 3 * TILE_PX, 3)
    for at in range(9):
        many.path(at).write_bytes(b"")
    assert draw(tmp_path, many.select([*range(4), 10])).shape == (TILE_PX, TILE_PX, 3)
    save_pictures(tmp_path, 2, many, state_of(many))
    assert list(find_pictures(tmp_path)) == [1]


def test_a_sheet_of_noise_is_small_enough(tmp_path: Path) -> None:
    records = read_records(save_labelled_set(tmp_path / "set", [[]] * 9))
    noise = np.random.default_rng(0)
    for at in range(9):
        pixels = noise.integers(0, 256, (TILE_PX, TILE_PX, 3), dtype=np.uint8)
        records.path(at).write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    save_pictures(tmp_path, 1, records, state_of(records))
    assert find_pictures(tmp_path)[1].stat().st_size <= LARGEST


def test_a_sheet_that_cannot_be_written_is_a_warning(
    tmp_path: Path, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pictures").write_text("a file")
    save_pictures(tmp_path, 1, records, state_of(records))
    assert "could not be written" in caplog.text
    assert find_pictures(tmp_path) == {}


def test_only_sheets_inside_the_run_are_found_in_order(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "pictures").mkdir(parents=True)
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    for name in (
        "step_00000010.jpg",
        "step_00000009.jpg",
        "step_100000000.jpg",
        "step_1.jpg",
        ".step_00000003.1.tmp.jpg",
    ):
        (run / "pictures" / name).write_bytes(b"x")
    (run / "pictures" / "step_00000011.jpg").symlink_to(tmp_path / "secret.jpg")
    (run / "pictures" / "step_00000012.jpg").mkdir()
    assert list(find_pictures(run)) == [9, 10, 100_000_000]
    drop_pictures(run, after=9)
    assert list(find_pictures(run)) == [9]
    other = tmp_path / "other"
    other.mkdir()
    (other / "pictures").symlink_to(run / "pictures")
    assert find_pictures(other) == {}
    assert find_pictures(tmp_path / "none") == {}
