"""The cost of each error against what tidecv 1.0.1 gives for the reference detections of the official nano."""

import gzip

import pytest
from support.coco_results import read_results
from support.shared import shared_path

from boxwright.evaluation.errors import judge, price

TIDECV = {
    "AP": 0.45907248, "class": 0.0777122, "location": 0.05564974, "both": 0.0135413, "duplicate": 0.00458889,
    "background": 0.02149311, "missed": 0.09802802, "all_false": 0.14551456, "all_missed": 0.22254962,
}  # fmt: skip


def test_the_costs_of_the_official_nanos_errors_on_coco_are_those_of_tidecv() -> None:
    folder = shared_path("data/coco_val300")
    results = gzip.decompress((folder / "reference_detections.json.gz").read_bytes())
    costs = price(judge(read_results(folder / "instances.json", results)))
    assert costs.cost | {"AP": costs.ap} == pytest.approx(TIDECV, abs=1e-6)
