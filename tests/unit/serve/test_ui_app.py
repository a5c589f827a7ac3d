import asyncio
import json
import os
from pathlib import Path

import pytest
from support.asgi import call
from support.server import Reply

pytest.importorskip("starlette")

from boxwright.serve.ui.app import make_app
from boxwright.serve.ui.found import find_runs

TOKEN = "a-token"


def get(folder: Path, path: str) -> Reply:
    app = make_app([folder], TOKEN)
    return asyncio.run(call(app, "GET", path, headers={"host": "localhost:80", "cookie": f"boxwright_ui_80={TOKEN}"}))


def save_run(folder: Path, *pictures: int) -> str:
    """Write the files of a run, and return where the page of the run is."""
    (folder / "pictures").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "AP": 0.5, "AP50": 0.5, "AP75": 0.5}) + "\n")
    for step in pictures:
        (folder / "pictures" / f"step_{step:08d}.jpg").write_bytes(b"sheet %d" % step)
    (run,) = (run for run in find_runs([folder.parent]) if run.folder == folder)
    return f"/runs/{run.key}"


def test_a_run_keeps_its_address_when_another_one_becomes_newer(tmp_path: Path) -> None:
    first, second = save_run(tmp_path / "first"), save_run(tmp_path / "second")
    for newer in ("first", "second"):
        os.utime(tmp_path / newer / "metrics.jsonl", (2e9 + len(newer), 2e9 + len(newer)))
        assert "first" in get(tmp_path, first).body.decode().partition("<h1>")[2].partition("</h1>")[0]
        assert "second" in get(tmp_path, second).body.decode().partition("<h1>")[2].partition("</h1>")[0]
