import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from boxwright.core.errors import BudgetError, CheckpointError
from boxwright.optimize.page import make_page, make_plot
from boxwright.optimize.report import Report, Row, Settings

SETTINGS = Settings(machine="a cpu", threads=2, batch=8, metric="AP", max_drop=0.005, versions={"numpy": "2"})


def _row(method: str, **changes: Any) -> Row:
    values = {
        "method": method, "status": "successful", "latency_ms": 10.0, "p95_ms": 12.0, "accuracy": 0.3, "drop": 0.0,
        "drop_low": -0.001, "drop_high": 0.001, "peak_mb": 100.0, "size_mb": 3.5,
    }  # fmt: skip
    return Row(**values | changes)  # type: ignore[arg-type]


ORIGINAL = _row("original", latency_ms=30.0, p95_ms=33.0, drop_low=None, drop_high=None)
OVER = _row(
    "openvino_int8", status="over budget", latency_ms=4.0, accuracy=0.28, drop=0.02, drop_low=0.01, drop_high=0.03
)
FAILED = Row(method="jit_fp32", status="fail to convert", note="unsupported <operator> & more", log="logs/jit.log")
REPORT = Report(rows=(ORIGINAL, _row("bf16"), _row("openvino_fp32", latency_ms=8.0), OVER, FAILED), settings=SETTINGS)


def test_the_best_row_is_the_fastest_inside_the_budget() -> None:
    assert REPORT.best().method == "openvino_fp32"
    assert REPORT.best(accelerator="pytorch").method == "bf16"
    assert REPORT.best(precision="fp32", accelerator=["openvino"]).method == "openvino_fp32"


def test_the_budget_is_held_against_the_upper_end_and_the_original() -> None:
    near = _row("bf16", latency_ms=1.0, drop=0.004, drop_high=0.006)
    report = Report(rows=(ORIGINAL, near, _row("fp32", drop_high=0.0005)), settings=replace(SETTINGS, max_drop=None))
    assert report.best().method == "bf16"
    assert report.best(max_drop=0.005).method == "fp32"
    assert report.best(max_drop=0.006).method == "bf16"


def test_the_original_is_the_best_where_all_else_is_slower() -> None:
    assert Report(rows=(ORIGINAL, _row("bf16", latency_ms=50.0)), settings=SETTINGS).best().method == "original"


def test_no_candidate_inside_the_budget_is_an_error_that_names_the_nearest() -> None:
    report = Report(rows=(ORIGINAL, OVER, FAILED), settings=SETTINGS)
    with pytest.raises(
        BudgetError, match=r"max_drop=0\.005\. Nearest: openvino_int8, drop 0\.0200 .*4\.00 ms"
    ) as caught:
        report.best()
    assert caught.value.exit_code == 6
    assert report.best_method() is None
    assert report.to_dict()["best"] is None


def test_failed_candidates_alone_leave_the_original() -> None:
    assert Report(rows=(ORIGINAL, FAILED), settings=SETTINGS).best().method == "original"


def test_candidates_that_are_slow_or_crash_are_not_over_the_budget() -> None:
    slow = _row("openvino_fp32", status="early stopped", latency_ms=99.0)
    crashed = _row("bf16", status="fail to forward", latency_ms=None)
    for settings in (SETTINGS, replace(SETTINGS, max_drop=None)):
        assert Report(rows=(ORIGINAL, slow, crashed), settings=settings).best().method == "original"
    report = Report(rows=(ORIGINAL, slow, OVER), settings=SETTINGS)
    assert report.best().method == "original"  # one candidate is inside the budget, though slow
    with pytest.raises(BudgetError, match="No candidate was successful"):
        report.best(accelerator="openvino", precision="fp32")
    with pytest.raises(BudgetError, match="Nearest: openvino_int8"):
        Report(rows=(ORIGINAL, crashed, OVER), settings=SETTINGS).best()


def test_json_has_nine_fields_a_row() -> None:
    values = json.loads(json.dumps(REPORT.to_dict()))
    assert list(values) == ["rows", "best"]
    assert values["best"] == "openvino_fp32"
    for row in values["rows"]:
        assert list(row) == [
            "method", "status", "latency_ms", "p95_ms", "accuracy", "drop", "peak_mb", "size_mb", "note"
        ]  # fmt: skip


def test_the_table_shows_every_row_and_how_it_was_measured() -> None:
    table = REPORT.table()
    for row in REPORT.rows:
        assert re.search(rf"^{row.method} +{row.status}", table, re.MULTILINE)
    assert "0.0200 [0.0100, 0.0300]" in table
    assert "batch 8, 2 threads, a cpu" in table
    assert "unsupported <operator>" in table


RECIPE = {
    "quantized": ["a", "b"],
    "float": "sums",
    "activations": "uint8",
    "samples": 16,
    "keep_float": ["neck.x", "head.y"],
}
ONNX_RECIPE = {
    "quantized": ["a"],
    "quantisation": {"inputs": "8 bits", "float": "depthwise", "keep_float": ["b"]},
}


def test_the_conditions_say_if_layers_were_chosen_on_the_scored_data() -> None:
    kept = Report(rows=(ORIGINAL, _row("int8", kept=("a",))), settings=SETTINGS)
    assert "flatters" not in " ".join(REPORT.conditions())
    assert "layers were put back into float" in " ".join(kept.conditions())


def test_table_and_page_show_the_recipe_of_int8_and_the_log_of_what_failed() -> None:
    quantised = _row("openvino_int8", recipe=RECIPE, log="logs/openvino_int8.log")
    other = _row("onnxruntime_int8_integer", recipe=ONNX_RECIPE)
    report = Report(rows=(ORIGINAL, quantised, other, _row("bf16", recipe={"folded": 3}), FAILED), settings=SETTINGS)
    line = "2 layers in int8; in float: sums, by name neck.x, head.y; inputs: uint8; calibrated on 16 samples"
    table, page = report.table(), make_page(report)
    assert f"  openvino_int8: {line}\n" in table
    assert "  jit_fp32: log: logs/jit.log\n" in table
    assert "openvino_int8.log" not in table
    assert "  onnxruntime_int8_integer: 1 layers in int8; in float: depthwise, by name b; inputs: 8 bits\n" in table
    assert "bf16:" not in table
    assert line in page
    assert "log: logs/jit.log" in page


def test_a_saved_report_comes_back(tmp_path: Path) -> None:
    report = replace(REPORT, rows=(*REPORT.rows, _row("int8", kept=("a.b", "c"), recipe={"how": 1})))
    report.save(tmp_path / "new")
    assert Report.read(tmp_path / "new" / "report.json") == report
    (tmp_path / "new" / "report.json").write_text("{}")
    with pytest.raises(CheckpointError, match="can't be read"):
        Report.read(tmp_path / "new" / "report.json")


def _points(plot: str) -> dict[str, tuple[float, float]]:
    found = {}
    for group in ElementTree.fromstring(plot).iter("g"):
        circle, text = group.find("circle"), group.find("text")
        assert circle is not None
        assert text is not None
        found[str(text.text)] = (float(circle.get("cx", "")), float(circle.get("cy", "")))
    return found


def test_the_plot_has_a_point_for_each_timed_row_at_its_place() -> None:
    points = _points(make_plot(REPORT))
    assert set(points) == {"original", "bf16", "openvino_fp32", "openvino_int8"}
    assert points["openvino_int8"][0] < points["openvino_fp32"][0] < points["bf16"][0] < points["original"][0]
    assert points["openvino_int8"][1] > points["bf16"][1] == points["original"][1]  # less accurate is further down
    assert all(0 < x < 860 and 0 < y < 430 for x, y in points.values())


def test_the_budget_is_a_line_between_those_inside_and_those_outside() -> None:
    plot = make_plot(REPORT)
    line = next(e for e in ElementTree.fromstring(plot).iter("line") if e.get("class") == "budget")
    points = _points(plot)
    assert points["bf16"][1] < float(line.get("y1", "")) < points["openvino_int8"][1]


@pytest.mark.parametrize("rows", [(FAILED,), (ORIGINAL,), (replace(ORIGINAL, accuracy=None, drop=None),)])
def test_a_page_can_be_made_of_any_rows(rows: tuple[Row, ...]) -> None:
    plot = make_plot(Report(rows=rows, settings=SETTINGS))
    assert len(_points(plot)) == 1 if plot else rows == (FAILED,)


def test_the_page_needs_no_network_and_escapes_what_it_shows() -> None:
    page = make_page(REPORT)
    assert "unsupported &lt;operator&gt; &amp; more" in page
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)
    assert "<b>openvino_fp32</b>" in page
    assert page.count("<tr") == 1 + len(REPORT.rows)
