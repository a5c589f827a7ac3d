"""What a run keeps: `last.pt` to go on from, `last.safetensors` to use, `data.lock` to know its images again."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from boxwright.accel.checkpoint import save_checkpoint
from boxwright.accel.ema import WeightAverage
from boxwright.accel.nano import TorchNano
from boxwright.accel.norms import average_norms
from boxwright.core.config import to_yaml
from boxwright.core.errors import BoxwrightError, CheckpointError
from boxwright.core.log import get_logger
from boxwright.core.spec import Spec
from boxwright.data.fingerprint import compare, fingerprint
from boxwright.data.records import Records
from boxwright.detector.weights import save_weights
from boxwright.tasks.train.config import Course, TrainConfig
from boxwright.tasks.train.result import RunState

_log = get_logger(__name__)


class Keeper:
    """Writes checkpoints in the first process and takes them up in all of them.

    Args:
        nano: who the processes are.
        config: the run.
        spec: what the detector takes and gives.
        network: the weights.
        average: the averaged weights.
        optimizer: the optimizer itself, not what `setup` made of it.
        course: the run's steps.
        batch: images a step.
        records: the training images.
    """

    def __init__(
        self,
        nano: TorchNano,
        config: TrainConfig,
        *,
        spec: Spec,
        network: nn.Module,
        average: WeightAverage,
        optimizer: Optimizer,
        course: Course,
        batch: int,
        records: Records,
    ) -> None:
        self._nano, self._config, self._spec = nano, config, spec
        self._network, self._average, self._optimizer = network, average, optimizer
        self._course = [course.total_steps, course.steps_per_epoch, batch]
        self._folder = config.output_dir / "weights"
        self._fingerprint = _lock_data(config, records) if nano.is_global_zero else ""

    @property
    def best_network(self) -> nn.Module:
        """The weights that are scored and used: the averaged ones, where there are such."""
        return self._average.model if self._config.ema else self._network

    def share_norms(self) -> None:
        """Give all processes the same batch-norm statistics: those that are scored, saved and taken up again."""
        networks = (self._network, self._average.model) if self._config.ema else (self._network,)
        average_norms(self._nano, *networks, leave=self._config.freeze)

    def save_best(self, name: str) -> None:
        """Write the weights to use under a name."""
        save_weights(self._folder / f"{name}.safetensors", self.best_network, self._spec)

    def save(self, state: RunState) -> None:
        """Write `last.pt` (all that --resume needs) and `last.safetensors`; every process must call it.

        Raises:
            CheckpointError: it could not be written.
            BoxwrightError: the weights are no longer numbers.
        """
        self.share_norms()
        if not self._nano.is_global_zero:
            return
        norms = torch._foreach_norm([p.detach() for p in self._network.parameters()])
        if not torch.stack(list(norms)).isfinite().all():
            raise BoxwrightError(
                f"After step {state.step} the weights are no longer numbers, so they are not saved. The last good "
                f"checkpoint is in {str(self._folder)!r}. Lower lr_per_image, or set clip_norm=35."
            )
        save_checkpoint(
            self._folder / "last.pt",
            {
                "format": 1,
                "step": state.step,
                "position": list(state.position),
                "best": state.best,
                "last": state.last,
                "without_better": state.without_better,
                "model": self._network.state_dict(),
                "average": self._average.model.state_dict(),
                "average_steps": self._average.steps,
                "optimizer": self._optimizer.state_dict(),
                "scaler": self._nano.scaler_state(),
                "rng": torch.get_rng_state(),
                "data": self._fingerprint,
                "course": self._course,
                "world_size": self._nano.world_size,
                "threads": torch.get_num_threads(),
                "config": to_yaml(self._config),
            },
        )
        self.save_best("last")

    def take_up(self, saved: dict[str, Any]) -> RunState:
        """Take up a run where its last whole checkpoint left it, and say what is not as it was.

        Raises:
            CheckpointError: it is of another run.
        """
        before, now = saved["course"], self._course
        if before != now:
            raise CheckpointError(
                f"The checkpoint is of a run of {before[0]} steps, {before[1]} an epoch, at batch {before[2]}; this "
                f"one is {now[0]}, {now[1]} and {now[2]}. Use the same data, batch, max_epoch and steps, or start anew "
                "with --ckpt."
            )
        changes = []
        if self._fingerprint and saved["data"] != self._fingerprint:
            changes.append("the data")
        if saved["world_size"] != self._nano.world_size:
            changes.append(f"the number of processes ({saved['world_size']} then, {self._nano.world_size} now)")
        if saved["threads"] != torch.get_num_threads():
            changes.append(f"the number of threads ({saved['threads']} then, {torch.get_num_threads()} now)")
        if changes and self._nano.is_global_zero:
            _log.warning("Changed since the checkpoint: %s. The run goes on, but not bit by bit.", ", ".join(changes))
        self._network.load_state_dict(saved["model"])
        self._average.model.load_state_dict(saved["average"])
        self._average.steps = saved["average_steps"]
        self._optimizer.load_state_dict(saved["optimizer"])
        self._nano.load_scaler_state(saved["scaler"])
        torch.set_rng_state(saved["rng"])
        if self._nano.is_global_zero:
            _log.info("Going on from step %d of %d.", saved["step"], now[0])
        return RunState(
            step=saved["step"],
            position=(saved["position"][0], saved["position"][1]),
            best=saved["best"],
            last=saved["last"],
            without_better=saved["without_better"],
        )


def _lock_data(config: TrainConfig, records: Records) -> str:
    """Return the fingerprint of the training images; say what has changed since the run's first start."""
    path: Path = config.output_dir / "data.lock"
    now = fingerprint(records)
    if config.resume and path.exists():
        for sentence in compare(path, records):
            _log.warning("The data changed since the run began: %s", sentence)
    else:
        now.write_lock(path)
    return now.digest
