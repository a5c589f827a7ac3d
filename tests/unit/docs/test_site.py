"""The documentation: every link leads somewhere, the site builds without a warning, the notebooks are the tutorials."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify
from support.shared import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import make_docs
import make_notebooks

_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]*))?\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that is ready for the site generator."""
    folder = tmp_path_factory.mktemp("site")
    make_docs.prepare(folder)
    return folder


def find_anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {slugify(re.sub(r"[`*]|\]\([^)]*\)", "", title), "-") for title in titles}


def find_broken(page: Path, text: str | None = None) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of it."""
    broken = []
    for name, anchor in _LINK.findall(_CODE.sub("", text or page.read_text(encoding="utf-8"))):
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in find_anchors(target)):
            broken.append(f"{page.name}: {name}#{anchor}")
    return broken


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = sorted((site / "docs").rglob("*.md"))
    assert len(pages) > 20
    assert [link for page in pages for link in find_broken(page)] == []


def test_every_link_of_the_pages_at_the_top_leads_somewhere() -> None:
    assert [link for page in sorted(ROOT.glob("*.md")) for link in find_broken(page)] == []


def test_the_page_of_the_house_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "explanation" / "house.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`([\w/]+\.py)`", text))
    known = {path.relative_to(ROOT / "src/boxwright").as_posix() for path in (ROOT / "src/boxwright").rglob("*.py")}
    assert len(files) > 40
    assert [name for name in sorted(files) if not any(f"/{path}".endswith(f"/{name}") for path in known)] == []


def test_every_link_of_the_notebooks_leads_somewhere() -> None:
    for notebook in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert _LINK.search(text)
        assert find_broken(notebook, text) == []


def test_the_picture_of_the_rooms_shows_which_may_import_which() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    drawn: dict[str, list[str]] = {}
    picture = (ROOT / "docs" / "images" / "rooms.svg").read_text()
    for height, name in re.findall(r'<text x="\d+" y="(\d+)">(\w+)<', picture):
        drawn.setdefault(height, []).append(name)
    assert [" | ".join(row) for row in drawn.values()] == contracts[0]["layers"]


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One heading\n[a](#one-heading) [b](#two) [c](missing.md) [d](https://example.com) `[e](gone.md)`\n"
    )
    assert find_broken(page) == ["page.md: #two", "page.md: missing.md#"]


def test_every_block_is_run_or_checked_or_says_that_it_is_text() -> None:
    """Sybil takes `python` and `bash`; `py` is run against a server by tests/integration/test_serve_examples.py."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = {
        (language, page.name)
        for page in pages
        for language in re.findall(r"^```(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        if language not in ("python", "bash", "text", "yaml")
    }
    assert found == {("py", "serve.md")}


def test_commands_that_are_shown_with_their_output_are_ours() -> None:
    from boxwright.cli import build_parser

    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    commands = [line.removeprefix("$ boxwright ") for line in lines if line.startswith("$ boxwright ")]
    assert len(commands) >= 5
    for command in commands:
        build_parser().parse_args(shlex.split(command, comments=True))


def test_every_page_is_in_the_navigation(site: Path) -> None:
    config = (site / "zensical.toml").read_text(encoding="utf-8")
    pages = [str(path.relative_to(site / "docs")) for path in (site / "docs").rglob("*.md")]
    assert [name for name in pages if f'"{name}"' not in config] == []


def test_the_site_builds_without_a_warning(site: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(site / "zensical.toml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    assert "boxwright predict" in (site / "site" / "reference" / "cli.html").read_text(encoding="utf-8")


def test_the_reference_names_every_command_and_every_setting(site: Path) -> None:
    from boxwright import TrainConfig, __all__
    from boxwright.cli import VERBS

    pages = {
        name: (site / "docs" / "reference" / name).read_text(encoding="utf-8") for name in make_docs.generated_pages()
    }
    assert [verb for verb in VERBS if f"## boxwright {verb}" not in pages["cli.md"]] == []
    assert [name for name in TrainConfig.__dataclass_fields__ if f"| `{name}` |" not in pages["settings.md"]] == []
    assert [name for name in __all__ if name != "__version__" and f"\n## {name}\n" not in pages["python.md"]] == []


def test_the_notebooks_are_the_tutorials_of_today() -> None:
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        file = ROOT / "examples" / "notebooks" / f"{page.stem}.ipynb"
        made = make_notebooks.as_text(make_notebooks.make_notebook(page.read_text(encoding="utf-8")))
        assert file.read_text(encoding="utf-8") == made, "Run: python tools/make_notebooks.py"
