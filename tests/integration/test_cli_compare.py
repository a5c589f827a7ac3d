"""`boxwright compare` over toy detectors."""

import json
import re
from pathlib import Path

import pytest
from support.fixtures import Command
from support.scenes import save_labelled_set
from support.toy import save_toy_onnx, toy_spec

SCENES = [[("red", 1, 1)], [("green", 2, 2), ("blue", 5, 5)], [], [("red", 0, 7)]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_labelled_set(tmp_path / "data", SCENES)


@pytest.fixture
def worse(tmp_path: Path) -> Path:
    """Return a detector with the colours the wrong way round: it takes red for blue, and blue for red."""
    return save_toy_onnx(tmp_path / "worse.onnx", spec=toy_spec(names=("blue", "green", "red")))


def test_a_model_equals_itself_and_passes_every_gate(boxwright: Command, toy_onnx: Path, data: Path) -> None:
    done = boxwright("compare", toy_onnx, toy_onnx, "--data", data, "--max-drop", "0", "--sure", "--json")
    assert done.code == 0
    values = json.loads(done.out)
    assert values["AP_change"] == {"value": 0, "low": 0, "high": 0}
    assert values["changed"] == []
    assert values["first"]["AP"] == values["second"]["AP"] == pytest.approx(1)
    assert values["first"]["size_mb"] == values["second"]["size_mb"] > 0
    assert min(values["first"]["latency_ms"], values["second"]["latency_ms"]) > 0


def test_a_worse_model_fails_the_gate_and_its_pictures_are_shown_side_by_side(
    boxwright: Command, toy_onnx: Path, worse: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = boxwright("compare", toy_onnx, worse, "--data", data, "--max-drop", "0.01", "--out", out)
    values = json.loads((out / "compare.json").read_text())
    drop = values["first"]["AP"] - values["second"]["AP"]
    assert drop > 0.01
    assert values["AP_change"]["value"] == pytest.approx(-drop)
    assert done.code == 6
    assert f"dropped by {drop:.4f}" in done.err
    assert "images    0 better, 3 worse, of 4" in done.out.splitlines()
    assert sorted(change["file"] for change in values["changed"]) == ["0001.png", "0002.png", "0004.png"]
    page = (out / "compare.html").read_text()
    assert page.count('class="pair"') == 3
    assert page.count("<use ") == page.count("data:image/jpeg;base64,") == 3
    assert 'class="false"' in page
    assert 'class="missed"' in page
    assert not re.search(r'(src|href)="(?!data:image/jpeg|#image-)|url\(|@import', page)


def test_a_better_model_passes_and_classes_say_where(
    boxwright: Command, toy_onnx: Path, worse: Path, data: Path
) -> None:
    done = boxwright("compare", worse, toy_onnx, "--data", data, "--max-drop", "0.01", "--json")
    assert done.code == 0
    values = json.loads(done.out)
    assert values["AP_change"]["value"] > 0
    changes = [change["value"] for change in values["per_class"].values() if change]
    assert sum(changes) / len(changes) == pytest.approx(values["AP_change"]["value"])
    assert {change["balance"] > 0 for change in values["changed"]} == {True}


def test_sure_needs_a_gate(boxwright: Command, toy_onnx: Path, data: Path) -> None:
    done = boxwright("compare", toy_onnx, toy_onnx, "--data", data, "--sure")
    assert done.code == 2
    assert "--max-drop" in done.err


def test_an_unreadable_image_is_left_out_of_both(boxwright: Command, toy_onnx: Path, data: Path) -> None:
    (data / "images" / "0002.png").write_text("no image")
    done = boxwright("compare", toy_onnx, toy_onnx, "--data", data, "--json")
    assert done.code == 3
    values = json.loads(done.out)
    assert (values["images"], values["failures"]) == (3, 1)


def test_names_with_markup_are_shown_as_text(boxwright: Command, tmp_path: Path) -> None:
    names = ("<img src=x onerror=run()>", "<b>green</b>", "blue&")
    content_of = save_labelled_set(tmp_path / "data", SCENES, names=("red", "green", "blue"))
    content = json.loads((content_of / "instances.json").read_text())
    for entry, name in zip(content["categories"], names, strict=True):
        entry["name"] = name
    (content_of / "instances.json").write_text(json.dumps(content))
    one = save_toy_onnx(tmp_path / "one.onnx", spec=toy_spec(names=names))
    other = save_toy_onnx(tmp_path / "<i>.onnx", spec=toy_spec(names=names[::-1]))
    assert boxwright("compare", one, other, "--data", content_of, "--out", tmp_path / "out").code == 0
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "&lt;img src=x onerror=run()&gt;" in page
    assert not re.search(r"<(img|i)\b", page)
