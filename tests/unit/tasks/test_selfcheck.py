"""An artifact that computes something else here than where it was made is not used."""

import hashlib
import json
import logging
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.planted import DoublingSource, plant
from support.shared import ROOT

from boxwright.core.catalogue import CATALOGUE
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import GOLDEN, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.tasks.predict.predictor import Predictor
from boxwright.tasks.predict.selfcheck import check_artifact, choose_artifact, find_siblings


@pytest.fixture(autouse=True)
def _faulty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose runtimes have faults, in this process and in every child, and a home of its own."""
    monkeypatch.setitem(CATALOGUE, "runtime", dict(CATALOGUE["runtime"]))
    plant()
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("from support.planted import plant\nplant()\n")
    monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT / 'tests'}:{ROOT / 'src'}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def _write(folder: Path, runtime: str = "good", precision: Precision = Precision.FP32) -> Path:
    write_artifact(DoublingSource(), Choice(runtime="good", precision=precision), folder)
    _change(folder, choice={**json.loads((folder / "artifact.json").read_text())["choice"], "runtime": runtime})
    return folder


def _change(folder: Path, **values: object) -> None:
    file = folder / "artifact.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def _shift_golden(folder: Path, factor: float) -> None:
    """Make the artifact expect another output, as if it had been converted on a machine that computes otherwise."""
    with np.load(folder / GOLDEN) as arrays:
        values = {name: arrays[name] * (factor if name.startswith("output") else 1) for name in arrays.files}
    np.savez(folder / GOLDEN, **values)
    files = json.loads((folder / "artifact.json").read_text())["files"]
    _change(folder, files=files | {GOLDEN: hashlib.sha256((folder / GOLDEN).read_bytes()).hexdigest()})


def test_a_good_artifact_is_checked_once(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a")
    assert check_artifact(folder).folder == folder
    check_artifact(folder, timeout_s=0.01)  # too short for a second check
    assert len(list((tmp_path / "home").rglob("*.json"))) == 1


def test_another_artifact_is_checked_again_and_a_check_that_hangs_is_ended(tmp_path: Path) -> None:
    check_artifact(_write(tmp_path / "a"))
    with pytest.raises(CheckpointError, match=r"more than 0\.01 s"):
        check_artifact(_write(tmp_path / "b", precision=Precision.BF16), timeout_s=0.01)


@pytest.mark.parametrize(
    ("runtime", "reason"), [("crash_later", "SIGSEGV"), ("wrong", "away from the original's"), ("nowhere", "Unknown")]
)
def test_a_fault_of_the_machine_is_told_and_not_remembered(tmp_path: Path, runtime: str, reason: str) -> None:
    folder = _write(tmp_path / "a", runtime)
    for _ in range(2):
        with pytest.raises((CheckpointError, UsageError), match=reason):
            check_artifact(folder)
    assert not list((tmp_path / "home").rglob("*.json"))


def test_quantised_values_may_be_off_as_far_as_they_were_when_written(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a", precision=Precision.INT8)
    _change(folder, distance=0.1)
    _shift_golden(folder, 1.02)
    check_artifact(folder)
    _shift_golden(folder, 1.6)
    with pytest.raises(CheckpointError, match="is allowed"):
        check_artifact(folder)


def test_the_next_artifact_is_taken_and_it_is_said_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad, also_bad, good = _write(tmp_path / "a", "wrong"), _write(tmp_path / "b", "crash_later"), _write(tmp_path / "c")
    with caplog.at_level(logging.WARNING):
        chosen = choose_artifact(bad, on_mismatch="fallback", fallback=[also_bad, good])
    assert chosen.folder == good
    assert "fails its check on this machine: its output is" in caplog.text
    assert f"'{good}' is used instead" in caplog.text


def test_refusing_is_an_error_that_says_why(tmp_path: Path) -> None:
    bad, good = _write(tmp_path / "a", "wrong"), _write(tmp_path / "b")
    with pytest.raises(CheckpointError, match="fails its check"):
        choose_artifact(bad, on_mismatch="refuse", fallback=[good])
    with pytest.raises(CheckpointError, match="Neither do the others"):
        choose_artifact(bad, on_mismatch="fallback", fallback=[bad])
    assert choose_artifact(bad, on_mismatch="ignore").folder == bad
    with pytest.raises(UsageError, match="on_mismatch 'maybe'"):
        choose_artifact(bad, on_mismatch="maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "weights").write_text("3"), "has changed since it was written"),
        (lambda folder: (folder / "weights").unlink(), "lacks its file 'weights'"),
        (lambda folder: _change(folder, format=99), "written by a newer Boxwright"),
    ],
)
def test_a_damaged_or_newer_artifact_is_passed_over_or_refused(tmp_path: Path, damage: object, reason: str) -> None:
    bad, good = _write(tmp_path / "a"), _write(tmp_path / "b")
    damage(bad)  # type: ignore[operator]
    assert choose_artifact(bad, on_mismatch="fallback", fallback=[good]).folder == good
    with pytest.raises(CheckpointError, match=reason):
        choose_artifact(bad, on_mismatch="refuse")


def test_the_others_of_a_report_stand_in_by_their_speed(tmp_path: Path) -> None:
    rows = [
        {"method": "bf16", "status": "successful", "latency_ms": 5.0},
        {"method": "openvino_int8", "status": "over budget", "latency_ms": 1.0},
        {"method": "openvino_fp32", "status": "successful", "latency_ms": 3.0},
        {"method": "jit_fp32", "status": "successful", "latency_ms": 4.0},
        {"method": "fp32", "status": "fail to convert", "latency_ms": None},
    ]
    (tmp_path / "report.json").write_text(json.dumps({"best": "openvino_fp32", "rows": rows}))
    for name in ("bf16", "openvino_int8", "openvino_fp32"):
        _write(tmp_path / "artifacts" / name)
    best = _write(tmp_path / "best")
    assert find_siblings(best) == [tmp_path / "artifacts" / "bf16"]
    assert find_siblings(tmp_path / "artifacts" / "bf16") == [tmp_path / "artifacts" / "openvino_fp32"]
    assert find_siblings(_write(tmp_path / "elsewhere" / "deep" / "a")) == []


@pytest.mark.parametrize("method", ["../../evil", "/evil", "evil", "original/..", ["fp32"], None])
def test_a_report_names_nothing_but_methods_of_its_own_folder(tmp_path: Path, method: object) -> None:
    home = tmp_path / "run"
    for place in (tmp_path / "evil", home / "artifacts" / "evil"):
        _write(place)
    best = _write(home / "best")
    rows = [{"method": method, "status": "successful", "latency_ms": 1.0}]
    (home / "report.json").write_text(json.dumps({"best": "openvino_fp32", "rows": rows}))
    assert find_siblings(best) == []


def test_a_link_out_of_the_reports_folder_is_not_followed(tmp_path: Path) -> None:
    _write(tmp_path / "evil")
    best = _write(tmp_path / "run" / "best")
    (tmp_path / "run" / "artifacts").mkdir()
    (tmp_path / "run" / "artifacts" / "bf16").symlink_to(tmp_path / "evil")
    rows = [{"method": "bf16", "status": "successful", "latency_ms": 1.0}]
    (tmp_path / "run" / "report.json").write_text(json.dumps({"best": "openvino_fp32", "rows": rows}))
    assert find_siblings(best) == []


def test_a_changed_file_is_noticed_also_if_the_list_is_empty_or_says_the_old_hash(tmp_path: Path) -> None:
    good, bad = _write(tmp_path / "good"), _write(tmp_path / "bad")
    check_artifact(good)
    (bad / "weights").write_text("3")
    for files in ({}, json.loads((good / "artifact.json").read_text())["files"]):
        _change(bad, files=files)
        with pytest.raises(CheckpointError, match=r"was not written with|has changed since"):
            check_artifact(bad)


def test_another_signature_is_checked_again(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a")
    check_artifact(folder)
    values = json.loads((folder / "artifact.json").read_text())["signature"]
    _change(folder, signature=values | {"outputs": [values["outputs"][0] | {"name": "other"}]})
    with pytest.raises(CheckpointError, match=r"more than 0\.01 s"):
        check_artifact(folder, timeout_s=0.01)


def test_code_of_another_user_is_refused_before_a_child_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _write(tmp_path / "a")
    (folder / "model.pt2").write_bytes(b"code")
    files = json.loads((folder / "artifact.json").read_text())["files"]
    _change(folder, files=files | {"model.pt2": hashlib.sha256(b"code").hexdigest()})
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for refused in (partial(check_artifact, folder), partial(choose_artifact, folder, on_mismatch="refuse")):
        with pytest.raises(CheckpointError, match="--trust"):
            refused()
    assert check_artifact(folder, trust=True).folder == folder


def test_fallback_is_for_artifacts_alone(tmp_path: Path, toy_onnx: Path) -> None:
    with pytest.raises(UsageError, match="is for artifact folders"):
        Predictor.load(toy_onnx, fallback=[tmp_path])
