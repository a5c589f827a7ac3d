"""The cost of each error beside what tidecv itself gives for the same boxes.

What it gives for three sets is in `tests/unit/evaluation/test_errors.py` and `tests/golden/test_tide.py`.
"""

import gzip

import pytest
from support.coco_results import read_results
from support.crowds import make_evaluator, tidecv_costs
from support.shared import shared_path
from support.thirdparty import import_or_skip

from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.errors import judge, price

pytestmark = [pytest.mark.thirdparty, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("seed", range(20, 26))
def test_tidecv_gives_the_same_costs_for_planted_errors(seed: int) -> None:
    check(make_evaluator(seed))


def test_tidecv_gives_the_same_costs_for_the_official_nano_on_coco() -> None:
    folder = shared_path("data/coco_val300")
    results = gzip.decompress((folder / "reference_detections.json.gz").read_bytes())
    check(read_results(folder / "instances.json", results))


def check(evaluator: CocoEvaluator) -> None:
    import_or_skip("tidecv")
    costs = price(judge(evaluator))
    assert costs.cost | {"AP": costs.ap} == pytest.approx(tidecv_costs(evaluator), abs=1e-9)
