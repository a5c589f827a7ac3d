"""`Case`: a model with its data, as it is sent to every child."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.launchers.folder import write_atomically
from boxwright.launchers.payload import pack, unpack
from boxwright.optimize.accuracy import Scorer

Inputs = tuple[Array, ...]
"""Flat inputs of one request, as `Signature.inputs` lists them."""


class Case(Protocol):
    """What is to be optimised. It is pickled: a case of ours holds paths and settings, and builds the rest in place."""

    @property
    def spec(self) -> Spec | None:
        """What the model detects, if it is a detector."""
        ...

    @property
    def scorer(self) -> Scorer | None:
        """What gives the accuracy; None where nobody said what a good model is."""
        ...

    def source(self) -> Any:
        """Return the model with an example of its call, a `runtimes.source.Source`."""
        ...

    def probes(self) -> Sequence[Inputs]:
        """Return the inputs on which a converted model is compared with the original; the first goes along with it."""
        ...

    def calibration(self) -> Sequence[Inputs]:
        """Return inputs that a quantiser measures value ranges on; none if there are no real ones."""
        ...

    def timing_inputs(self) -> Inputs:
        """Return the inputs whose way through the model is timed."""
        ...

    def fingerprint(self) -> str:
        """Return a text that changes with the model and its data."""
        ...


def write_case(case: Case, file: Path) -> None:
    """Write a case for children to read.

    Raises:
        UsageError: something in it can't be sent to another process.
    """
    write_atomically(file, pack(case, "The model, its data or the metric"))


def read_case(file: Path) -> Case:
    """Return the case that the parent wrote."""
    case: Case = unpack(file.read_bytes())
    return case
