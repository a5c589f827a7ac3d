"""A whole search among runtimes with planted faults: each becomes a row, and nothing else is disturbed."""

import tempfile
from pathlib import Path

import psutil
import pytest
import torch
from support.doubling import Doubling
from support.planted import plant

from boxwright import InferenceOptimizer
from boxwright.core.catalogue import CATALOGUE
from boxwright.optimize import candidates, config, search
from boxwright.optimize.candidates import METHODS, Method
from boxwright.runtimes.base import Choice

# In this order: what comes after a fault must not notice it.
EXPECTED = {
    "crash": ("fail to convert", "SIGSEGV"),
    "illegal": ("fail to convert", "instructions that this CPU does not have"),
    "hang": ("fail to convert", "it took more than 10 s and was stopped"),
    "wrong": ("wrong result", "away from the original's"),
    "hungry": ("fail to convert", "more than the 900 MB allowed"),
    "crash_later": ("fail to forward", "SIGSEGV"),
    "clumsy": ("fail to convert", "unsupported operator: aten::wobble"),
    "good": ("successful", ""),
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the faults here and in every child, whatever it is asked to do."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("from support.planted import plant\nplant()\n")
    monkeypatch.syspath_prepend(site)  # children get this process's path
    monkeypatch.setitem(CATALOGUE, "runtime", dict(CATALOGUE["runtime"]))
    plant()
    methods = METHODS | {name: Method(choice=Choice(runtime=name)) for name in EXPECTED}
    for module in (candidates, config, search):
        monkeypatch.setattr(module, "METHODS", methods)


@pytest.mark.usefixtures("planted", "one_torch_thread")
def test_every_fault_becomes_its_row_and_the_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    before = psutil.Process().children(recursive=True)
    rows = torch.arange(12.0).reshape(4, 3)
    optimizer = InferenceOptimizer(tmp_path / "search")
    optimizer.optimize(
        Doubling(),
        rows,  # beside the example, so that a trial runs a model twice
        includes=list(EXPECTED),
        thread_num=1,
        latency_sample_num=6,
        timeout_s=10.0,
        memory_mb=900,
        quiet=True,
    )
    found = {row.method: row for row in optimizer.report.rows}
    assert list(found) == ["original", *EXPECTED]
    for method, (status, reason) in EXPECTED.items():
        assert (found[method].status, reason in found[method].note) == (status, True), found[method]
        assert (found[method].latency_ms is not None) == (status == "successful")
    assert found["original"].latency_ms is not None
    assert Path(found["crash"].log).is_file()
    assert [p.name for p in (tmp_path / "search" / "artifacts").iterdir()] == ["good"]
    model, method = optimizer.get_best_model()
    assert method in ("good", "original")
    torch.testing.assert_close(torch.as_tensor(model(rows)), rows * 2)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert psutil.Process().children(recursive=True) == before
