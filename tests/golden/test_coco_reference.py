"""AP against numbers that others produced: the COCO API's own demo, and a reference run of the official network."""

import gzip
from pathlib import Path

import pytest
from support.coco_results import evaluate_files
from support.shared import shared_path


def test_the_12_published_numbers_of_the_coco_demo_are_reproduced() -> None:
    folder = shared_path("data/eval_ref_cocoapi100")
    metrics = evaluate_files(
        folder / "instances_val2014_100.json", folder / "instances_val2014_fakebbox100_results.json"
    )
    assert metrics.lines() == [
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.505",
        " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.697",
        " Average Precision  (AP) @[ IoU=0.75      | area=   all | maxDets=100 ] = 0.573",
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = 0.586",
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area=medium | maxDets=100 ] = 0.519",
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area= large | maxDets=100 ] = 0.501",
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=  1 ] = 0.387",
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets= 10 ] = 0.594",
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.595",
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = 0.640",
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area=medium | maxDets=100 ] = 0.566",
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area= large | maxDets=100 ] = 0.564",
    ]
    # 9 of the 839 annotations are crowds.
    assert (metrics.images, metrics.truths, metrics.detections) == (100, 830, 734)


def test_the_reference_detections_of_the_official_nano_have_their_known_ap(tmp_path: Path) -> None:
    folder = shared_path("data/coco_val300")
    results = tmp_path / "results.json"
    results.write_bytes(gzip.decompress((folder / "reference_detections.json.gz").read_bytes()))
    metrics = evaluate_files(folder / "instances.json", results)
    assert pytest.approx(0.3031, abs=5e-5) == metrics.AP
    assert pytest.approx(0.4597, abs=5e-5) == metrics.AP50
    assert pytest.approx(0.3314, abs=5e-5) == metrics.AP75
    assert (metrics.images, metrics.detections, len(metrics.per_class)) == (300, 15837, 80)
