"""How a model is spread over worker processes: what `--hint` means for a server."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from boxwright.core.cpu import Cpu, read_cpu, split_cores
from boxwright.core.errors import UsageError
from boxwright.core.packages import installed_version
from boxwright.devices.detect import GPU, find_accelerators
from boxwright.runtimes.artifact import is_artifact, read_artifact
from boxwright.runtimes.autopilot import choose
from boxwright.runtimes.base import Tuning
from boxwright.serve.config import ServeConfig
from boxwright.tasks.models import WEIGHTS

_STREAMING = ("openvino", "onnxruntime")
_MOST_LARGE = 10  # bytes for each pixel of the one large picture that a worker decodes at a time
_MOST_SMALL = 64 << 20  # bytes for each picture beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The worker processes of a model.

    Attributes:
        cpus: the logical cpus of each process; empty for all of them.
        streams: pictures that a process computes side by side.
        tunings: how the model is loaded; the second one, if any, is for a single picture.
        devices: where each process computes.
        batch: the most pictures at once; 1 on a CPU.
        reason: the plan in words.
    """

    cpus: tuple[tuple[int, ...], ...]
    streams: int
    tunings: tuple[Tuning, ...]
    devices: tuple[str, ...] = ()
    batch: int = 1
    reason: str = ""

    @property
    def parallel(self) -> int:
        """How many pictures are computed at a time."""
        return len(self.cpus) * self.streams

    @property
    def capacity(self) -> int:
        """How many requests a worker holds: for each stream one that is computed and one that waits in its socket."""
        return 2 * self.streams if self.batch == 1 else self.streams + 1

    def start_values(self, config: ServeConfig, name: str, number: int) -> dict[str, Any]:
        """Return what a worker of this plan is started with, as JSON values."""
        return {
            "name": name,
            "path": str(config.models[name].absolute()),  # links are followed when it is read: a version may be a link
            "options": asdict(config.options),
            "trust": config.trust,
            "device": self.devices[number] if self.devices else "cpu",
            "tunings": [asdict(tuning) for tuning in self.tunings],
            "cpus": list(self.cpus[number]),
            "streams": self.streams,
            "batch": self.batch,
            "batch_wait_ms": config.batch_wait_ms,
            "spare_bytes": _MOST_LARGE * config.max_pixels + _MOST_SMALL * self.streams,
        }


def plan_workers(path: Path, config: ServeConfig, cpu: Cpu | None = None) -> WorkerPlan:
    """Return the worker processes of a model; nothing is loaded.

    Raises:
        CheckpointError: the artifact can't be read.
        UsageError: an option does not apply to the model, or there are more workers than cores.
    """
    cpu = cpu or read_cpu()
    in_torch = path.suffix.lower() in WEIGHTS
    gpus = _count_gpus()
    if config.device == GPU and not in_torch:
        raise UsageError(f"device={GPU!r} does not apply to {path.name}, which runs on the CPU. Serve a weight file.")
    if in_torch and (config.device == GPU or (config.device == "auto" and gpus)):
        gpus = max(gpus, 1)  # the worker says what is missing
        if config.hint != "auto" or config.workers is not None:
            raise UsageError(
                "hint and workers do not apply to a GPU, which computes in batches. Set the batch, or cpu."
            )
        return WorkerPlan(
            cpus=((),) * gpus,
            streams=2 * config.batch,  # while one batch is computed, the pictures of the next one are decoded
            tunings=(Tuning(),),
            devices=tuple(f"{GPU}:{number}" for number in range(gpus)),
            batch=config.batch,
            reason=f"{gpus} process on a GPU each, batches of up to {config.batch}",
        )
    runtime = read_artifact(path, verify=False).choice.runtime if is_artifact(path) else "onnxruntime"
    runtime = "eager" if in_torch else runtime
    streaming = runtime in _STREAMING
    if config.workers is not None:
        return _fixed(cpu, config.workers, streaming=streaming)
    hint = config.hint
    if hint == "auto":
        hint = "throughput" if streaming else "latency"
    found = choose(cpu, hint=hint, runtime=runtime)
    tuning = Tuning(threads=found.threads, hint=found.hint, streams=found.streams if found.streams > 1 else None)
    tunings, reason = [tuning], f"for {hint}: {found.name}"
    if config.hint == "auto" and found.instances == 1 and found.streams > 1:
        alone = choose(cpu, hint="latency", runtime=runtime)
        tunings.append(Tuning(threads=alone.threads, hint="latency"))
        reason = f"{found.name}; a lone request gets {alone.threads} threads"
    cpus = ((),) if found.here else found.cpus
    return WorkerPlan(cpus=cpus, streams=found.streams, tunings=tuple(tunings), reason=reason)


def _count_gpus() -> int:
    """Return how many GPUs PyTorch can probably use; torch itself is not imported here."""
    if "+cpu" in installed_version("torch"):
        return 0
    return sum(accelerator.kind == GPU for accelerator in find_accelerators())


def _fixed(cpu: Cpu, workers: int, *, streaming: bool) -> WorkerPlan:
    cores = cpu.usable_cores
    if workers > cores:
        raise UsageError(f"workers={workers!r} is more than the {cores} cores that may be used. Ask for fewer.")
    threads = cores // workers
    if streaming:
        tuning = Tuning(threads=threads, hint="throughput", streams=workers)
        return WorkerPlan(
            cpus=((),), streams=workers, tunings=(tuning,), reason=f"{workers} streams x {threads} threads"
        )
    groups = tuple(tuple(sorted(c for core in share for c in core.cpus)) for share in split_cores(cpu.cores, workers))
    tuning = Tuning(threads=threads)
    return WorkerPlan(cpus=groups, streams=1, tunings=(tuning,), reason=f"{workers} processes x {threads} threads")
