"""`Case`: a model with its data, sent to every child of a search."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from boxwright.core.files import write_whole
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.devices.chosen import Chosen
from boxwright.launchers.payload import pack, unpack
from boxwright.optimize.accuracy import Scorer
from boxwright.runtimes.base import Graph, Tuning

Inputs = tuple[Array, ...]
"""Flat inputs of one request, as `Signature.inputs` lists them."""


class Case(Protocol):
    """The model to optimise. It is pickled: our own cases hold paths and settings, and build the rest in the child."""

    @property
    def spec(self) -> Spec | None:
        """What the model detects, if it is a detector."""

    @property
    def scorer(self) -> Scorer | None:
        """What measures the accuracy; None where no metric was given."""

    def source(self) -> Any:
        """Return the model with an example of its call, a `runtimes.source.Source`."""

    def probes(self) -> Sequence[Inputs]:
        """Return inputs to compare a converted model with the original on; the first is stored in the artifact."""

    def calibration(self) -> Sequence[Inputs]:
        """Return inputs to measure value ranges on; empty if there are no real ones."""

    def timing_inputs(self) -> Inputs:
        """Return the inputs of one timed run."""

    def fingerprint(self) -> str:
        """Return a text that changes with the model and its data."""


def write_case(case: Case, file: Path) -> None:
    """Write a case for children to read.

    Raises:
        UsageError: something in it can't be sent to another process.
    """
    write_whole(file, pack(case, "The model, its data or the metric"))


def read_case(file: Path) -> Case:
    """Return the case that the parent wrote."""
    case: Case = unpack(file.read_bytes())
    return case


def open_case(file: Path, place: Chosen, tuning: Tuning) -> Graph:  # noqa: ARG001  PyTorch reads OMP_NUM_THREADS
    """Return the model of a case, not converted."""
    from boxwright.runtimes.program import open_original  # imports torch, which other children do without

    return open_original(read_case(file).source(), place)
