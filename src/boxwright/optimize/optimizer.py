"""`InferenceOptimizer`: try every way to run a model, show a table, and return the best."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from boxwright.core.errors import BoxwrightError, UsageError, check_choice
from boxwright.core.log import progress_bar
from boxwright.devices.chosen import Chosen
from boxwright.optimize.accuracy import Direction
from boxwright.optimize.candidates import METHODS, ORIGINAL, find_method, to_list
from boxwright.optimize.config import SearchConfig
from boxwright.optimize.conversions import CALIBRATION_SAMPLES, Conversions, check_samples, find_original, make_form
from boxwright.optimize.dynamic import Dynamic, FreeAxes
from boxwright.optimize.metrics import MetricScorer
from boxwright.optimize.model import LoadOptions, remove_with
from boxwright.optimize.model_case import ModelCase, example_call, fitting_samples, hash_model, take_samples
from boxwright.optimize.module import as_module
from boxwright.optimize.nano_names import takes_nano_names
from boxwright.optimize.report import Report
from boxwright.optimize.saved_trials import lock_folder
from boxwright.optimize.search import run_search
from boxwright.runtimes.artifact import is_artifact
from boxwright.runtimes.base import Hint
from boxwright.runtimes.source import Source


class InferenceOptimizer(Conversions):
    """Finds the fastest way to run a PyTorch model on this machine that keeps its accuracy.

    Args:
        folder: for artifacts, logs and the report. A second search in the same folder resumes where the first one
            ended. None for a temporary folder that is removed with the optimizer.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = InferenceOptimizer()
        >>> report = optimizer.optimize(
        ...     model, torch.rand(2, 4), includes=["fp32"], latency_sample_num=5, thread_num=1
        ... )
        >>> [(row.method, row.status) for row in report.rows]
        [('original', 'successful'), ('fp32', 'successful')]
        >>> optimizer.get_model("fp32")(torch.rand(3, 4)).shape
        torch.Size([3, 2])
        >>> optimizer.close()
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="boxwright-optimize-")) if folder is None else Path(folder)
        self._remove = None if folder is not None else remove_with(self, self._folder)
        self._report: Report | None = None
        self._model: nn.Module | None = None
        self._place = Chosen()

    @property
    def folder(self) -> Path:
        """The folder of the artifacts, logs and the report."""
        return self._folder

    @property
    def report(self) -> Report:
        """The report of the last search.

        Raises:
            UsageError: there was none yet.
        """
        if self._report is None:
            raise UsageError("Nothing has been tried yet. Call optimize(model, training_data, …) first.")
        return self._report

    @takes_nano_names
    def optimize(
        self,
        model: nn.Module,
        training_data: Any = None,
        validation_data: Any = None,
        input_sample: Any = None,
        metric: Any = None,
        direction: Direction = "max",
        *,
        target: str | Sequence[str] | None = None,
        dynamic: Dynamic = None,
        calibration_samples: int = CALIBRATION_SAMPLES,
        output_filename: str | Path | None = None,
        quiet: bool = False,
        **search: Any,
    ) -> Report:
        """Try every method on the model and return the report; see `summary`, `get_model` and `get_best_model`.

        Each method is tried in its own process. One that crashes, hangs or runs out of memory becomes a row with the
        reason, and the search continues.

        Args:
            model: any module.
            training_data: a loader or one batch of real inputs (with or without targets); quantisers measure value
                ranges on its first batches.
            validation_data: a loader or one batch to measure the accuracy on.
            input_sample: an example of the inputs: a tensor, a tuple of positional inputs, a dict of keyword inputs,
                or a loader. Latency is measured with it. By default the first batch of the training data, or what a
                Lightning module brings (`example_input_array`, a loader).
            metric: f(pred, target) for a batch, a torchmetrics metric, f(model, loader) or f(model). It returns one
                number, or one per sample: then the loss gets an interval.
            direction: "max" if more of the metric is better, "min" if less is.
            target: the key or keys of the target in batches that are dictionaries; by default what `forward` does not
                take, and "labels", "label", "target", "targets" or "y".
            dynamic: the axes that may have any size: None for the batch and what varies in the training data, True for
                all that the model allows, False for none, some of "batch", "height", "width" and "sequence", or
                {"input_ids": [0, 1]}. An axis that a runtime can't keep free is fixed, and its row says so.
            calibration_samples: how many batches of the training data a quantiser uses.
            output_filename: a file for the table (text).
            quiet: show no progress bar.
            search: what to try, how to time it and how much accuracy it may cost: `includes`, `excludes`,
                `search_mode`, `device`, `accelerator`, `precision`, `thread_num`, `latency_sample_num`, `max_drop`,
                `confidence`, `timeout_s`, `memory_mb`, `search_tries`, `early_stop` (see `SearchConfig`).

        Raises:
            UsageError: an argument makes no sense, something can't be sent to another process, or another search uses
                the folder.
            ConversionError: the model fails on the inputs.
        """
        config = SearchConfig(**search)
        model = find_original(model, "optimize")
        check_choice("direction", direction, ("max", "min"))  # taken for the other one, it would reverse the metric
        check_samples(calibration_samples)
        if output_filename is not None and (
            Path(output_filename).is_dir() or not Path(output_filename).parent.is_dir()
        ):
            raise UsageError(
                f"output_filename={str(output_filename)!r} can't be written: give a file in an existing folder."
            )
        if validation_data is not None and metric is None:
            raise UsageError("validation_data is given, but no metric to use it with. Give metric=f(pred, target).")
        form = make_form(model, target)
        call = example_call(form, model, training_data, input_sample)
        fixed = Source.of(model, *call, free_batch=False)  # the model fails here, before any process is started
        by_sample = isinstance(input_sample, Mapping)
        taken = (
            []
            if training_data is None
            else take_samples(training_data, form, fixed, calibration_samples, by_sample=by_sample)
        )
        axes = FreeAxes(dynamic=dynamic, seen=tuple(taken))
        source = axes.make_source(model, call)
        samples = fitting_samples(source, taken)
        axes = replace(axes, seen=tuple(samples))
        scorer = (
            None
            if metric is None
            else MetricScorer(metric=metric, data=validation_data, form=form, direction=direction, model=model)
        )
        case = ModelCase(
            model=model,
            call=call,
            samples=tuple(samples),
            scorer=scorer,
            model_digest=hash_model(source, samples),
            axes=axes,
        )
        config = fitting_methods(config, model)
        with lock_folder(self._folder), progress_bar(hidden=quiet) as progress:
            try:
                self._report = run_search(case, self._folder, config, progress=progress)
            except BoxwrightError as error:
                if self._remove is not None and str(self._folder) in str(error):
                    self._remove.detach()  # the error names a log in it
                raise
        self._model, self._place = model, config.place
        if output_filename is not None:
            Path(output_filename).write_text(self.summary() + "\n", encoding="utf-8")
        return self._report

    def summary(self) -> str:
        """Return the table of the last search."""
        return self.report.table()

    def get_model(self, method_name: str, *, hint: Hint | None = None, streams: int | None = None) -> Any:
        """Return a method's converted model, ready to be called; for "original", the model as it was given.

        Args:
            method_name: one of those that were tried.
            hint: as in `load`; by default the model has the threads that it was timed with.
            streams: as in `load`; they share those threads.

        Raises:
            UsageError: the method was not tried, has no model because it failed, or does not support these options.
        """
        method = find_method(method_name)
        tried = [row.method for row in self.report.rows]
        if method not in tried:
            raise UsageError(f"{method_name!r} was not tried. Tried: {', '.join(tried)}.")
        if method == ORIGINAL:
            if hint is not None or streams is not None:
                raise UsageError("The original is not converted: neither hint nor streams apply. Leave them out.")
            return self._model
        folder = self._folder / "artifacts" / method
        if not is_artifact(folder):
            row = self.report.row(method)
            raise UsageError(f"{method_name!r} has no model: {row.status}{f' ({row.note})' if row.note else ''}.")
        threads = None if hint is not None else max(1, self.report.settings.threads // max(1, streams or 1))
        place = self._place if METHODS[method].device == self._place.name else None
        options = LoadOptions(
            thread_num=threads, hint=hint, streams=streams, device=None if place is None else str(place)
        )
        return as_module(options.open(folder, method, trust=True), self._model)

    def get_best_model(
        self,
        accelerator: str | Sequence[str | None] | None = None,
        precision: str | Sequence[str] | None = None,
        accuracy_criterion: float | None = None,
    ) -> tuple[Any, str]:
        """Return the fastest model inside the budget, and its method's name.

        Args:
            accelerator: only methods of these accelerators.
            precision: only methods of these precisions.
            accuracy_criterion: the share of the original's accuracy that may be lost (0.05: five per cent of it). Like
                `max_drop`, it is compared with the upper end of the loss's interval.

        Raises:
            BudgetError: all candidates lose more.
            UsageError: a criterion was given, but accuracy was not measured.
        """
        max_drop = None
        if accuracy_criterion is not None:
            accuracy = self.report.original.accuracy
            if accuracy is None:
                raise UsageError("accuracy_criterion needs the accuracy. Give metric=… to optimize().")
            if not 0 <= accuracy_criterion < float("inf"):
                raise UsageError(
                    f"accuracy_criterion={accuracy_criterion!r} must be a share of at least 0, such as 0.05."
                )
            max_drop = abs(accuracy) * accuracy_criterion
        row = self.report.best(accelerator=accelerator, precision=precision, max_drop=max_drop)
        return self.get_model(row.method), row.method

    def close(self) -> None:
        """Remove the temporary folder, if there is one; closing twice is allowed."""
        if self._remove is not None:
            self._remove()

    def __enter__(self) -> "InferenceOptimizer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fitting_methods(config: SearchConfig, model: nn.Module) -> SearchConfig:
    """Return the settings without the channels-last methods, for a model without image layers."""
    if config.includes is not None or any(p.ndim in (4, 5) for p in model.parameters()):
        return config
    senseless = [name for name in config.methods if (choice := METHODS[name].choice) and choice.channels_last]
    return replace(config, excludes=[*to_list(config.excludes), *senseless]) if senseless else config
