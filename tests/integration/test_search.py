"""A search: the defaults first, trials in processes of their own, pruning, resuming after a kill, and the verdict."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.clusters import further
from support.searches import always_fails, flat, hill, make_search, pid_unless_bad, reports_rank, slope

from boxwright.accel.search.run import run_search
from boxwright.core.errors import UsageError
from boxwright.core.spaces import Categorical, Int, Real
from boxwright.launchers.base import WorkerFailed


def test_the_defaults_are_trial_0_and_a_sure_winner_is_taken(tmp_path: Path) -> None:
    result = run_search(make_search(tmp_path), hill)
    assert [row.number for row in result.trials] == [0, 1, 2, 3]
    assert (result.trials[0].settings, result.trials[0].value) == ({"x": 2.0}, -4.0)
    best = result.trials[result.best]
    assert best.value == max(row.value for row in result.trials if row.value is not None)
    assert {row.seed for row in result.repeats} == {1, 2}
    assert result.is_better
    assert result.gain is not None
    assert result.gain.mean == pytest.approx(4.0 - best.settings["x"] ** 2)
    assert result.settings == best.settings
    assert f"Trial {result.best} is better than the defaults" in result.table()
    assert json.loads(json.dumps(result.to_dict()))["settings"] == dict(best.settings)


def test_a_winner_by_luck_is_not_taken(tmp_path: Path) -> None:
    result = run_search(make_search(tmp_path, trials=2), flat)
    assert result.best == 1
    assert not result.is_better
    assert result.settings == {}
    assert "is not surely better than the defaults" in result.verdict()


def test_defaults_that_no_trial_beats_need_no_repeats(tmp_path: Path) -> None:
    result = run_search(make_search(tmp_path, defaults={"x": 0.0}, spaces={"x": Real(0.0, 3.0)}, trials=2), slope)
    assert (result.best, list(result.repeats)) == (0, [])
    assert result.verdict() == "No trial is better than the defaults. Use the defaults."


def test_defaults_outside_of_the_space_run_all_the_same(tmp_path: Path) -> None:
    result = run_search(make_search(tmp_path, defaults={"x": None}, trials=2), hill)
    assert (dict(result.trials[0].settings), result.trials[0].value) == ({}, -4.0)


def test_each_trial_has_a_process_of_its_own_and_a_failure_becomes_a_row(tmp_path: Path) -> None:
    spaces = {"kind": Categorical("bad", "good")}
    result = run_search(
        make_search(tmp_path, spaces=spaces, defaults={"kind": "good"}, trials=5, direction="min"), pid_unless_bad
    )
    failed = [row for row in result.trials if row.state == "failed"]
    assert failed
    assert all(row.settings == {"kind": "bad"} and row.note == "ValueError: no such kind" for row in failed)
    pids = [row.value for row in result.trials if row.value is not None]
    assert len(set(pids)) == len(pids)
    assert os.getpid() not in pids


def test_the_error_of_the_defaults_is_raised_and_they_run_again(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="no data"):
        run_search(make_search(tmp_path), always_fails)
    result = run_search(make_search(tmp_path, trials=2), hill)
    assert [(row.number, row.state) for row in result.trials] == [(0, "interrupted"), (1, "complete"), (2, "complete")]
    assert result.trials[1].settings == {"x": 2.0}


def test_hyperband_stops_trials_that_are_behind_but_never_the_defaults(tmp_path: Path) -> None:
    search = make_search(tmp_path, spaces={"rank": Int(0, 100)}, defaults={"rank": None}, trials=8)
    result = run_search(search, reports_rank)
    pruned = [row for row in result.trials if row.state == "pruned"]
    assert pruned
    assert all((tmp_path / "trials" / f"{row.number:03}" / "stopped").exists() for row in pruned)
    assert result.trials[0].state == "complete"
    assert result.best == 0


SCRIPT = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from boxwright.accel.search.run import run_search
    from support import searches

    def objective(trial):
        if trial.folder.name == {at!r}:
            os.kill(int(Path({folder!r}, "pid").read_text()), signal.SIGKILL)
            signal.pause()
        return searches.hill(trial)

    folder = Path({folder!r})
    folder.mkdir(exist_ok=True)
    (folder / "pid").write_text(str(os.getpid()))
    run_search(searches.make_search(folder), objective)
"""


@pytest.mark.parametrize("at", [*further("000"), "002", *further("repeat-001")])
def test_a_killed_and_resumed_search_loses_at_most_one_trial(tmp_path: Path, at: str) -> None:
    folder = tmp_path / "search"
    script = tmp_path / "script.py"
    code = SCRIPT.format(tests=str(Path(__file__).parents[1]), at=at, folder=str(folder))
    script.write_text(textwrap.dedent(code))
    killed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with (folder / "journal.log").open("a") as journal:
        journal.write('{"op_code": 9, "half a li')  # as if it had been killed while it wrote
    runs = sorted(folder.glob("trials/*"))

    result = run_search(make_search(folder), hill)

    interrupted = [row.number for row in result.trials if row.state == "interrupted"]
    assert interrupted == ([] if at.startswith("repeat") else [int(at)])
    assert len([row for row in result.trials if row.state == "complete"]) == 4
    assert result.is_better
    # 4 trials and 4 repeats, and the one that was lost.
    assert len(list(folder.glob("trials/*"))) == 9
    assert len(runs) == {"000": 1, "002": 3, "repeat-001": 6}[at]


def test_a_finished_search_runs_nothing_again_and_more_trials_continue_it(tmp_path: Path) -> None:
    first = run_search(make_search(tmp_path), hill)
    runs = set(tmp_path.glob("trials/*"))
    assert run_search(make_search(tmp_path), always_fails) == first
    assert set(tmp_path.glob("trials/*")) == runs
    longer = run_search(make_search(tmp_path, trials=5), hill)
    assert list(longer.trials[:4]) == list(first.trials)
    assert len(longer.trials) == 5


def test_the_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    run_search(make_search(tmp_path, trials=2, about={"data": "a"}), hill)
    with pytest.raises(UsageError, match=r"holds another search: data was 'a' and is 'b'"):
        run_search(make_search(tmp_path, trials=2, about={"data": "b"}), hill)
    with pytest.raises(UsageError, match="seed was 0 and is 1"):
        run_search(make_search(tmp_path, trials=2, seed=1, about={"data": "a"}), hill)


@pytest.mark.engines
@pytest.mark.usefixtures("ray_here")
def test_trials_run_on_ray(tmp_path: Path) -> None:
    from boxwright.launchers.ray_ import RayLauncher

    result = run_search(make_search(tmp_path, trials=2), hill, RayLauncher())
    assert [row.value is not None for row in result.trials] == [True, True]
    assert (tmp_path / "trials" / "001" / "log.txt").exists()
