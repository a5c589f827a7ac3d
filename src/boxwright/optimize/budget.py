"""One int8 model within a budget of accuracy, in one call."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from boxwright.core.errors import BudgetError, ConversionError, UsageError
from boxwright.optimize.accuracy import Direction
from boxwright.optimize.candidates import METHODS
from boxwright.optimize.case import Case
from boxwright.optimize.config import SearchConfig
from boxwright.optimize.model import LoadOptions, OptimizedModel, remove_with
from boxwright.optimize.search import run_search
from boxwright.runtimes.base import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much of the original's accuracy may be lost.

    Example:
        >>> Budget.parse({"absolute": 0.01, "higher_is_better": False}, "max")
        Budget(loss=0.01, kind='absolute', direction='min')
    """

    loss: float
    kind: Literal["relative", "absolute"] = "relative"
    direction: Direction = "max"

    @classmethod
    def parse(cls, criterion: Any, direction: Direction) -> "Budget":
        """Return the budget of an `accuracy_criterion`.

        Raises:
            UsageError: it is neither a share nor one of the dictionaries.
        """
        values = dict(criterion) if isinstance(criterion, Mapping) else {"relative": criterion}
        if "higher_is_better" in values:
            direction = "max" if values.pop("higher_is_better") else "min"
        kind, loss = next(iter(values.items()), ("", None))
        if len(values) != 1 or kind not in ("relative", "absolute") or not isinstance(loss, int | float) or loss < 0:
            raise UsageError(
                f"accuracy_criterion={criterion!r} is not understood. Give the share that may be lost, such as 0.01, "
                "or {'relative': 0.01} or {'absolute': 0.005}, with 'higher_is_better' beside it."
            )
        return cls(loss=float(loss), kind="relative" if kind == "relative" else "absolute", direction=direction)

    def search(self, case: Case, choice: Choice, folder: str | Path | None, options: LoadOptions) -> OptimizedModel:
        """Return the case's model converted, with as many layers in float as the budget needs.

        Raises:
            BudgetError: it loses more, whatever stays in float.
            ConversionError: it can't be converted.
        """
        from boxwright.runtimes.program import open_original  # imports torch

        method = next((name for name, known in METHODS.items() if known.choice == choice), None)
        if method is None:
            raise UsageError(f"Runtime {choice.runtime!r} has no method {choice.mode!r} in {choice.precision}.")
        target = Path(tempfile.mkdtemp(prefix="boxwright-artifact-")) if folder is None else Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{str(target)!r} is not an empty folder. Choose a new folder for the artifact.")
        assert case.scorer is not None
        score = case.scorer.score(open_original(case.source()))
        most = abs(score.value) * self.loss if self.kind == "relative" else self.loss
        config = SearchConfig(includes=[method], max_drop=most, latency_sample_num=1, early_stop=None)
        with tempfile.TemporaryDirectory(prefix="boxwright-optimize-") as scratch:
            row = run_search(case, Path(scratch), config).row(method)
            if row.status == "over budget":
                raise BudgetError(
                    f"{method} loses {row.drop:.4g} of {case.scorer.name} (up to {row.drop_high or row.drop:.4g}), "
                    f"more than the {most:.4g} that accuracy_criterion allows, with {len(row.kept)} layers in float."
                )
            if row.status != "successful":
                raise ConversionError(f"{method}: {row.status}. {row.note}")
            shutil.copytree(Path(scratch) / "artifacts" / method, target, dirs_exist_ok=True)
        made = options.open(target, method, trust=True)
        if folder is None:
            remove_with(made, target)
        made.example = getattr(case, "call", None)
        return made
