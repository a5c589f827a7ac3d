import json
import re
from pathlib import Path

from boxwright.tasks.train.report import write_report

STEP = {"total": 5.0, "iou": 2.0, "objectness": 2.0, "classes": 1.0, "l1": 0.0, "lr": 0.01}
SCORE = {"AP": 0.25, "AP50": 0.5, "AP75": 0.2}


def write_run(folder: Path, rows: list[dict[str, float]], tail: str = "") -> str:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    (folder / "args.yaml").write_text("data: <img src=x onerror=run()>\n")
    write_report(folder, {"model": "<b>nano</b>"}, ["device <cpu>"])
    return (folder / "report.html").read_text()


def test_the_page_shows_curves_and_the_best_evaluation_and_no_markup_of_others(tmp_path: Path) -> None:
    rows = [{"step": s, **STEP} for s in range(1, 4)]
    scores = [{"step": 1, **SCORE}, {"step": 2, **SCORE, "AP": 0.75}, {"step": 3, **SCORE}]
    page = write_run(tmp_path / "<i>exp", [*rows, *scores])
    assert page.count("<svg") == 3
    assert re.search(r'<tr class="best"><td>2</td><td>0\.7500</td>', page)
    assert page.count('class="best"') == 1
    assert not re.search(r"<(img|b>nano|i>exp)|url\(|(src|href)=", page.replace("&lt;img src=", ""))


def test_a_step_that_was_repeated_counts_once_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    page = write_run(tmp_path / "exp", [{"step": 1, **SCORE}, {"step": 1, **SCORE, "AP": 0.5}], tail='{"step": 2, "A')
    assert "0.5000" in page
    assert "0.2500" not in page


def test_a_run_that_ended_before_its_first_step_has_a_page(tmp_path: Path) -> None:
    assert "best AP" in write_run(tmp_path / "exp", [])


def test_a_long_run_has_a_small_page(tmp_path: Path) -> None:
    page = write_run(tmp_path / "exp", [{"step": s, **STEP} for s in range(30_000)])
    assert len(page) < 200_000
