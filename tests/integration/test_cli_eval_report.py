"""`boxwright eval --report` over the toy detector."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.browser import need_browser, open_browser
from support.fixtures import Command
from support.scenes import NAMES, save_labelled_set
from support.toy import save_toy_onnx, toy_spec

SCENES = [[("red", 1, 1)], [("green", 2, 2), ("blue", 5, 5)], [], [("red", 0, 7)]]
MARKUP = ("<img src=x onerror=run()>", "<b>green</b>", "blue&")


class Figures(HTMLParser):
    """Collects the pictures of the gallery: kind of error, and the class of each rectangle."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.rects: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if tag == "figure":
            self.kinds.append(str(given["data-kind"]))
            self.rects.append([])
        elif tag == "rect" and given.get("class") in ("found", "truth", "other"):
            self.rects[-1].append(str(given["class"]))


@pytest.fixture
def wrong_labels(tmp_path: Path) -> Path:
    """Return a set where a label is missing, one is of another class, and an object is nowhere to be seen."""
    folder = save_labelled_set(tmp_path / "data", SCENES)
    content = json.loads((folder / "instances.json").read_text())
    red, green, blue, _ = content["annotations"]
    red["category_id"] = 20
    blue["bbox"] = [0, 40, 8, 8]
    content["annotations"] = [red, green, blue]
    (folder / "instances.json").write_text(json.dumps(content))
    return folder


def test_the_report_shows_each_error_and_the_terminal_what_costs_most(
    boxwright: Command, toy_onnx: Path, wrong_labels: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    done = boxwright("eval", toy_onnx, "--data", wrong_labels, "--report", "--out", out)
    assert done.code == 0
    lines = done.out.splitlines()
    at = lines.index("Most AP is lost to:")
    assert lines[at + 1] == "  the right place, the wrong class: 24.8 AP50 points (1 boxes), mostly red"
    assert lines[-1] == f"report: {out / 'report.html'}"
    page = (out / "report.html").read_text()
    shown = Figures(page)
    assert {"missed", "background", "class", "missing", "wrong class"} == set(shown.kinds)
    assert shown.rects[shown.kinds.index("class")] == ["truth", "found"]
    assert shown.rects[shown.kinds.index("missed")][-1] == "truth"
    assert "data:image/jpeg;base64," in page
    assert not re.search(r'(src|href)="(?!data:image/jpeg)|url\(|@import', page)
    values = json.loads((out / "report.json").read_text())
    assert values["errors"]["class"]["count"] == values["errors"]["missed"]["count"] == 1
    assert {entry["fault"] for entry in values["suspects"]} == {"missing", "wrong class"}
    assert values["conditions"]["data"] == str(wrong_labels)


def test_names_with_markup_are_shown_as_text(boxwright: Command, tmp_path: Path) -> None:
    model = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec(names=MARKUP))
    scenes = [[("red", 1, 1)], [("green", 2, 2)]]
    folder = save_labelled_set(tmp_path / "<i>data</i>", scenes)
    content = json.loads((folder / "instances.json").read_text())
    for entry, name in zip(content["categories"], MARKUP, strict=True):
        entry["name"] = name
    for entry in content["images"]:
        name = f"<u>{entry['file_name']}"
        (folder / "images" / entry["file_name"]).rename(folder / "images" / name)
        entry["file_name"] = name
    content["annotations"] = []
    (folder / "instances.json").write_text(json.dumps(content))
    out = tmp_path / "out"
    assert boxwright("eval", model, "--data", folder, "--report", "--out", out, "--quiet").code == 0
    tags = Figures((out / "report.html").read_text()).tags
    assert {"figure", "svg"} <= tags
    assert tags.isdisjoint({"img", "u", "i"})


def test_json_names_the_report_and_its_folder_is_new_each_time(
    boxwright: Command, toy_onnx: Path, wrong_labels: Path
) -> None:
    pages = [
        json.loads(boxwright("eval", toy_onnx, "--data", wrong_labels, "--report", "--json").out)["report"]
        for _ in range(2)
    ]
    assert [Path(page).parts[-2:] for page in pages] == [("exp", "report.html"), ("exp2", "report.html")]
    assert len({Path(page).resolve() for page in pages}) == 2


def test_a_perfect_score_has_a_report_too(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    data = save_labelled_set(tmp_path / "data", SCENES)
    done = boxwright("eval", toy_onnx, "--data", data, "--report", "--out", tmp_path / "out")
    assert "  no error" in done.out.splitlines()
    page = (tmp_path / "out" / "report.html").read_text()
    assert Figures(page).kinds == []
    assert all(name in page for name in NAMES)


def test_a_folder_without_a_report_is_refused(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    done = boxwright("eval", toy_onnx, "--data", tmp_path, "--out", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "Add --report" in done.err


@pytest.mark.xdist_group("browser")
def test_the_pictures_are_filtered_by_error_and_class(
    boxwright: Command, toy_onnx: Path, wrong_labels: Path, tmp_path: Path
) -> None:
    pytest.importorskip("selenium")
    need_browser()
    assert boxwright("eval", toy_onnx, "--data", wrong_labels, "--report", "--out", tmp_path / "out").code == 0
    with open_browser(tmp_path) as browser:
        browser.open((tmp_path / "out" / "report.html").as_uri())

        def shown(error: str, name: str) -> list[str]:
            """Return the kinds of the pictures that are left after a choice of error and class."""
            browser.run(
                "const part = document.querySelector('.filtered');"
                "const [error, name] = part.querySelectorAll('select');"
                "error.value = given[0];"
                "name.value = [...name.options].find((option) => option.text === given[1]).value;"
                "error.dispatchEvent(new Event('change'));",
                error,
                name,
            )
            left = "return [...document.querySelectorAll('.filtered')[0].querySelectorAll('figure')]"
            return sorted(browser.run(f"{left}.filter((f) => f.offsetParent).map((f) => f.dataset.kind)"))

        assert shown("", "all") == ["background", "background", "class", "missed"]
        assert shown("missed", "all") == ["missed"]
        assert shown("", "green") == ["class"]
        assert shown("missed", "green") == []
        assert browser.complaints() == []
