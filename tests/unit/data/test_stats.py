import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.shared import shared_path

from boxwright.core.errors import DataError, MissingDependencyError
from boxwright.data.formats import read_records
from boxwright.data.records import Records
from boxwright.data.stats import compute_stats


@pytest.fixture
def records() -> Records:
    return Records.from_lists(
        root=".",
        paths=["a.jpg", "b.jpg", "c.jpg"],
        boxes_xyxy=[[[0, 0, 20, 10], [0, 0, 50, 50], [0, 0, 96, 96]], [[0, 0, 32, 32]], []],
        class_ids=[[0, 0, 2], [0], []],
        crowd=[[False, True, False], [False], []],
        names=["cat", "dog", "日本"],
        sizes_hw=[(100, 200), (100, 200), (0, 0)],
    )


def test_boxes_and_images_are_counted(records: Records) -> None:
    stats = compute_stats(records)
    assert (stats.images, stats.empty_images, stats.boxes, stats.crowds) == (3, 1, 4, 1)
    assert stats.boxes_per_class == (3, 0, 1)
    assert stats.images_per_class == (2, 0, 1)
    assert stats.boxes_per_image.tolist() == [3, 1, 0]
    assert stats.image_sizes_hw == {(100, 200): 2, (0, 0): 1}


def test_sizes_have_the_borders_of_coco(records: Records) -> None:
    # 32 by 32 is medium already, 96 by 96 large.
    assert compute_stats(records).sizes == {"small": 1, "medium": 2, "large": 1}


def test_shapes_leave_boxes_without_a_side_out() -> None:
    boxes = [[0, 0, 20, 10], [5, 5, 5, 9], [0, 0, float("nan"), 3], [0, float("-inf"), 4, float("inf")]]
    records = Records.from_lists(root=".", paths=["a"], boxes_xyxy=[boxes], class_ids=[[0] * 4], names=["x"])
    stats = compute_stats(records)
    assert stats.aspect_ratios.tolist() == [2]
    assert np.isfinite(stats.sides_px).all()


def test_the_numbers_as_text_and_json(records: Records) -> None:
    stats = compute_stats(records)
    lines = stats.lines()
    assert lines[0] == "3 images (1 without a box), 4 boxes (1 crowds), 3 classes"
    assert lines[1] == "boxes per image: 0 to 3, half of them 0.5 to 2, median 1"
    assert lines[4] == "sizes: small 1 (25%), medium 2 (50%), large 1 (25%)"
    assert lines[5] == "images (width by height): 200 by 100 (2), unknown (1)"
    assert lines[6] == f"cat        3 boxes       2 images  {'#' * 30}"
    assert lines[7] == "dog        0 boxes       0 images"
    values = json.loads(json.dumps(stats.to_dict()))
    assert values["classes"][2] == {"name": "日本", "boxes": 1, "images": 1}
    assert values["side_px"]["100%"] == 96
    assert values["image_sizes"][0] == {"height": 100, "width": 200, "images": 2}


def test_a_set_without_boxes_or_images_has_numbers_too(tmp_path: Path) -> None:
    empty = Records.from_lists(root=".", paths=["a"], boxes_xyxy=[[]], class_ids=[[]], names=["x"])
    for records in (empty, empty.select([])):
        stats = compute_stats(records)
        assert stats.boxes_per_class == (0,)
        assert "width by height: none" in stats.lines()
        json.dumps(stats.to_dict(), allow_nan=False)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_plot_is_an_image(tmp_path: Path, records: Records, ending: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"stats.{ending}"
    compute_stats(records).plot(file)
    start = file.read_bytes()[:5]
    assert start.startswith(b"\x89PNG") if ending == "png" else start == b"<?xml"
    compute_stats(records.select([2])).plot(file)


def test_a_plot_that_can_not_be_written_says_why(tmp_path: Path, records: Records) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DataError, match=r"stats\.nonsense"):
        compute_stats(records).plot(tmp_path / "stats.nonsense")
    with pytest.raises(DataError, match=r"stats\.png"):
        compute_stats(records).plot(tmp_path / "nowhere/stats.png")


def test_without_matplotlib_the_command_to_get_it_is_told(
    tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'boxwright\[plots\]'"):
        compute_stats(records).plot(tmp_path / "x.png")


def test_the_real_blood_cells_are_counted() -> None:
    stats = compute_stats(read_records(shared_path("data/bccd")))
    assert dict(zip(stats.names, stats.boxes_per_class, strict=True)) == {"Platelets": 361, "RBC": 4155, "WBC": 372}
    assert stats.sizes == {"small": 41, "medium": 1524, "large": 3323}
