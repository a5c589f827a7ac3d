"""`boxwright demo`, with few steps."""

import json
from pathlib import Path

import pytest
from support.fixtures import Command


@pytest.mark.more
def test_the_demo_leaves_weights_an_artifact_pictures_and_a_page(boxwright: Command, tmp_path: Path) -> None:
    done = boxwright("demo", "--steps", "2", "--out", tmp_path / "demo", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert Path(result["checkpoint"]).exists()
    assert len(list(Path(result["pictures"]).iterdir())) == 12
    assert Path(result["best"], "artifact.json").exists()
    page = Path(result["page"]).read_text(encoding="utf-8")
    assert f"{result['AP50']:.3f}" in page
    assert (Path(result["page"]).parent / "optimize" / "report.html").exists()


def test_a_folder_that_holds_files_is_refused_before_anything_is_drawn(boxwright: Command, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = boxwright("demo", "--out", tmp_path / "full")
    assert done.code == 2
    assert "full" in done.err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]
