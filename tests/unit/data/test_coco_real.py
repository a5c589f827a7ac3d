from pathlib import Path

import pytest
from support.records import differences
from support.shared import shared_path

from boxwright.data.formats import read_records, write_records
from boxwright.vision.decode import read_image


@pytest.mark.parametrize(("name", "images", "boxes"), [("coco_val300", 300, 2289), ("coco_train_mini", 363, 3011)])
def test_real_coco_sets_load_and_survive_writing(tmp_path: Path, name: str, images: int, boxes: int) -> None:
    records = read_records(shared_path(f"data/{name}"))
    assert (len(records), len(records.boxes_xyxy), len(records.names)) == (images, boxes, 80)
    assert (records.category_ids[0], records.category_ids[-1]) == (1, 90)
    assert records.names[:2] == ("person", "bicycle")
    write_records(records, tmp_path, "coco", images="link")
    again = read_records(tmp_path)
    assert differences(again, records) == ["root"]
    assert again.path(5).resolve() == records.path(5).resolve()


def test_real_images_decode_to_the_size_that_the_json_says() -> None:
    records = read_records(shared_path("data/coco_val300"))
    for i in range(0, len(records), 30):
        assert read_image(records.path(i)).shape == (*records.size_hw(i), 3)
