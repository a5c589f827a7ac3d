"""`boxwright tune` as a user calls it, on small generated scenes."""

import json
from pathlib import Path

import pytest
import yaml

from boxwright.cli import main
from boxwright.tasks.tune.config import load_search

WORDS = ["steps", "1", "workers", "1", "check", "false", "ema", "false", "print_interval", "1"]
SIZES = ["--val", "0.25", "-b", "4", "--size", "64"]


def test_a_search_tells_what_it_tried_and_writes_the_settings_to_train_with(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "search"
    words = ["tune", "--data", str(scenes), *SIZES, "--out", str(out), "--trials", "2", "--json", *WORDS]
    assert main([*words, "--space", "lr=real:1e-4..1e-2:log", "mosaic=bool"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((out / "trials.json").read_text())
    first, second = told["trials"]
    assert (first["note"], first["settings"], first["state"]) == ("the defaults", {}, "complete")
    assert set(second["settings"]) == {"lr", "mosaic"}
    # One step teaches nothing: both have AP 0, and the defaults stay.
    assert (first["value"], told["is_better"], told["settings"]) == (0.0, False, {})
    used = yaml.safe_load((out / "trials" / "001" / "run" / "args.yaml").read_text())
    assert used["lr_per_image"] == pytest.approx(second["settings"]["lr"] / 4)
    assert used["mosaic"] == second["settings"]["mosaic"]
    best = yaml.safe_load((out / "best.yaml").read_text())
    assert (best["lr_per_image"], best["mosaic"], best["output_dir"]) == (None, True, str(out / "best"))

    assert main([*words, "--space", "mosaic=bool"]) == 2  # the folder has a search
    assert "Resume it with --resume" in capsys.readouterr().err
    assert main(["tune", "--resume", "--out", str(out)]) == 0  # nothing is left to do
    assert "No trial is better than the defaults." in capsys.readouterr().out
    assert load_search(out / "tune.yaml").trials == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--space", "lr=real:1..2"], "There is nothing to train on"),
        (["--data", "x", "--space", "lrr=bool"], "Unknown setting to tune 'lrr'"),
        (["--data", "x", "--space", "lr=1..2"], "'1..2' is not a space"),
        (["--data", "x", "--space", "batch=real:1..8"], "batch=1.0 can't be used: it must be int"),
        (["--data", "x", "--space", "momentum=real:0.5..1.5"], "momentum=1.5 must be between 0 and 1"),
        (["--data", "x", "--space", "mosaic=bool", "mosaic=bool"], "has two spaces"),
        (["--data", "x", "--trials", "1"], "trials=1 must be at least 2"),
        (["--data", "x", "patience", "3"], "patience ends runs early"),
        (["--data", "x", "--address", "head:6379"], "is for engine 'ray'"),
        (["--resume"], "--resume needs the folder of a search"),
    ],
)
def test_a_search_that_cant_work_is_refused_before_it_makes_a_folder(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_spaces_may_come_from_a_file(tmp_path: Path) -> None:
    from boxwright.tasks.tune.config import read_spaces

    (tmp_path / "spaces.yaml").write_text("lr: real:1e-4..1e-2:log\nclass_weights: [off, balanced]\n")
    spaces = read_spaces([str(tmp_path / "spaces.yaml"), "batch=int:8..32:8"])
    assert [repr(space) for space in spaces.values()] == [
        "Real(low=0.0001, high=0.01, default=None, log=True)",
        "Categorical('off', 'balanced')",
        "Int(low=8, high=32, default=None, step=8, log=False)",
    ]
