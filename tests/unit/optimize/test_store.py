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
from boxwright.optimize.store import Store, hold_folder
from boxwright.optimize.trial import Tried
from boxwright.runtimes.base import Choice

CHOICE = Choice(runtime="eager")
TRIED = Tried(
    status="successful",
    note="3 of 9 layers kept in float",
    score=Score(value=0.25, arrays={"samples": np.arange(4.0)}),
    distance=0.001,
    size_bytes=77,
    recipe={"how": ["well"]},
    kept=("a", "b"),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path, "print")
    store.artifact("fp32").mkdir(parents=True)
    (store.artifact("fp32") / "artifact.json").touch()
    store.write("fp32", CHOICE, TRIED, "wish")
    return store


def test_a_try_comes_back_as_it_was(store: Store) -> None:
    again = store.read("fp32", CHOICE, "wish")
    assert again is not None
    assert again.score is not None
    np.testing.assert_array_equal(again.score.arrays["samples"], np.arange(4.0))
    assert (again.status, again.note, again.kept, again.recipe) == ("successful", TRIED.note, ("a", "b"), TRIED.recipe)


def test_another_model_choice_or_wish_is_another_try(store: Store, tmp_path: Path) -> None:
    assert store.read("fp32", CHOICE, "other") is None
    assert store.read("fp32", Choice(runtime="eager", precision=Precision.BF16), "wish") is None
    assert Store(tmp_path, "other").read("fp32", CHOICE, "wish") is None
    assert store.read("bf16", CHOICE, "wish") is None


def test_a_try_without_its_artifact_is_made_again(store: Store) -> None:
    (store.artifact("fp32") / "artifact.json").unlink()
    assert store.read("fp32", CHOICE, "wish") is None


def test_what_failed_is_tried_again(store: Store) -> None:
    store.write("fp32", CHOICE, Tried(status="fail to convert", note="no"), "wish")
    assert store.read("fp32", CHOICE, "wish") is None


def test_a_damaged_file_counts_as_none(store: Store, tmp_path: Path) -> None:
    (tmp_path / "tries" / "fp32.json").write_text("{")
    assert store.read("fp32", CHOICE, "wish") is None


def test_two_searches_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        hold_folder(tmp_path / "out"),
        pytest.raises(UsageError, match=rf"in use by another search \(process {os.getpid()}\)"),
        hold_folder(tmp_path / "out"),
    ):
        pass
    with hold_folder(tmp_path / "out"):  # it was let go
        pass


def test_a_folder_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from boxwright.optimize.store import hold_folder\n"
        "with hold_folder(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"process {holder.pid}"), hold_folder(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with hold_folder(tmp_path):
        pass


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"can't be written to .*file'.*Choose another folder"),
        hold_folder(tmp_path / "file"),
    ):
        pass
