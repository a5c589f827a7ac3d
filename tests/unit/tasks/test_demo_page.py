"""The demo's page."""

import numpy as np

from boxwright.optimize.report import Report, Row, Settings
from boxwright.tasks.demo_page import NEXT, make_demo_page


def make_text(rows: tuple[Row, ...]) -> str:
    report = Report(rows=rows, settings=Settings(machine="a machine", threads=2, batch=1, metric="AP"))
    pictures = [np.zeros((32, 32, 3), np.uint8)] * 3
    scores = {"AP50": [(10.0, 0.2), (20.0, 0.8)], "AP": [(10.0, 0.1), (20.0, 0.5)]}
    return make_demo_page("What <was> done.", [("AP50", "0.800")], pictures, [(10, 5.0), (20, 2.5)], scores, report)


def test_the_page_shows_pictures_curves_speed_and_what_to_do_next() -> None:
    page = make_text(
        (
            Row(method="original", status="successful", latency_ms=20.0, accuracy=0.5),
            Row(method="openvino_fp32", status="successful", latency_ms=5.0, accuracy=0.5, drop=0.0),
        )
    )
    assert page.count("data:image/jpeg;base64,") == 3
    assert page.count("<svg") == 3
    assert "4.0x" in page
    assert "What &lt;was&gt; done." in page
    assert all(command in page for _, command in NEXT)
    assert "http" not in page.replace("http://www.w3.org", "")


def test_without_a_best_form_the_page_claims_no_speed() -> None:
    page = make_text(
        (
            Row(method="original", status="successful", latency_ms=20.0, accuracy=0.5),
            Row(method="openvino_fp32", status="fail to convert", note="no"),
        )
    )
    assert "as fast as plain PyTorch" not in page
    assert "fail to convert" in page
