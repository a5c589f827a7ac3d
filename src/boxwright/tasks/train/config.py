"""The settings of a training run, and the schedule that follows from them.

It needs no torch: a device's plugin may read its settings when torch is imported.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from boxwright.accel.places import is_url
from boxwright.accel.schedule import WarmupCosine
from boxwright.core.errors import UsageError
from boxwright.devices.options import DeviceOptions
from boxwright.launchers.placement import ELSEWHERE

_LR_PER_IMAGE = 0.01 / 64
_SHORT = 10_000  # steps; the recipe is meant for half a million


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One complete training run.

    Attributes:
        model: a name of the family.
        data: a set in COCO, VOC or YOLO format: a path that exists on every machine of the run, or a URL of a folder, a
            tar file or a zip file, in any scheme of fsspec. Each machine fetches a URL once.
        allow_outside: also read files that the set names outside of its folder.
        output_dir: the run's folder.
        val: the fraction of images held out, for a set without splits.
        train_split: the split to learn from, if not "train".
        val_split: the split to score on, if not "val".
        ckpt: initial weights: an official `.pth`, our own, or the name of official weights that are stored.
        resume: resume from `output_dir/weights/last.pt`.
        size_hw: input size; None for the model's own.
        batch: images per step over all processes; 0 chooses by the free memory.
        accumulate: how many parts a step's batch is computed in.
        max_epoch: passes over the training images.
        steps: number of steps, instead of `max_epoch`.
        lr_per_image: learning rate for a batch of one; the rate is this times the batch. None for the recipe's
            0.01 / 64, and four times that in a short run.
        lowest_lr: the last learning rate as a fraction of the highest.
        warmup_epochs: length of the warm-up, at most 5 % of the run.
        no_aug_epochs: length of the last phase, without mosaic and with the L1 loss; at most 15 % of the run.
        momentum: of SGD, with Nesterov's correction.
        weight_decay: of convolution weights.
        clip_norm: clip gradients to this norm; 0 for never.
        ema: evaluate and save the moving average of the weights.
        augment: the recipe's mosaic, mixup, colours and flips; off leaves letterboxed images.
        mosaic: join four images, as the model's recipe does; off leaves colours and flips.
        multiscale: change the input size every ten steps; None for "not in a short run".
        class_weights: "balanced" gives rare classes more weight.
        freeze: parts of the network that are not trained, by the start of their names ("backbone").
        patience: stop after this many evaluations without a better AP; 0 for never.
        eval_interval: epochs between evaluations; 0 for one at the end.
        print_interval: steps between log lines.
        save_history_ckpt: keep the weights of every evaluation.
        cache: where decoded images are kept: "ram", "disk", "none", or "auto" for RAM if they fit, else by measuring.
        workers: number of sample workers per process; 0 chooses.
        worker_kind: what makes samples: "threads", "processes", or "auto": processes if a device other than the CPU
            computes and there are at least four cores.
        seed: of weights, order and augmentation.
        device: cpu, cuda or hpu.
        compile: run network and loss as compiled graphs; None for the device's default.
        lazy: collect operations and run them at the end of each half step, on devices that can; None as above.
        bf16_ops: a file with the names of operations to run in bf16, for devices that read one.
        fp32_ops: a file with the names of operations to keep in fp32.
        precision: 32, bf16, 16, 64, bf16-true, or auto: bf16 on a CPU that has instructions for it, else 32.
        num_processes: number of processes; 0 for one on the CPU and one per device elsewhere.
        strategy: what starts them: subprocess, spawn, ray or spark.
        address: of the Ray cluster; None for the one in RAY_ADDRESS, or a new one.
        master: the URL of the Spark master; None for the active session's, or a new one.
        max_restarts: how many times all processes may restart from the last checkpoint after one has failed.
        min_processes: the fewest processes to continue with on a Ray or Spark cluster that has no room for all.
        cores_per_process: how many of the cluster's cpus each process gets; None for an even share.
        spread: how Ray places the processes on its machines: pack, spread, strict_pack or strict_spread; None for pack.
        ship: send the folder `data` of this machine, and `ckpt`, through Ray or Spark to the others.
        store: a path or URL that outlives the machines. The run's files are copied there after every save; `resume`
            and restarts on other machines read them from there. On Ray and Spark `output_dir` is then a folder of the
            starting machine alone.
        use_ipex: use Intel's extension, if it fits.
        check: what is checked before the first step; bad images are left out. "quick" looks at labels, headers and
            lengths, and "full" also decodes every image. A set that has not changed since it was checked is not
            checked again. "off" checks nothing. Bad images that no check found are replaced when they come up.
            True and False mean "full" and "off".
        max_error_rate: reject a set in which more than this fraction of the images has errors.
        loggers: further loggers: tensorboard, mlflow, wandb; tensorboard is used if it is installed.
    """

    model: str
    data: str | Path
    output_dir: Path
    allow_outside: bool = False
    val: float | None = None
    train_split: str | None = None
    val_split: str | None = None
    ckpt: Path | None = None
    resume: bool = False
    size_hw: tuple[int, int] | None = None
    batch: int = 16
    accumulate: int = 1
    max_epoch: int = 300
    steps: int | None = None
    lr_per_image: float | None = None
    lowest_lr: float = 0.05
    warmup_epochs: float = 5.0
    no_aug_epochs: float = 15.0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip_norm: float = 0.0
    ema: bool = True
    augment: bool = True
    mosaic: bool = True
    multiscale: bool | None = None
    class_weights: Literal["off", "balanced"] = "off"
    freeze: tuple[str, ...] = ()
    patience: int = 0
    eval_interval: int = 10
    print_interval: int = 10
    save_history_ckpt: bool = False
    cache: Literal["auto", "ram", "disk", "none"] = "auto"
    workers: int = 0
    worker_kind: Literal["auto", "threads", "processes"] = "auto"
    seed: int = 0
    device: str = "cpu"
    compile: bool | None = None
    lazy: bool | None = None
    bf16_ops: Path | None = None
    fp32_ops: Path | None = None
    precision: str = "32"
    num_processes: int = 0
    strategy: str = "subprocess"
    address: str | None = None
    master: str | None = None
    max_restarts: int = 0
    min_processes: int | None = None
    cores_per_process: int | None = None
    spread: str | None = None
    ship: bool = False
    store: str | None = None
    use_ipex: bool = False
    check: Literal["off", "quick", "full"] | bool = "quick"
    max_error_rate: float = 0.05
    loggers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.check, bool):
            object.__setattr__(self, "check", "full" if self.check else "off")
        for name in ("accumulate", "max_epoch", "print_interval"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)!r} must be at least 1.")
        for name in ("batch", "eval_interval", "patience", "workers", "num_processes", "max_restarts", "clip_norm"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}={getattr(self, name)!r} must not be negative.")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"steps={self.steps!r} must be at least 1.")
        if self.lr_per_image is not None and self.lr_per_image <= 0:
            raise UsageError(f"lr_per_image={self.lr_per_image!r} must be above 0.")
        if not self.augment and self.multiscale:
            raise UsageError("augment=false leaves images as they are, multiscale=true does not. Give one of them.")
        if not 0 < self.momentum < 1:
            raise UsageError(f"momentum={self.momentum!r} must be between 0 and 1: Nesterov's correction needs it.")
        if (self.train_split is None) != (self.val_split is None):
            raise UsageError("train_split and val_split go together: name both splits of the set, or neither.")
        if self.val is not None and self.val_split is not None:
            raise UsageError("val splits a set that has no splits; val_split names one. Give one of them.")
        if self.resume and self.ckpt is not None:
            raise UsageError("resume continues with the run's own weights. Leave ckpt out.")
        if self.ship and not self.is_elsewhere:
            raise UsageError(
                f"ship=true is for strategy {' and '.join(map(repr, ELSEWHERE))}. With {self.strategy!r} all processes "
                "are on this machine and read the data in place: there is nothing to ship. Leave it out."
            )
        if self.ship and is_url(str(self.data)):
            raise UsageError(f"data={str(self.data)!r} is a URL, which every machine fetches itself. Leave ship out.")

    @property
    def is_elsewhere(self) -> bool:
        """Whether the processes may be on other machines than the one that starts them."""
        return self.strategy in ELSEWHERE

    @property
    def device_options(self) -> DeviceOptions:
        """The settings of the device."""
        return DeviceOptions(compile=self.compile, lazy=self.lazy, bf16_ops=self.bf16_ops, fp32_ops=self.fp32_ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The steps of a run: how many there are, and which belong to which phase.

    A run much shorter than the recipe's 300 epochs of COCO gets a shorter warm-up, last phase and memory of the
    averaged weights: with the recipe's own it would end inside the warm-up and save weights that never moved. It also
    gets four times the learning rate and one input size (`docs/explanation/short-runs.md` has the measurements).
    """

    steps_per_epoch: int
    total_steps: int
    warmup_steps: int
    no_aug_steps: int
    ema_base: float
    ema_ramp: float
    lr_per_image: float
    multiscale: bool

    @classmethod
    def of(cls, config: TrainConfig, steps_per_epoch: int) -> "Schedule":
        """Return the schedule of a run with epochs of this length."""
        total = config.steps if config.steps is not None else config.max_epoch * steps_per_epoch
        memory = min(5000.0, max(total / 5, 10.0))
        short = total < _SHORT
        lr = config.lr_per_image
        if lr is None:
            lr = _LR_PER_IMAGE * (4 if short else 1)
        return cls(
            steps_per_epoch=steps_per_epoch,
            total_steps=total,
            warmup_steps=int(min(config.warmup_epochs * steps_per_epoch, total * 0.05)),
            no_aug_steps=int(min(config.no_aug_epochs * steps_per_epoch, total * 0.15)),
            ema_base=1 - 1 / memory,
            ema_ramp=min(2000.0, max(total / 10, 1.0)),
            lr_per_image=lr,
            multiscale=not short if config.multiscale is None else config.multiscale,
        )

    def in_last_phase(self, step: int) -> bool:
        """Return whether a step is in the phase without mosaic and with the L1 loss."""
        return step >= self.total_steps - self.no_aug_steps

    def learning_rates(self, config: TrainConfig, batch: int) -> WarmupCosine:
        """Return the learning rate of every step."""
        return WarmupCosine(
            base_lr=self.lr_per_image * batch,
            total_steps=self.total_steps,
            warmup_steps=self.warmup_steps,
            flat_steps=self.no_aug_steps,
            lowest=config.lowest_lr,
        )
