"""`SearchConfig`: what a search tries, how it times, and how much accuracy a method may cost."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from boxwright.core.errors import UsageError, check_choice
from boxwright.devices.chosen import CPU, Chosen, find_device
from boxwright.optimize.candidates import METHODS, ORIGINAL, SearchMode, find_method, matches, to_list
from boxwright.optimize.process import share_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """How to search: the keyword arguments of `InferenceOptimizer.optimize`, and part of `OptimizeConfig`.

    Attributes:
        includes: try only these methods; None for those of the search mode.
        excludes: leave out these methods.
        search_mode: "default", or "all" to include variants that are rarely the best.
        device: try the methods of this device, with the original on it: "cpu", a device of the catalogue, one with a
            number ("cuda:1"), or "auto" for the first accelerator that torch can use, else the CPU. `includes` may name
            methods of others.
        accelerator: try only methods of these: pytorch (or None in a list), jit, compile, openvino, onnxruntime, ipex,
            graph, tensorrt.
        precision: try only methods of these: fp32, bf16, fp16, int8.
        thread_num: computing threads of each model; None for one per usable physical core.
        latency_sample_num: timed runs of each model, at most.
        max_drop: how much of the score may be lost; None for any. A row is accepted only if the upper end of the
            interval of its loss is inside. An int8 or bf16 row outside gets its most sensitive layers back in float.
        confidence: confidence of each end of that interval.
        timeout_s: time limit of a conversion, of loading, and of one run.
        memory_mb: memory limit of a child, in MiB; None for most of what is free.
        search_tries: how many times layers are put back into float for one row.
        early_stop: stop timing a model that is this many times slower than the original; None to time all.
        methods: the names of what is tried, in the table's order; the original is always among them.
        place: the device that `device` means here.

    Raises:
        UsageError: a value makes no sense, a name is unknown, or no method is left to try.

    Example:
        >>> SearchConfig(includes=["openvino_int8", "bf16"]).methods
        ('original', 'bf16', 'openvino_int8')
    """

    includes: Iterable[str] | None = None
    excludes: Iterable[str] | None = None
    search_mode: SearchMode = "default"
    device: str = CPU
    accelerator: str | Iterable[str | None] | None = None
    precision: str | Iterable[str] | None = None
    thread_num: int | None = None
    latency_sample_num: int = 100
    max_drop: float | None = None
    confidence: float = 0.95
    timeout_s: float = 600.0
    memory_mb: int | None = None
    search_tries: int = 5
    early_stop: float | None = 3.0
    methods: tuple[str, ...] = field(init=False)
    place: Chosen = field(init=False)

    def __post_init__(self) -> None:
        share_cores(self.thread_num)  # refuses too many
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
        object.__setattr__(self, "place", find_device(self.device))
        if not self.place.is_cpu:
            self.place.check()
        object.__setattr__(self, "methods", self._choose())

    def _choose(self) -> tuple[str, ...]:
        check_choice("search_mode", self.search_mode, ("default", "all"))
        if self.includes is not None:
            wanted = {find_method(name) for name in to_list(self.includes)}
        else:
            here = {name for name, method in METHODS.items() if method.device in ("", self.place.name)}
            wanted = {name for name in here if METHODS[name].usual or self.search_mode == "all"}
        unwanted = {find_method(name) for name in to_list(self.excludes)}
        if ORIGINAL in unwanted:
            raise UsageError("excludes=['original'] is not possible: every other method is compared with it.")
        chosen = {
            name for name in wanted - unwanted if matches(name, accelerator=self.accelerator, precision=self.precision)
        }
        if not chosen:
            asked = ("accelerator", "precision", "includes", "excludes", "search_mode", "device")
            raise UsageError(f"No method is left to try: {', '.join(f'{k}={getattr(self, k)!r}' for k in asked)}.")
        return tuple(name for name in METHODS if name == ORIGINAL or name in chosen)
