"""The search as a whole, with tries and latencies that are made up: no child is started."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.planted import DoublingCase, LengthScorer

from boxwright.core.errors import ConversionError, UsageError
from boxwright.core.timing import Timing
from boxwright.optimize.accuracy import Score
from boxwright.optimize.config import SearchConfig
from boxwright.optimize.page import make_page
from boxwright.optimize.process import ChildFailed, Nursery
from boxwright.optimize.report import Report
from boxwright.optimize.search import run_search
from boxwright.optimize.timing import Latency
from boxwright.optimize.trial import Trial, TrialJob

Search = Callable[..., Report]


@pytest.fixture
def asked() -> list[str]:
    """The methods that were tried, in their order."""
    return []


@pytest.fixture
def search(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> Search:
    """Search with the scores of these methods; every model takes 1 ms, or what `latencies` says."""

    def run(
        scores: Mapping[str, float],
        latencies: Mapping[str, Latency] | None = None,
        *,
        kept_scores: Mapping[int, float] | None = None,
        recipe: Mapping[str, Any] | None = None,
        **words: Any,
    ) -> Report:
        def attempt(nursery: Nursery, job: TrialJob, **_: object) -> Trial:
            method = "original" if job.choice is None else job.folder.name
            asked.append(method)
            job.folder.mkdir(parents=True, exist_ok=True)
            (job.folder / "artifact.json").write_text("{}", encoding="ascii")
            job.reference.touch()
            value = (kept_scores or {}).get(len(job.keep_float), scores[method])
            return Trial(status="successful", score=Score(value=value), kept=job.keep_float, recipe=recipe or {})

        def race(nursery: Nursery, targets: Mapping[str, Any], *_: object, **__: object) -> dict[str, Latency]:
            usual = Latency(timing=Timing(samples_ms=(1.0,)))
            return {name: (latencies or {}).get(name, usual) for name in targets}

        monkeypatch.setattr("boxwright.optimize.search.run_trial", attempt)
        monkeypatch.setattr("boxwright.optimize.search.race", race)
        monkeypatch.setattr("boxwright.optimize.search.add_measurements", lambda *_: None)
        config = SearchConfig(includes=tuple(scores), **words)
        return run_search(DoublingCase(LengthScorer()), tmp_path, config)

    return run


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("max_drop", [0.01, None])
def test_a_metric_that_is_no_number_is_no_success(
    search: Search, tmp_path: Path, value: float, max_drop: float | None
) -> None:
    quick = {"fp32": Latency(timing=Timing(samples_ms=(0.1,)))}
    report = search({"original": 0.9, "fp32": value}, quick, max_drop=max_drop)
    row = report.row("fp32")
    assert (row.status, row.accuracy, row.drop) == ("wrong result", None, None)
    assert f"the metric gives {value}" in row.note
    assert report.best().method == "original"
    saved = (tmp_path / "report.json").read_text()
    json.loads(saved, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert "nan" not in make_page(report).split("<table>")[0]


def test_a_model_that_has_no_score_itself_has_no_budget(search: Search) -> None:
    with pytest.raises(UsageError, match=r"gives nan .*max_drop=0\.01"):
        search({"original": math.nan, "fp32": 0.9}, max_drop=0.01)
    rows = search({"original": math.nan, "fp32": 0.9}).rows
    assert [(r.status, r.accuracy, r.drop) for r in rows] == [("successful", None, None), ("successful", 0.9, None)]
    assert "the metric gives nan" in rows[0].note


def test_a_metric_that_fails_is_not_taken_for_a_model_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(stage: str) -> Trial:
        return Trial(status="fail to forward", note="RuntimeError: always", stage=stage)

    config = SearchConfig(includes=["original"])
    monkeypatch.setattr("boxwright.optimize.search.run_trial", lambda *_, **__: fail("score"))
    with pytest.raises(UsageError, match=r"metric='length' .*RuntimeError: always"):
        run_search(DoublingCase(LengthScorer()), tmp_path, config)
    monkeypatch.setattr("boxwright.optimize.search.run_trial", lambda *_, **__: fail("forward"))
    with pytest.raises(ConversionError, match="The model itself does not run"):
        run_search(DoublingCase(LengthScorer()), tmp_path, config)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("max_drop", math.nan),
        ("max_drop", math.inf),
        ("max_drop", -0.1),
        ("memory_mb", 0),
        ("memory_mb", -5),
        ("early_stop", -1.0),
        ("early_stop", math.nan),
        ("search_tries", -1),
        ("latency_sample_num", 0),
        ("timeout_s", math.nan),
        ("confidence", math.nan),
        ("thread_num", 0),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(word: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{word}={value!r}"):
        SearchConfig(**{word: value})  # type: ignore[arg-type]


def test_a_search_that_could_not_be_made_is_told_and_made_next_time(
    search: Search, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> tuple[str, ...]:
        raise ChildFailed("it took more than 600 s and was stopped", stage="rank")

    monkeypatch.setattr(Nursery, "run", fail)
    scores = {"original": 0.9, "openvino_int8": 0.1, "int8": 0.1}
    report = search(scores, max_drop=0.01)
    for row in report.rows[1:]:
        assert row.status == "over budget"
        assert "could not be ranked (it took more than 600 s" in row.note
    assert asked == ["original", "int8", "openvino_int8"]
    monkeypatch.setattr(Nursery, "run", lambda *_, **__: ("a", "b", "c"))
    report = search(scores, max_drop=0.01)
    # All in int8, then a and b in float, which is no better, so the first is made again.
    assert asked[3:] == ["int8"] * 3 + ["openvino_int8"] * 3
    assert not any("ranked" in row.note for row in report.rows)
    search(scores, max_drop=0.01)
    assert len(asked) == 9


def test_layers_of_a_bf16_model_are_put_back_where_its_runtime_can_mix(
    search: Search, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked: list[object] = []

    def rank(_nursery: Nursery, job: Any, **_: object) -> tuple[str, ...]:
        ranked.append(job.args[1])
        return ("last", "a", "b", "c", "d", "e")

    monkeypatch.setattr(Nursery, "run", rank)
    scores = {"original": 0.9, "bf16": 0.85}
    report = search(scores, max_drop=0.01, kept_scores={4: 0.895}, recipe={"float32": ["last"]})
    assert asked == ["original", "bf16", "bf16", "bf16"]  # with none, two and four
    assert ranked == ["bf16"]
    assert report.rows[1].status == "successful"
    assert "4 of 5 layers kept in float: a, b, c, d" in report.rows[1].note


def test_layers_that_a_runtime_can_not_keep_are_not_put_back(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nursery, "run", lambda *_, **__: ("a", "last", "b", "c", "d"))
    recipe = {"float32": ["last"], "keepable": ["b", "c", "d", "last"]}
    report = search({"original": 0.9, "openvino_bf16": 0.85}, max_drop=0.01, kept_scores={2: 0.895}, recipe=recipe)
    assert "2 of 3 layers kept in float: b, c" in report.rows[1].note


def test_a_bf16_model_without_a_last_layer_to_keep_is_searched(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nursery, "run", lambda *_, **__: ("a", "b", "c"))
    report = search({"original": 0.9, "bf16": 0.85}, max_drop=0.01, kept_scores={2: 0.895}, recipe={"float32": []})
    assert "2 of 3 layers kept in float: a, b" in report.rows[1].note


def test_a_runtime_that_can_not_mix_is_not_searched(
    search: Search, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Nursery, "run", lambda *_, **__: pytest.fail("nothing is to be ranked"))
    report = search({"original": 0.9, "openvino_bf16": 0.85}, max_drop=0.01)
    assert asked == ["original", "openvino_bf16"]
    assert report.rows[1].status == "over budget"
