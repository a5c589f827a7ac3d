import json
from pathlib import Path

import pytest
from support.scenes import save_labelled_set

from boxwright.core.errors import DataError
from boxwright.serve.ui.found import find_pages, find_runs, find_sets

SCENES = [[("red", 1, 1)], []]


def test_a_folder_is_a_set_or_holds_some(tmp_path: Path) -> None:
    one = save_labelled_set(tmp_path / "one", SCENES)
    save_labelled_set(tmp_path / "two", SCENES)
    (tmp_path / "none").mkdir()
    assert [found.folder.name for found in find_sets([tmp_path])] == ["one", "two"]
    assert [found.folder for found in find_sets([one])] == [one]
    assert find_sets([tmp_path / "none"]) == []


def test_a_folder_with_a_report_is_not_a_set(tmp_path: Path) -> None:
    for name, page in (("evaluated", "report"), ("compared", "compare")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{page}.json").write_text("{}")
        (tmp_path / name / f"{page}.html").write_text("")
    one = save_labelled_set(tmp_path / "one", SCENES)
    assert [found.folder for found in find_sets([tmp_path])] == [one]


def test_the_labels_are_read_once_and_a_fault_reaches_who_needs_them(tmp_path: Path) -> None:
    (good,) = find_sets([save_labelled_set(tmp_path / "good", SCENES)])
    (bad,) = find_sets([folder := save_labelled_set(tmp_path / "bad", SCENES)])
    (folder / "instances.json").write_text("{")
    assert good.prepare(30)
    assert good.records is good.records
    assert bad.prepare(30)
    with pytest.raises(DataError):
        bad.records  # noqa: B018


def test_pages_are_told_apart_by_the_files_beside_them(tmp_path: Path) -> None:
    for name, files in {
        "evaluation": {"report.html": "", "report.json": json.dumps({"AP": 0.25, "errors": {}})},
        "comparison": {"compare.html": "", "compare.json": json.dumps({"AP_change": {"value": -0.5}})},
        "training": {"report.html": "", "metrics.jsonl": ""},
        "optimisation": {"report.html": "", "report.json": "{"},
    }.items():
        (tmp_path / "deep" / name).mkdir(parents=True)
        for file, text in files.items():
            (tmp_path / "deep" / name / file).write_text(text)
    found = {page.path.parent.name: (page.kind, page.said) for page in find_pages([tmp_path, tmp_path / "deep"])}
    assert found == {
        "evaluation": ("evaluation", "AP 0.2500"),
        "comparison": ("comparison", "AP -0.5000"),
        "training": ("training", ""),
        "optimisation": ("optimisation", ""),
    }
    assert len(find_pages([tmp_path, tmp_path / "deep"])) == 4
    assert [run.live for run in find_runs([tmp_path])] == [True]
    (tmp_path / "deep" / "training" / "result.json").write_text("{}")
    assert [run.live for run in find_runs([tmp_path])] == [False]
