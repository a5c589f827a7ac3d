"""The whole search: every method tried in a child, layers put back into float where needed, then all timed together."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from boxwright.core.errors import ConversionError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.timing import hardware_line
from boxwright.core.types import Precision
from boxwright.devices.chosen import Chosen
from boxwright.optimize.accuracy import Drop, Score, measure_drop
from boxwright.optimize.candidates import METHODS, ORIGINAL
from boxwright.optimize.case import Case, open_case, write_case
from boxwright.optimize.config import SearchConfig
from boxwright.optimize.keep_float import put_back, rank_case
from boxwright.optimize.process import ChildFailed, Limits, Nursery, open_nursery, share_cores
from boxwright.optimize.report import Report, Row, Settings
from boxwright.optimize.saved_trials import SavedTrials, used_versions
from boxwright.optimize.timing import Latency, RaceRules, Target, race
from boxwright.optimize.trial import Trial, TrialJob, run_trial
from boxwright.runtimes.artifact import add_measurements, open_graph, read_artifact
from boxwright.runtimes.base import Graph, Tuning

_log = get_logger(__name__)
_HALVES = (Precision.BF16, Precision.FP16)
_SCORE_TIMES = 5.0  # scoring may take this many times as long as with the original
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""


def run_search(
    case: Case, folder: Path, config: SearchConfig, *, progress: Progress | None = None, remarks: tuple[str, ...] = ()
) -> Report:
    """Try every method, time those that work, and return the report, which is also saved in the folder.

    The caller holds the folder's lock (`lock_folder`). `remarks` are sentences for the report.

    Raises:
        UsageError: the case can't be sent to another process, there is a budget but no metric, or the metric fails.
        ConversionError: the original itself does not run.
    """
    if config.max_drop is not None and case.scorer is None:
        raise UsageError(f"max_drop={config.max_drop!r} needs a metric to measure the loss with. Give metric=…")
    with open_nursery() as nursery:
        report = _Search(case, folder, config, nursery, progress or (lambda *_: None)).run(remarks)
    report.save(folder)
    return report


class _Search:
    def __init__(self, case: Case, folder: Path, config: SearchConfig, nursery: Nursery, progress: Progress) -> None:
        self._case, self._config, self._nursery = case, config, nursery
        self._progress = progress
        self._case_file = nursery.folder / "case"
        write_case(case, self._case_file)  # first: what can't be sent is refused before all the data is read
        # On another device, the original has other outputs.
        where = "" if config.place.is_cpu else f" on {config.place}"
        self._saved = SavedTrials(folder, case.fingerprint() + where)
        self._threads, cores = share_cores(config.thread_num)
        self._limits = Limits(
            time_s=config.timeout_s,
            memory_bytes=None if config.memory_mb is None else config.memory_mb << 20,
            threads=self._threads,
            cores=cores,
        )
        self._ranked: dict[Precision, tuple[str, ...]] = {}
        self._rank_failures: dict[Precision, str] = {}
        self._last_kept: tuple[str, ...] = ()
        self._done = 0

    def run(self, remarks: tuple[str, ...]) -> Report:
        trials = {ORIGINAL: self._try_original()}
        original = trials[ORIGINAL].score
        for method in self._config.methods:
            if method != ORIGINAL:
                trials[method] = self._try(method, original)
                self._advance(method)
        latencies = self._time([method for method, trial in trials.items() if trial.status == "successful"])
        rows = tuple(self._row(method, trial, original, latencies.get(method)) for method, trial in trials.items())
        sizes = {a.shape[0] if a.ndim else None for a in self._case.timing_inputs()}
        scorer = self._case.scorer
        settings = Settings(
            machine=hardware_line(),
            threads=self._threads,
            batch=sizes.pop() if len(sizes) == 1 else None,
            metric="" if scorer is None else scorer.name,
            direction="max" if scorer is None else scorer.direction,
            max_drop=self._config.max_drop,
            confidence=self._config.confidence,
            versions={k: v for m in trials for k, v in used_versions(METHODS[m].choice).items()},
            remarks=remarks,
            device=str(trials[ORIGINAL].recipe.get("device", self._config.place)),
        )
        for row in rows:
            if row.latency_ms is not None and row.method != ORIGINAL:
                add_measurements(self._saved.artifact(row.method), row.to_dict() | {"machine": settings.machine})
        return Report(rows=rows, settings=settings)

    def _advance(self, what: str) -> None:
        self._done += 1
        self._progress(what, self._done, 2 * len(self._config.methods))

    def _try_original(self) -> Trial:
        self._progress(ORIGINAL, 0, 2 * len(self._config.methods))
        # The original is scored however long the user's data takes; the time limit of the others depends on it.
        self._limits = replace(self._limits, stage_s={"score": math.inf})
        trial = self._saved.read(ORIGINAL, None) or self._attempt(ORIGINAL, ())
        self._limits = replace(
            self._limits, stage_s={"score": max(self._config.timeout_s, _SCORE_TIMES * trial.score_s)}
        )
        scorer, budget = self._case.scorer, self._config.max_drop
        if trial.status != "successful":
            reason = f"{trial.note}. See {str(self._saved.log(ORIGINAL))!r}."
            if trial.stage == "score" and scorer is not None:
                raise UsageError(f"metric={scorer.name!r} fails on the model itself: {reason}")
            raise ConversionError(f"The model itself does not run: {reason}")
        if scorer is not None and budget is not None and trial.score is not None and _number(trial.score) is None:
            raise UsageError(
                f"metric={scorer.name!r} gives {trial.score.value} for the model itself, so no loss can be compared "
                f"with max_drop={budget!r}. Check the metric and its data, or leave out max_drop."
            )
        self._saved.write(ORIGINAL, None, trial)
        self._advance(ORIGINAL)
        return trial

    def _try(self, method: str, original: Score | None) -> Trial:
        choice, budget = METHODS[method].choice, self._config.max_drop
        searched = budget is not None and METHODS[method].precision in (Precision.INT8, *_HALVES)
        settings = f"{budget} {self._config.confidence} {self._config.search_tries}" if searched else ""
        known = self._saved.read(method, choice, settings)
        if known is not None:
            _log.info("%s: known from an earlier search (%s).", method, known.status)
            return known
        trial = self._attempt(method, ())
        _log.info("%s: %s%s", method, trial.status, f" ({trial.note})" if trial.note else "")
        if searched and budget is not None and trial.status in ("successful", "wrong result"):
            trial = self._fit_budget(method, trial, original, budget)
        self._saved.write(method, choice, trial, settings)
        return trial

    def _attempt(self, method: str, keep_float: tuple[str, ...]) -> Trial:
        job = TrialJob(
            case=self._case_file,
            reference=self._saved.reference,
            folder=self._saved.artifact(method),
            choice=METHODS[method].choice,
            keep_float=keep_float,
            threads=self._threads,
            cache=self._saved.folder / "tries" / "statistics",
            place=self._config.place,
        )
        self._last_kept = keep_float
        log = self._saved.log(method)
        if not keep_float:
            log.unlink(missing_ok=True)
        return run_trial(self._nursery, job, limits=self._limits, log=log)

    def _fit_budget(self, method: str, first: Trial, original: Score | None, budget: float) -> Trial:
        """Return a trial with layers put back into float where the first one loses too much."""

        def loss(trial: Trial) -> float:
            drop = self._drop(trial, original)
            return math.inf if drop is None or math.isnan(drop.high) else drop.high

        precision, recipe = METHODS[method].precision, first.recipe
        if loss(first) <= budget or (precision in _HALVES and "float32" not in recipe):
            return first  # it fits, or this runtime can't mix precisions
        ranked = self._rank(precision)
        failure = self._rank_failures.get(precision)
        if failure:
            reason = f"the layers could not be ranked ({failure}), so none was put back into float"
            return replace(first, note=_join(first.note, reason), unfinished=True)
        # Runtimes leave some layers in float anyway, and some layers they can't keep.
        eligible = [recipe["quantized"]] if "quantized" in recipe else []
        if precision is Precision.BF16 and "keepable" in recipe:
            eligible.append(recipe["keepable"])
        ranked = tuple(
            name
            for name in ranked
            if name not in recipe.get("float32", ()) and all(name in layers for layers in eligible)
        )
        if not ranked:
            return first
        found = put_back(
            first, ranked, partial(self._attempt, method), loss, budget=budget, tries=self._config.search_tries
        )
        # The artifact on disk is the last trial's; the nearest may be an earlier one.
        if found.status == "successful" and found.kept != self._last_kept:
            again = self._attempt(method, found.kept)
            return replace(again, note=found.note) if again.status == "successful" else again
        return found

    def _rank(self, precision: Precision) -> tuple[str, ...]:
        if precision not in self._ranked:
            log = self._saved.log(f"sensitivity_{precision}")
            try:
                job = partial(rank_case, self._case_file, precision)
                self._ranked[precision] = self._nursery.run(job, limits=self._limits, log=log)
            except ChildFailed as error:
                _log.warning("The layers could not be ranked by what %s costs: %s", precision, error)
                self._ranked[precision], self._rank_failures[precision] = (), str(error)
        return self._ranked[precision]

    def _time(self, methods: list[str]) -> dict[str, Latency]:
        # Artifacts of this search or of a saved trial, which `SavedTrials` has checked: their code is our own.
        targets: dict[str, Target] = {
            m: partial(open_case, self._case_file, self._config.place)
            if m == ORIGINAL
            else partial(_open, self._saved.artifact(m), self._config.place)
            for m in methods
        }
        self._done = 2 * len(self._config.methods) - len(targets)
        self._progress("timing", self._done, 2 * len(self._config.methods))
        return race(
            self._nursery,
            targets,
            self._case.timing_inputs(),
            rules=RaceRules(
                runs=self._config.latency_sample_num, baseline=ORIGINAL, early_stop=self._config.early_stop
            ),
            limits=self._limits,
            logs=self._saved.folder / "logs",
            advance=partial(self._advance, "timing"),
        )

    def _drop(self, trial: Trial, original: Score | None) -> Drop | None:
        scorer, score = self._case.scorer, trial.score
        if scorer is None or score is None or original is None or None in (_number(score), _number(original)):
            return None
        return measure_drop(scorer, original, score, confidence=self._config.confidence)

    def _row(self, method: str, trial: Trial, original: Score | None, latency: Latency | None) -> Row:
        drop = self._drop(trial, original) if method != ORIGINAL else None
        status, note = trial.status, trial.note
        timing = None if latency is None else latency.timing
        if latency is not None and latency.device_bytes:
            note = _join(note, f"{latency.device_bytes >> 20} MB on the device")
        if latency is not None and latency.failure:
            status, note = "fail to forward", latency.failure
        elif drop is not None and self._config.max_drop is not None and not drop.high <= self._config.max_drop:
            status = "over budget"  # also where the interval's end is not a number
        elif latency is not None and latency.stopped:
            status = "early stopped"
        accuracy = _number(trial.score)
        if trial.score is not None and accuracy is None:
            note = _join(note, f"the metric gives {trial.score.value}, which can't be compared")
            if _number(original) is not None and status in ("successful", "early stopped"):
                status = "wrong result"
        if drop is not None and not drop.sure and self._config.max_drop is not None:
            note = _join(note, "the metric gives one number, so there is no interval of the drop")
        note = _join(note, str(trial.recipe.get("note", "")))  # the runtime's, such as a precision that this cpu lacks
        log = self._saved.log(method)
        return Row(
            method=method,
            status=status,
            latency_ms=None if timing is None else timing.median_ms,
            p95_ms=None if timing is None else timing.p95_ms,
            accuracy=accuracy,
            drop=0.0 if method == ORIGINAL and accuracy is not None else None if drop is None else drop.point,
            drop_low=drop.low if drop is not None and drop.sure else None,
            drop_high=drop.high if drop is not None and drop.sure else None,
            peak_mb=None if timing is None or latency is None else latency.peak_bytes / 2**20,
            size_mb=trial.size_bytes / 2**20 if trial.size_bytes else None,
            note=note,
            runs=0 if timing is None else timing.runs,
            distance=trial.distance,
            kept=trial.kept,
            recipe=trial.recipe,
            log=str(log) if log.is_file() and log.stat().st_size else "",
        )


def _open(folder: Path, place: Chosen, tuning: Tuning) -> Graph:
    """Return a method's artifact, on the device of the search if it is for that kind."""
    artifact = read_artifact(folder)
    number = place.number_of(artifact.choice.device)
    return open_graph(artifact, replace(tuning, number=number), trust=True)


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _number(score: Score | None) -> float | None:
    """Return the score's value; None where it can't be compared with others."""
    return score.value if score is not None and math.isfinite(score.value) else None
