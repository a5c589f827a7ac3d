import json
from pathlib import Path

import pytest

from boxwright.core.errors import DataError
from boxwright.data.formats import read_records


def test_a_json_and_its_folder_give_the_same_set(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    values = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [],
        "categories": [{"id": 1, "name": "x"}],
    }
    (tmp_path / "labels.json").write_text(json.dumps(values))
    assert read_records(tmp_path).differences(read_records(tmp_path / "labels.json")) == []


def test_a_folder_of_images_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.jpg").touch()
    with pytest.raises(DataError, match=r"holds 1 images but no labels\. A COCO json is needed"):
        read_records(tmp_path)


def test_an_empty_folder_a_wrong_file_and_nothing_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither images nor labels"):
        read_records(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(DataError, match=r"a\.txt' is no annotation file"):
        read_records(tmp_path / "a.txt")
    with pytest.raises(DataError, match="no data set at"):
        read_records(tmp_path / "nowhere")
