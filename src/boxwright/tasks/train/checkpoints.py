"""A run's checkpoints: `last.pt` to resume from, `last.safetensors` to use, `data.lock` to recognise its images."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from boxwright.accel.averages import WeightAverage, average_norms
from boxwright.accel.checkpoint import save_checkpoint
from boxwright.accel.nano import TorchNano
from boxwright.core.config import to_yaml
from boxwright.core.errors import BoxwrightError, CheckpointError, shorten
from boxwright.core.log import get_logger
from boxwright.core.spec import Spec
from boxwright.data.fingerprint import compare, fingerprint, read_lock
from boxwright.data.records import Records
from boxwright.detector.weights import save_weights
from boxwright.tasks.train.config import Schedule, TrainConfig

_log = get_logger(__name__)


@dataclass(slots=True)
class RunState:
    """What changes from step to step, and what a checkpoint holds beside weights and optimizer."""

    step: int = 0
    position: tuple[int, int] = (0, 0)
    best: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    without_better: int = 0


@dataclass(kw_only=True)
class Checkpoints:
    """Writes checkpoints in the first process and restores them in all of them."""

    nano: TorchNano
    config: TrainConfig
    spec: Spec
    network: nn.Module
    average: WeightAverage
    optimizer: Optimizer  # as it was made, not what `nano.setup` returns
    schedule: Schedule
    batch: int
    records: Records

    def __post_init__(self) -> None:
        self._course = [self.schedule.total_steps, self.schedule.steps_per_epoch, self.batch]
        self._folder = self.config.output_dir / "weights"
        self._fingerprint = _lock_data(self.config, self.records) if self.nano.is_global_zero else ""

    @property
    def best_network(self) -> nn.Module:
        """The weights that are scored and used: the averaged ones, if there are any."""
        return self.average.model if self.config.ema else self.network

    def save_best(self, name: str) -> None:
        """Write the weights to use under a name."""
        save_weights(self._folder / f"{name}.safetensors", self.best_network, self.spec)

    def save(self, state: RunState) -> None:
        """Write `last.pt` (all that --resume needs) and `last.safetensors`; every process must call it.

        Raises:
            CheckpointError: it could not be written.
            BoxwrightError: the weights are not finite.
        """
        # All processes score, save and restore the same batch-norm statistics.
        networks = (self.network, self.average.model) if self.config.ema else (self.network,)
        average_norms(self.nano, *networks, leave=self.config.freeze)
        if not self.nano.is_global_zero:
            return
        norms = torch._foreach_norm([p.detach() for p in self.network.parameters()])
        if not torch.stack(list(norms)).isfinite().all():
            raise BoxwrightError(
                f"After step {state.step} the weights are no longer finite, so they are not saved. The last good "
                f"checkpoint is in {str(self._folder)!r}. Lower lr_per_image, or set clip_norm=35."
            )
        save_checkpoint(
            self._folder / "last.pt",
            {
                "format": 1,
                **asdict(state),
                "position": list(state.position),
                "model": self.network.state_dict(),
                "average": self.average.model.state_dict(),
                "average_steps": self.average.steps,
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.nano.scaler_state(),
                "rng": torch.get_rng_state(),
                "data": self._fingerprint,
                "course": self._course,
                "world_size": self.nano.world_size,
                "threads": torch.get_num_threads(),
                "config": to_yaml(self.config),
            },
        )
        self.save_best("last")

    def restore(self, saved: dict[str, Any]) -> RunState:
        """Restore a run from its last whole checkpoint, and warn about what has changed.

        Raises:
            CheckpointError: the checkpoint belongs to another run.
        """
        before, now = saved["course"], self._course
        if before != now:
            raise CheckpointError(
                f"The checkpoint is of a run of {before[0]} steps, {before[1]} per epoch, at batch {before[2]}; this "
                f"one is {now[0]}, {now[1]} and {now[2]}. Use the same data, batch, max_epoch and steps, or start anew "
                "with --ckpt."
            )
        changes = []
        if self._fingerprint and saved["data"] != self._fingerprint:
            changes.append("the data")
        counts = {"processes": ("world_size", self.nano.world_size), "threads": ("threads", torch.get_num_threads())}
        for what, (key, count) in counts.items():
            if saved[key] != count:
                changes.append(f"the number of {what} ({saved[key]} then, {count} now)")
        if changes and self.nano.is_global_zero:
            _log.warning(
                "Changed since the checkpoint: %s. Resuming, but results will not be bit-identical.", ", ".join(changes)
            )
        try:
            self.network.load_state_dict(saved["model"])
            self.average.model.load_state_dict(saved["average"])
            self.average.steps = saved["average_steps"]
            self.optimizer.load_state_dict(saved["optimizer"])
            self.nano.load_scaler_state(saved["scaler"])
            torch.set_rng_state(saved["rng"])
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise CheckpointError(
                f"The checkpoint's weights or optimizer are not those of this network: {error}. Start anew with --ckpt."
            ) from error
        if self.nano.is_global_zero:
            _log.info("Resuming from step %d of %d.", saved["step"], now[0])
        state = RunState(**{name: saved[name] for name in ("step", "best", "last", "without_better")})
        state.position = (saved["position"][0], saved["position"][1])
        return state


def check_saved(saved: dict[str, Any], path: Path) -> None:
    """Check that a checkpoint is one of a training run, before any of it is used.

    Raises:
        CheckpointError: something is missing, or of another kind.
    """
    lists, numbers = {"course": 3, "position": 2}, ("step", "without_better", "average_steps", "world_size", "threads")
    wrong = [key for key in ("model", "average", "optimizer", "best", "last") if not isinstance(saved.get(key), dict)]
    wrong += [key for key in numbers if type(saved.get(key)) is not int]
    wrong += [key for key in ("data", "config") if not isinstance(saved.get(key), str)]
    for key, length in lists.items():
        value = saved.get(key)
        if not isinstance(value, list | tuple) or [type(one) for one in value] != [int] * length:
            wrong.append(key)
    if not isinstance(saved.get("rng"), Tensor) or "scaler" not in saved:
        wrong.append("rng")
    if wrong:
        raise CheckpointError(
            f"The checkpoint {str(path)!r} is not one of a training run: {shorten(wrong)} is missing or of another "
            "kind. Start anew with --ckpt."
        )


def _lock_data(config: TrainConfig, records: Records) -> str:
    """Return the fingerprint of the training images; warn about what has changed since the run's first start."""
    path = config.output_dir / "data.lock"
    now = fingerprint(records)
    if config.resume and path.exists():
        for sentence in compare(read_lock(path), now):
            _log.warning("The data changed since the run began: %s", sentence)
    else:
        now.write_lock(path)
    return now.digest
