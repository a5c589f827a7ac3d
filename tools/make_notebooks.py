"""Write each tutorial of docs/tutorials as a notebook in examples/notebooks: python tools/make_notebooks.py.

Text becomes Markdown cells, blocks of Python and of commands become cells that run.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "tutorials"
FOLDER = ROOT / "examples" / "notebooks"
_LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def make_notebook(page: str) -> dict[str, Any]:
    """Return a page as the JSON values of a notebook without outputs."""
    cells: list[dict[str, Any]] = []
    end = 0
    for block in _BLOCK.finditer(page):
        _add(cells, "markdown", _move_links(page[end : block.start()]))
        _add(cells, "code", block[2] if block[1] == "python" else f"%%bash\n{block[2]}")
        end = block.end()
    _add(cells, "markdown", _move_links(page[end:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def as_text(notebook: dict[str, Any]) -> str:
    """Return a notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _move_links(text: str) -> str:
    """Return a part of a page with its links as they are from the folder of the notebooks."""
    return _LINK.sub(lambda link: f"]({os.path.relpath(PAGES / link[1], FOLDER)})", text)


def _add(cells: list[dict[str, Any]], kind: str, text: str) -> None:
    if text.strip():
        extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
        lines = text.strip().splitlines(keepends=True)
        cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines, **extra})


def main() -> None:
    """Write all notebooks."""
    FOLDER.mkdir(exist_ok=True)
    for page in sorted(PAGES.glob("*.md")):
        text = as_text(make_notebook(page.read_text(encoding="utf-8")))
        (FOLDER / f"{page.stem}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
