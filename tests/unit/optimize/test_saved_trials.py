import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.optimize.accuracy import Score
from boxwright.optimize.saved_trials import SavedTrials, lock_folder
from boxwright.optimize.trial import Trial
from boxwright.runtimes.base import Choice
from boxwright.runtimes.trust import hash_file, record

CHOICE = Choice(runtime="eager")
TRIAL = Trial(
    status="successful",
    note="3 of 9 layers kept in float",
    score=Score(value=0.25, count=4, arrays={"samples": np.arange(4.0)}),
    distance=0.001,
    size_bytes=77,
    recipe={"how": ["well"]},
    kept=("a", "b"),
)


@pytest.fixture
def saved(tmp_path: Path) -> SavedTrials:
    saved = SavedTrials(tmp_path, "print")
    saved.artifact("fp32").mkdir(parents=True)
    (saved.artifact("fp32") / "artifact.json").touch()
    saved.write("fp32", CHOICE, TRIAL, "settings")
    return saved


def test_a_try_comes_back_as_it_was(saved: SavedTrials) -> None:
    again = saved.read("fp32", CHOICE, "settings")
    assert again is not None
    assert again.score is not None
    np.testing.assert_array_equal(again.score.arrays["samples"], np.arange(4.0))
    assert (again.score.value, again.score.count) == (0.25, 4)
    assert (again.status, again.note, again.kept, again.recipe) == ("successful", TRIAL.note, ("a", "b"), TRIAL.recipe)


def test_another_model_choice_or_settings_is_another_try(saved: SavedTrials, tmp_path: Path) -> None:
    assert saved.read("fp32", CHOICE, "other") is None
    assert saved.read("fp32", Choice(runtime="eager", precision=Precision.BF16), "settings") is None
    assert SavedTrials(tmp_path, "other").read("fp32", CHOICE, "settings") is None
    assert saved.read("bf16", CHOICE, "settings") is None


def test_a_try_without_its_artifact_is_made_again(saved: SavedTrials) -> None:
    (saved.artifact("fp32") / "artifact.json").unlink()
    assert saved.read("fp32", CHOICE, "settings") is None


def test_a_try_with_code_that_was_not_made_here_is_made_again(saved: SavedTrials) -> None:
    code = saved.artifact("fp32") / "model.pt2"
    code.write_bytes(b"code of somebody")
    assert saved.read("fp32", CHOICE, "settings") is None
    record(hash_file(code))
    assert saved.read("fp32", CHOICE, "settings") is not None


def test_what_failed_is_tried_again(saved: SavedTrials) -> None:
    saved.write("fp32", CHOICE, Trial(status="fail to convert", note="no"), "settings")
    assert saved.read("fp32", CHOICE, "settings") is None


def test_a_damaged_file_counts_as_none(saved: SavedTrials, tmp_path: Path) -> None:
    (tmp_path / "tries" / "fp32.json").write_text("{")
    assert saved.read("fp32", CHOICE, "settings") is None


def test_two_searches_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path / "out"),
        pytest.raises(UsageError, match=rf"process {os.getpid()}"),
        lock_folder(tmp_path / "out"),
    ):
        pass
    with lock_folder(tmp_path / "out"):  # it was let go
        pass


def test_a_folder_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from boxwright.optimize.saved_trials import lock_folder\n"
        "with lock_folder(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"process {holder.pid}"), lock_folder(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with lock_folder(tmp_path):
        pass


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"can't be written to .*file'"),
        lock_folder(tmp_path / "file"),
    ):
        pass
