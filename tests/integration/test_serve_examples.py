"""The programs of docs/how-to/serve.md that talk to a server, run as they stand but for its address."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scenes import save_scene
from support.server import Server
from support.shared import ROOT
from support.toy import save_toy_onnx, toy_spec

pytest.importorskip("uvicorn")
pytest.importorskip("tritonclient")
PAGE = (ROOT / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    save_toy_onnx(folder / "toy.onnx", spec=toy_spec())
    with Server(f"best={folder / 'toy.onnx'}", "--workers", 1, log=folder / "log") as one:
        yield one


@pytest.mark.parametrize("program", PROGRAMS, ids=["http", "tritonclient"])
def test_the_programs_of_the_page_print_what_is_found(
    program: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_scene(tmp_path / "street.jpg", ("red", 1, 1))
    assert "127.0.0.1:8000" in program
    Path("program.py").write_text(program.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"))
    runpy.run_path("program.py")
    assert "0." in capsys.readouterr().out
