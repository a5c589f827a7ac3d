"""Every planted fault becomes its own row; the next trial is not disturbed, and no partial artifact remains."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.planted import BrokenScorer, DoublingCase, LengthScorer, plant

from boxwright.core.catalogue import CATALOGUE, Entry
from boxwright.core.types import Precision
from boxwright.optimize.case import write_case
from boxwright.optimize.process import Limits, Nursery, open_nursery
from boxwright.optimize.trial import Trial, TrialJob, run_trial
from boxwright.runtimes.artifact import is_artifact
from boxwright.runtimes.base import Choice

LIMITS = Limits(time_s=60, memory_bytes=400 << 20)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "runtime", dict(CATALOGUE["runtime"]))
    plant()


@pytest.fixture
def nursery(planted: None) -> Iterator[Nursery]:
    with open_nursery() as nursery:
        yield nursery


@pytest.fixture
def job(nursery: Nursery, tmp_path: Path) -> TrialJob:
    """A job for the good runtime; the original's outputs are there already."""
    import numpy as np

    case = DoublingCase(LengthScorer())
    write_case(case, nursery.folder / "case")
    outputs = {f"{i}_0": case.source().run(inputs)[0] for i, inputs in enumerate(case.probes())}
    np.savez(tmp_path / "reference.npz", **outputs)
    return TrialJob(
        case=nursery.folder / "case",
        reference=tmp_path / "reference.npz",
        folder=tmp_path / "artifact",
        choice=Choice(runtime="good"),
    )


def _try(nursery: Nursery, job: TrialJob, runtime: str, limits: Limits = LIMITS, **changes: object) -> Trial:
    choice = Choice(runtime=runtime, **changes)  # type: ignore[arg-type]
    return run_trial(nursery, replace(job, choice=choice), limits=limits, log=job.folder.parent / "log")


def test_a_good_try_has_a_score_and_an_artifact(nursery: Nursery, job: TrialJob) -> None:
    trial = _try(nursery, job, "good")
    assert (trial.status, trial.note, trial.distance) == ("successful", "", 0.0)
    assert trial.score is not None
    assert trial.score.value == 2.0
    assert trial.recipe == {"how": "well"}
    assert trial.size_bytes == sum(f.stat().st_size for f in job.folder.iterdir())


@pytest.mark.parametrize(
    ("runtime", "status", "reason"),
    [
        ("crash", "fail to convert", "SIGSEGV"),
        ("illegal", "fail to convert", "instructions that this CPU does not have"),
        ("crash_later", "fail to forward", "SIGSEGV"),
        ("wrong", "wrong result", "away from the original's; 32 explains 0.001"),
        ("hungry", "fail to convert", "more than the 400 MB allowed"),
        ("clumsy", "fail to convert", "unsupported operator: aten::wobble"),
        ("nowhere", "fail to convert", "Unknown runtime 'nowhere'"),
    ],
)
def test_a_fault_becomes_a_row_and_does_not_disturb_the_next_trial(
    nursery: Nursery, job: TrialJob, runtime: str, status: str, reason: str
) -> None:
    trial = _try(nursery, job, runtime)
    assert trial.status == status
    assert reason in trial.note
    assert trial.score is None
    assert not job.folder.exists()
    assert _try(nursery, job, "good").status == "successful"


def test_a_metric_that_raises_is_named_as_the_cause(nursery: Nursery, job: TrialJob) -> None:
    write_case(DoublingCase(BrokenScorer()), job.case)
    trial = _try(nursery, job, "good")
    assert (trial.status, trial.stage) == ("fail to forward", "score")
    assert trial.note == "while it was scored: RuntimeError: no such label"


def test_a_hang_is_ended_at_its_limit(nursery: Nursery, job: TrialJob) -> None:
    trial = _try(nursery, job, "hang", Limits(time_s=60, stage_s={"convert": 3.0}))
    assert trial.status == "fail to convert"
    assert "it took more than 3 s and was stopped" in trial.note
    assert not job.folder.exists()


def test_a_little_error_is_within_what_a_lower_precision_explains(nursery: Nursery, job: TrialJob) -> None:
    trial = _try(nursery, job, "wrong", precision=Precision.BF16)
    assert trial.status == "successful"
    assert trial.distance == pytest.approx(0.02, rel=0.5)


def test_a_missing_package_is_answered_with_the_pip_command(
    nursery: Nursery, job: TrialJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOGUE["runtime"], "good", Entry(target="a:b", packages=("no_such",), extra="good"))
    trial = _try(nursery, job, "good")
    assert trial.status == "lack dependency"
    assert "pip install 'boxwright[good]'" in trial.note


def test_an_old_artifact_is_replaced(nursery: Nursery, job: TrialJob) -> None:
    for _ in range(2):
        assert _try(nursery, job, "good").status == "successful"
        assert is_artifact(job.folder)
    assert _try(nursery, job, "clumsy").status == "fail to convert"
    assert not is_artifact(job.folder)
