"""The runtime interface: a model is converted to a folder, and a folder is loaded into a graph."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import UsageError, WorkerError
from boxwright.core.signature import Array, Signature
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.runtimes.calibrate import Calibration

Hint = Literal["latency", "throughput"]
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a model is converted: the runtime, the number format and the layout.

    Attributes:
        runtime: a name of the catalogue.
        precision: the number format of the heavy layers.
        channels_last: whether image tensors lie channels last inside.
        mode: the variant, where a runtime has several for one precision (ONNX Runtime's "qlinear" and "integer").
        device: a name of the catalogue; the result runs on this kind of device only.
    """

    runtime: str
    precision: Precision = Precision.FP32
    channels_last: bool = False
    mode: str = ""
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as plain JSON values."""
        return asdict(self) | {"precision": str(self.precision)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Choice":
        """Return the choice that `to_dict` described."""
        return cls(
            runtime=str(values["runtime"]),
            precision=Precision.parse(values["precision"]),
            channels_last=bool(values["channels_last"]),
            mode=str(values["mode"]),
            device=str(values.get("device", "cpu")),  # older artifacts are for the CPU
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How a loaded model uses the machine; None leaves it to the runtime, within this process's cores.

    Attributes:
        threads: computing threads for one request.
        hint: the fastest answer to one request, or the most answers in a second.
        streams: requests computed in parallel, where the runtime can do that itself.
        cpus: the logical cpus of each process that the model runs in; empty for this process. `open_graph` starts
            them, so runtimes do not handle it.
        properties: OpenVINO's own properties, which replace those that are chosen here.
        session_options: ONNX Runtime's own `SessionOptions`, in place of those that are made here.
        number: which of several devices, where the model is for one that has numbers.
    """

    threads: int | None = None
    hint: Hint = "latency"
    streams: int | None = None
    cpus: tuple[tuple[int, ...], ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    session_options: Any = None
    number: int = 0


class Graph(Protocol):
    """A loaded model of any kind: flat numpy arrays in, flat numpy arrays out."""

    signature: Signature

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for inputs that `signature.check` returned; the caller owns the arrays."""
        ...

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests in their order, computed in parallel where the runtime can."""
        ...

    def close(self) -> None:
        """Release everything the graph holds; closing twice is allowed."""
        ...


class Session(Protocol):
    """A loaded detector: numpy in, numpy out."""

    spec: Spec

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the (B, A, 5 + C) output, in the form `spec.output`, of a (B, 3, H, W) input."""
        ...

    def close(self) -> None:
        """Release everything the session holds."""
        ...


class Runtime(Protocol):
    """A back end: one file, one entry of the catalogue."""

    name: str

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write everything that `load` needs into the folder; return how it was done, as plain JSON values.

        `source` is a `runtimes.source.Source`. `calibration` is given for int8. Where the model can't be converted with
        the axes free that are free in the source's signature, this fails, and is called again with fewer.

        Raises:
            ConversionError: the model can't be converted.
            UsageError: the runtime does not offer such a choice.
        """
        ...

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> Graph:
        """Return a graph over a folder that `convert` filled.

        Raises:
            CheckpointError: the folder's files can't be loaded.
        """
        ...


def check_offer(
    choice: Choice,
    calibration: Calibration | None,
    *,
    modes: Mapping[Precision, Sequence[str]],
    channels_last: bool = True,
    devices: Sequence[str] = ("cpu",),
) -> None:
    """Reject a choice that a runtime does not offer.

    Args:
        choice: what is asked for.
        calibration: the inputs that come with it.
        modes: the modes of each precision that the runtime has.
        channels_last: whether the layout can be chosen.
        devices: the devices that the runtime has these for.

    Raises:
        UsageError: the device, precision, mode or layout is not offered, or there are no calibration inputs.
    """
    runtime = f"Runtime {choice.runtime!r}"
    if choice.device not in devices:
        raise UsageError(f"{runtime} does not run on device={choice.device!r}. It offers: {', '.join(devices)}.")
    if choice.precision not in modes:
        known = ", ".join(str(p) for p in modes)
        raise UsageError(f"{runtime} has no precision {str(choice.precision)!r}. It offers: {known}.")
    if choice.mode not in modes[choice.precision]:
        known = ", ".join(repr(m) for m in modes[choice.precision])
        raise UsageError(
            f"{runtime} has no mode {choice.mode!r} for precision {str(choice.precision)!r}. It offers: {known}."
        )
    if choice.channels_last and not channels_last:
        raise UsageError(
            f"channels_last does not apply to {choice.runtime}, which chooses layouts itself. Leave it out."
        )
    if choice.precision is Precision.INT8 and choice.mode != "integer" and calibration is None:
        raise UsageError("int8 needs calibration inputs. Give images of your own data (--calibration PATH).")


def refuse_fork(process: int) -> None:
    """Refuse to use a model in a forked child: its threads and pipes are those of the process that loaded it.

    Args:
        process: the id of that process.

    Raises:
        WorkerError: this is a different process, in which a request would wait forever.
    """
    if os.getpid() != process:
        raise WorkerError(
            f"This model was loaded in process {process} and can't be used in its forked child {os.getpid()}. Load the "
            "model in each process after it is forked (gunicorn: without --preload), or start processes with "
            "multiprocessing's 'spawn'."
        )


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's text without a terminal's colours, or its type where it has none.

    Example:
        >>> first_line(ValueError("\x1b[96mno\x1b[0m such layer\nat line 3")), first_line(KeyError())
        ('no such layer', 'KeyError')
    """
    lines = _COLOUR.sub("", str(error)).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def shorten(text: str, most: int = 200) -> str:
    """Return a text in one line, cut off where it is longer.

    Example:
        >>> shorten("one  two three", 8)
        'one two…'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def side_by_side(
    run: Callable[[Sequence[Array]], tuple[Array, ...]],
    requests: Iterable[Sequence[Array]],
    pool: Executor,
    threads: int,
) -> Iterator[tuple[Array, ...]]:
    """Yield the outputs of many requests in their order, computed by the threads of a pool."""
    waiting: deque[Future[tuple[Array, ...]]] = deque()
    try:
        for inputs in requests:
            waiting.append(pool.submit(run, inputs))
            # One more than can run in parallel, so that no thread waits for the caller.
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def one_by_one(graph: Graph, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
    """Yield the outputs of many requests, one after the other: `run_all` of a runtime with nothing better."""
    for inputs in requests:
        yield graph.run(inputs)
