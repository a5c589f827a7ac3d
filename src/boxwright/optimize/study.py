"""The whole search: every method tried in a child, accuracy kept by putting layers back, then all timed together."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import ConversionError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.timing import hardware_line
from boxwright.core.types import Precision
from boxwright.optimize.accuracy import Drop, Score, measure_drop
from boxwright.optimize.candidates import METHODS, ORIGINAL
from boxwright.optimize.case import Case, write_case
from boxwright.optimize.process import ChildFailed, Limits, Nursery, open_nursery
from boxwright.optimize.report import Report, Row, Settings
from boxwright.optimize.search import RankJob, put_back
from boxwright.optimize.store import Store, used_versions
from boxwright.optimize.timing import ArtifactTarget, Latency, OriginalTarget, RaceRules, Target, race, write_inputs
from boxwright.optimize.trial import TrialJob, Tried, run_trial
from boxwright.runtimes.artifact import add_measurements

_log = get_logger(__name__)
_SCORE_TIMES = 5.0  # scoring may take so many times as long as with the original
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyConfig:
    """How to search.

    Attributes:
        methods: what to try, the original first.
        thread_num: computing threads of each model; None for one a usable physical core.
        max_drop: how much of the score may be lost; None for any.
        confidence: how sure the loss must be inside the budget (see `measure_drop`).
        latency_sample_num: timed runs of each model, at most.
        timeout_s: how long a conversion, loading or one run may take.
        memory_mb: how much memory a child may use, in MiB; None for most of what is free.
        search_tries: how often layers are put back into float for a row that is over the budget.
        early_stop: models that need so many times the original's time are not timed to the end; None to time all.
        remarks: sentences for the report.
    """

    methods: tuple[str, ...]
    thread_num: int | None = None
    max_drop: float | None = None
    confidence: float = 0.95
    latency_sample_num: int = 100
    timeout_s: float = 600.0
    memory_mb: int | None = None
    search_tries: int = 5
    early_stop: float | None = 3.0
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        allowed = len(read_cpu().allowed)
        if self.thread_num is not None and not 1 <= self.thread_num <= allowed:
            raise UsageError(f"thread_num={self.thread_num!r} is not possible: this process may use {allowed} cpus.")
        if self.max_drop is not None and not 0 <= self.max_drop < math.inf:
            raise UsageError(
                f"max_drop={self.max_drop!r} must be a number of at least 0: it is how much may be lost. "
                "Use None to allow any loss."
            )
        if not 0.5 <= self.confidence < 1:
            raise UsageError(f"confidence={self.confidence!r} must be at least 0.5 and below 1.")
        for name in ("latency_sample_num", "timeout_s", "memory_mb", "early_stop"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name}={value!r} must be more than 0.")
        if self.search_tries < 0:
            raise UsageError(f"search_tries={self.search_tries!r} must not be negative. Use 0 to put no layers back.")


def run_study(case: Case, folder: Path, config: StudyConfig, progress: Progress | None = None) -> Report:
    """Try every method, time those that work, and return the report, which is also in the folder.

    Raises:
        UsageError: the case can't be sent to another process, there is a budget but no metric, or the metric fails.
        ConversionError: the original itself does not run.
    """
    if config.max_drop is not None and case.scorer is None:
        raise UsageError(f"max_drop={config.max_drop!r} needs a metric to measure the loss with. Give metric=…")
    with open_nursery() as nursery:
        study = _Study(case, folder, config, nursery, progress or (lambda *_: None))
        report = study.run()
    report.save(folder)
    return report


class _Study:
    def __init__(self, case: Case, folder: Path, config: StudyConfig, nursery: Nursery, progress: Progress) -> None:
        self._case, self._config, self._nursery = case, config, nursery
        self._progress = progress
        self._case_file = nursery.folder / "case"
        write_case(case, self._case_file)  # first: what can't be sent is refused before all the data is read
        self._store = Store(folder, case.fingerprint())
        cpu = read_cpu()
        self._threads = config.thread_num or cpu.usable_cores
        some = cpu.cores[: self._threads] if config.thread_num is not None else ()
        self._limits = Limits(
            time_s=config.timeout_s,
            memory_bytes=None if config.memory_mb is None else config.memory_mb << 20,
            threads=self._threads,
            cores=tuple(sorted(c for core in some for c in core.cpus)),
        )
        self._ranked: dict[Precision, tuple[str, ...]] = {}
        self._rank_failures: dict[Precision, str] = {}
        self._last_kept: tuple[str, ...] = ()
        self._done = 0

    def run(self) -> Report:
        tried = {ORIGINAL: self._try_original()}
        original = tried[ORIGINAL].score
        for method in self._config.methods:
            if method != ORIGINAL:
                tried[method] = self._try(method, original)
                self._say(method)
        latencies = self._time({m: t for m, t in tried.items() if t.status == "successful"})
        rows = [self._row(method, tried[method], original, latencies.get(method)) for method in tried]
        inputs = self._case.timing_inputs()
        sizes = {a.shape[0] if a.ndim else None for a in inputs}
        scorer = self._case.scorer
        settings = Settings(
            machine=hardware_line(),
            threads=self._threads,
            batch=sizes.pop() if len(sizes) == 1 else None,
            metric="" if scorer is None else scorer.name,
            direction="max" if scorer is None else scorer.direction,
            max_drop=self._config.max_drop,
            confidence=self._config.confidence,
            versions={k: v for m in tried for k, v in used_versions(METHODS[m].choice).items()},
            remarks=self._config.remarks,
        )
        for row in rows:
            if row.latency_ms is not None and row.method != ORIGINAL:
                add_measurements(self._store.artifact(row.method), row.to_dict() | {"machine": settings.machine})
        return Report(rows=tuple(rows), settings=settings)

    def _say(self, what: str) -> None:
        self._done += 1
        self._progress(what, self._done, 2 * len(self._config.methods))

    def _try_original(self) -> Tried:
        self._progress(ORIGINAL, 0, 2 * len(self._config.methods))
        known = self._store.read(ORIGINAL, None)
        # However long the user's data takes, the original is scored; the others are measured by that.
        self._limits = replace(self._limits, stage_s={"score": math.inf})
        tried = known or self._attempt(ORIGINAL, ())
        patience_s = max(self._config.timeout_s, _SCORE_TIMES * tried.score_s)
        self._limits = replace(self._limits, stage_s={"score": patience_s})
        scorer, budget = self._case.scorer, self._config.max_drop
        if tried.status != "successful":
            log = self._store.log(ORIGINAL)
            if tried.stage == "score" and scorer is not None:
                raise UsageError(f"metric={scorer.name!r} fails on the model itself: {tried.note}. See {str(log)!r}.")
            raise ConversionError(f"The model itself does not run: {tried.note}. See {str(log)!r}.")
        if scorer is not None and budget is not None and _number(tried.score) is None:
            told = None if tried.score is None else tried.score.value
            raise UsageError(
                f"metric={scorer.name!r} gives {told} for the model itself, so no loss can be held against "
                f"max_drop={budget!r}. Check the metric and its data, or leave max_drop out."
            )
        self._store.write(ORIGINAL, None, tried)
        self._say(ORIGINAL)
        return tried

    def _try(self, method: str, original: Score | None) -> Tried:
        choice = METHODS[method].choice
        budget = self._config.max_drop
        searched = choice is not None and choice.precision in (Precision.INT8, Precision.BF16) and budget is not None
        wish = f"{budget} {self._config.confidence} {self._config.search_tries}" if searched else ""
        known = self._store.read(method, choice, wish)
        if known is not None:
            _log.info("%s: known from an earlier search (%s).", method, known.status)
            return known
        tried = self._attempt(method, ())
        _log.info("%s: %s%s", method, tried.status, f" ({tried.note})" if tried.note else "")
        if searched and budget is not None and tried.status in ("successful", "wrong result"):
            tried = self._search(method, tried, original, budget)
        self._store.write(method, choice, tried, wish)
        return tried

    def _attempt(self, method: str, keep_float: tuple[str, ...]) -> Tried:
        job = TrialJob(
            case=self._case_file,
            reference=self._store.reference,
            folder=self._store.artifact(method),
            choice=METHODS[method].choice,
            keep_float=keep_float,
            threads=self._threads,
            cache=self._store.folder / "tries" / "statistics",
        )
        self._last_kept = keep_float
        log = self._store.log(method)
        if not keep_float:
            log.unlink(missing_ok=True)
        return run_trial(self._nursery, job, limits=self._limits, log=log)

    def _search(self, method: str, first: Tried, original: Score | None, budget: float) -> Tried:
        def loss(tried: Tried) -> float:
            drop = self._drop(tried, original)
            return math.inf if drop is None or math.isnan(drop.high) else drop.high

        if loss(first) <= budget:
            return first
        choice = METHODS[method].choice
        assert choice is not None
        if choice.precision is Precision.BF16 and "float32" not in first.recipe:
            return first  # this runtime can't mix
        ranked = self._rank(choice.precision)
        # The runtimes leave some layers in float anyway.
        if "quantized" in first.recipe:
            ranked = tuple(name for name in ranked if name in first.recipe["quantized"])
        if choice.precision is Precision.BF16 and "keepable" in first.recipe:
            ranked = tuple(name for name in ranked if name in first.recipe["keepable"])
        ranked = tuple(name for name in ranked if name not in first.recipe.get("float32", ()))
        failure = self._rank_failures.get(choice.precision)
        if failure:
            reason = f"the layers could not be ranked ({failure}), so none was put back into float"
            return replace(first, note="; ".join(filter(None, [first.note, reason])), unfinished=True)
        if not ranked:
            return first
        found = put_back(
            first,
            ranked,
            lambda kept: self._attempt(method, kept),
            loss,
            budget=budget,
            tries=self._config.search_tries,
        )
        # The artifact on disk is the last try's; the nearest may be an earlier one.
        if found.status == "successful" and found.kept != self._last_kept:
            again = self._attempt(method, found.kept)
            return replace(again, note=found.note) if again.status == "successful" else again
        return found

    def _rank(self, precision: Precision) -> tuple[str, ...]:
        if precision not in self._ranked:
            try:
                self._ranked[precision] = self._nursery.run(
                    RankJob(self._case_file, precision),
                    limits=self._limits,
                    log=self._store.log(f"sensitivity_{precision}"),
                )
            except ChildFailed as error:
                _log.warning("The layers could not be ranked by what %s costs: %s", precision, error)
                self._ranked[precision], self._rank_failures[precision] = (), str(error)
        return self._ranked[precision]

    def _time(self, tried: dict[str, Tried]) -> dict[str, Latency]:
        inputs = self._nursery.folder / "inputs.npz"
        write_inputs(self._case.timing_inputs(), inputs)
        targets: dict[str, Target] = {
            m: OriginalTarget(self._case_file) if m == ORIGINAL else ArtifactTarget(self._store.artifact(m))
            for m in tried
        }
        self._done = 2 * len(self._config.methods) - len(targets)
        self._progress("timing", self._done, 2 * len(self._config.methods))
        rules = RaceRules(runs=self._config.latency_sample_num, baseline=ORIGINAL, early_stop=self._config.early_stop)
        return race(
            self._nursery,
            targets,
            inputs,
            rules=rules,
            limits=self._limits,
            logs=self._store.folder / "logs",
            advance=lambda: self._say("timing"),
        )

    def _drop(self, tried: Tried, original: Score | None) -> Drop | None:
        scorer, score = self._case.scorer, tried.score
        if scorer is None or score is None or original is None or None in (_number(score), _number(original)):
            return None
        return measure_drop(scorer, original, score, confidence=self._config.confidence)

    def _row(self, method: str, tried: Tried, original: Score | None, latency: Latency | None) -> Row:
        drop = self._drop(tried, original) if method != ORIGINAL else None
        status, note = tried.status, tried.note
        timing = None if latency is None else latency.timing
        if latency is not None and latency.failure:
            status, note = "fail to forward", latency.failure
        elif drop is not None and self._config.max_drop is not None and not drop.high <= self._config.max_drop:
            status = "over budget"  # also where the interval's end is no number
        elif latency is not None and latency.stopped:
            status = "early stopped"
        accuracy = _number(tried.score)
        if tried.score is not None and accuracy is None:
            note = "; ".join(
                filter(None, [note, f"the metric gives {tried.score.value}, which is no number to compare"])
            )
            if _number(original) is not None and status in ("successful", "early stopped"):
                status = "wrong result"
        if drop is not None and not drop.sure and self._config.max_drop is not None:
            note = "; ".join(filter(None, [note, "the metric gives one number, so there is no interval of the drop"]))
        if tried.recipe.get("note"):  # the runtime has something to say: a precision that this cpu lacks, say
            note = "; ".join(filter(None, [note, str(tried.recipe["note"])]))
        log = self._store.log(method)
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
            size_mb=tried.size_bytes / 2**20 if tried.size_bytes else None,
            note=note,
            runs=0 if timing is None else timing.runs,
            distance=tried.distance,
            kept=tried.kept,
            recipe=tried.recipe,
            log=str(log) if log.is_file() and log.stat().st_size else "",
        )


def _number(score: Score | None) -> float | None:
    """Return the score's value; None where it is no number that others can be compared with."""
    return score.value if score is not None and math.isfinite(score.value) else None
