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


def test_the_page_of_a_run_shows_its_last_pictures(tmp_path: Path) -> None:
    page = save_run(tmp_path / "run", 10, 20)
    shown = get(tmp_path, page).body.decode()
    assert f'src="{page}/pictures/20"' in shown
    assert 'href="?step=10#pictures"' in shown
    assert "Step 20 (2 of 2)." in shown
    reply = get(tmp_path, f"{page}/pictures/10")
    assert (reply.status, reply.headers["content-type"], reply.body) == (200, "image/jpeg", b"sheet 10")
    assert reply.headers["x-content-type-options"] == "nosniff"
    bare = save_run(tmp_path / "bare")
    assert "Pictures" not in get(tmp_path, bare).body.decode()


def test_a_page_that_says_what_is_wrong_has_the_tabs(tmp_path: Path) -> None:
    reply = get(tmp_path, "/data/9")
    assert (reply.status, b'href="/runs"' in reply.body) == (404, True)


def test_nothing_outside_of_a_run_is_served_as_its_picture(tmp_path: Path) -> None:
    page = save_run(tmp_path / "shown" / "run", 10)
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "shown" / "run" / "pictures" / "step_00000020.jpg").symlink_to(tmp_path / "secret.jpg")
    os.mkfifo(tmp_path / "shown" / "run" / "pictures" / "step_00000030.jpg")
    other = save_run(tmp_path / "elsewhere" / "run", 10)
    for path in (
        f"{page}/pictures/20", f"{page}/pictures/30", f"{page}/pictures/40", f"{page}/pictures/..%2f..%2fsecret.jpg",
        f"{page}/pictures/../../../secret.jpg", f"{other}/pictures/10", "/runs/0/pictures/10", "/runs/0",
    ):  # fmt: skip
        reply = get(tmp_path / "shown", path)
        assert (reply.status, b"secret" in reply.body) == (404, False), path
