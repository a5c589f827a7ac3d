"""A set full of odd and broken images goes through an epoch: nothing crashes, everything bad is named."""

import json
import os
import stat
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from boxwright.data.check import check_records
from boxwright.data.dataset import DetectionDataset
from boxwright.data.formats import read_records
from boxwright.data.loader import Loader
from boxwright.data.policy import policy_for
from boxwright.data.records import Records

GOOD = ("plain.jpg", "sixteen bits.png", "cmyk.jpg", "grey.jpg", "ünïcødé 猫.jpg", "huge.jpg", "alpha.png")
BAD = {"cut off.jpg": "truncated", "empty.jpg": "empty", "text.jpg": "unreadable"}


@pytest.fixture
def odd_set(tmp_path: Path) -> Records:
    folder = tmp_path / "set" / "images"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    photo = cv2.resize(rng.integers(0, 255, (8, 8, 3), np.uint8), (120, 80), interpolation=cv2.INTER_CUBIC)
    Image.fromarray(photo).save(folder / "plain.jpg")
    Image.fromarray(photo).save(folder / "ünïcødé 猫.jpg")
    Image.fromarray(photo).convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(photo).convert("L").save(folder / "grey.jpg")
    Image.fromarray(photo).convert("RGBA").save(folder / "alpha.png")
    Image.fromarray(cv2.resize(photo, (20_000, 60))).save(folder / "huge.jpg")
    (folder / "sixteen bits.png").write_bytes(cv2.imencode(".png", photo.astype(np.uint16) * 257)[1].tobytes())
    (folder / "cut off.jpg").write_bytes((folder / "plain.jpg").read_bytes()[:900])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("not a picture")
    images, annotations = [], []
    for i, name in enumerate((*GOOD, *BAD), start=1):
        height, width = (60, 20_000) if name == "huge.jpg" else (80, 120)
        images.append({"id": i, "file_name": name, "height": height, "width": width})
        annotations.append({"id": i, "image_id": i, "category_id": 1, "bbox": [10, 10, 40, 30], "iscrowd": 0})
    values = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
    (tmp_path / "set" / "instances.json").write_text(json.dumps(values))
    # Nothing may be written beside the data.
    for path in (folder, tmp_path / "set"):
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    return read_records(tmp_path / "set")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_training_goes_through_and_names_the_bad_ones(
    odd_set: Records, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = sorted(os.listdir(odd_set.root))
    dataset = DetectionDataset(odd_set, (96, 96), policy=policy_for("yolox_nano"))
    with Loader(dataset, batch_size=2, workers=workers, drop_last=False) as loader:
        batches = list(loader)
    assert sum(len(batch) for batch in batches) == len(odd_set)
    assert all(np.isfinite(batch.targets).all() for batch in batches)
    assert {Path(odd_set.relative_path(i)).name for i in dataset.bad_images} == set(BAD)
    for name in BAD:
        assert name in caplog.text
    assert sorted(os.listdir(odd_set.root)) == before


def test_the_linter_names_each_fault(odd_set: Records) -> None:
    report = check_records(odd_set)
    found = {Path(f.image).name: f.rule for f in report.errors}
    assert set(found) == set(BAD)
    for name, rule in BAD.items():
        assert rule in found[name], (name, found[name])
