"""The training loop, as it runs in every process."""

import json
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from logging import DEBUG, INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.accel.checkpoint import load_checkpoint, save_checkpoint
from boxwright.accel.ema import WeightAverage
from boxwright.accel.nano import TorchNano
from boxwright.accel.norms import average_norms
from boxwright.core import log
from boxwright.core.config import to_dict, to_yaml
from boxwright.core.errors import BoxwrightError, CheckpointError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.spec import Spec
from boxwright.data.batch import Batch
from boxwright.data.dataset import DetectionDataset
from boxwright.data.fingerprint import compare, fingerprint
from boxwright.data.loader import Loader
from boxwright.detector.loss import Losses, yolox_loss
from boxwright.detector.sizes import SIZES
from boxwright.detector.weights import load_weights, read_state, save_weights
from boxwright.detector.yolox import build
from boxwright.recipes.training.config import Course, TrainConfig
from boxwright.recipes.training.data import choose_recipe, leave_out_bad, make_dataset, make_loader, read_sets
from boxwright.recipes.training.disk import is_full, writing_to
from boxwright.recipes.training.fuse import fuse_blocks
from boxwright.recipes.training.logbook import Callback
from boxwright.recipes.training.loggers import make_callbacks
from boxwright.recipes.training.memory import choose_batch, tell_what_fits
from boxwright.recipes.training.optimizer import class_weights, freeze, make_optimizer
from boxwright.recipes.training.progress import Progress, StepReport, clock
from boxwright.recipes.training.result import RunState, TrainResult
from boxwright.recipes.training.score import score_model
from boxwright.recipes.training.stopping import Watch
from boxwright.recipes.training.takeup import taking_up

_log = get_logger(__name__)
RESULT = "result.json"
_UNTIMED = 2  # the first steps allocate memory and choose kernels; they are not what a run's speed is


class Training:
    """One process's part of a run."""

    def __init__(
        self, nano: TorchNano, config: TrainConfig, callbacks: Sequence[Callback], progress: Progress | None
    ) -> None:
        self.nano, self.config, self._progress = nano, config, progress
        torch.manual_seed(config.seed)
        folder = config.output_dir
        saved = load_checkpoint(folder / "weights" / "last.pt") if config.resume else None
        train_records, self.held_out = read_sets(config)
        self.records = leave_out_bad(nano, train_records, self.held_out, config)
        self.size_hw = config.size_hw or SIZES[config.model].input_hw
        self.spec = Spec(
            model=config.model,
            names=self.records.names,
            size_hw=self.size_hw,
            category_ids=self.records.category_ids,
        )
        network = build(config.model, self.spec.num_classes)
        if config.ckpt is not None:
            _log.info("%s: %s", config.ckpt.name, load_weights(network, read_state(config.ckpt)[0]).sentence())
        fuse_blocks(network)
        self._frozen_norms = freeze(network, config.freeze)
        self._free_bytes = nano.free_bytes()
        self.batch = config.batch or self._choose_batch(network, saved)
        share = nano.world_size * config.accumulate
        if self.batch % share:
            raise UsageError(
                f"A batch of {self.batch} can't be cut into {nano.world_size} processes times {config.accumulate} "
                f"parts. Use a multiple of {share}."
            )
        self.micro = self.batch // share
        optimizer = make_optimizer(network.to(nano.device), config, nano.hardware)
        self.network: nn.Module = network
        self.model, self.optimizer = nano.setup(network, optimizer)
        self._inner_optimizer = optimizer
        self.weights = class_weights(self.records, config)
        if self.weights is not None:
            self.weights = self.weights.to(nano.device)
        self.course = Course.of(config, max(len(self.records) // self.batch, 1))
        recipe = choose_recipe(config, multiscale=self.course.multiscale, most_sizes=nano.hardware.most_sizes)
        self.dataset = make_dataset(nano, self.records, self.size_hw, recipe, config)
        self.curve = self.course.curve(config, self.batch)
        self.average = WeightAverage(
            network, base=self.course.ema_base, ramp=self.course.ema_ramp, move=nano.hardware.average
        )
        self._loss = nano.hardware.compile(yolox_loss)
        self.state = RunState()
        self._fingerprint = ""
        if nano.is_global_zero:
            self._fingerprint = self._lock_data(folder / "data.lock")
        if saved is not None:
            self._resume(saved)
        self.callbacks: list[Callback] = []
        if nano.is_global_zero:
            self.callbacks = [*make_callbacks(folder, config.loggers, resume=config.resume), *callbacks]
        self._own_steps = 0
        self._trained_images = 0
        self._trained_s = 0.0
        self._recent: list[tuple[int, Tensor, list[int]]] = []
        self._told: dict[str, float] = {}
        self._watch = Watch(nano)

    # The loop.

    def run(self) -> TrainResult:
        """Train to the end, to the last patience or to a signal, and return the result."""
        try:
            for callback in self.callbacks:
                callback.on_start(to_dict(self.config))
            return self._run()
        except RuntimeError as error:
            if self.nano.hardware.is_out_of_memory(error):
                raise UsageError(self._tell_what_fits()) from error
            raise
        finally:
            for callback in self.callbacks:
                self._end(callback)

    def _end(self, callback: Callback) -> None:
        try:
            callback.on_end()
        except OSError as error:
            if not is_full(error):
                raise
            # What could not be written before can't be now; the error that ends the run is the one to be seen.
            _log.warning("%s could not write its last lines: %s.", type(callback).__name__, error.strerror)

    def _run(self) -> TrainResult:
        stopped = ""
        last_losses: Losses | None = None
        with self._watch.listening():
            while self.state.step < self.course.total_steps and not stopped:
                last_phase = self.course.in_last_phase(self.state.step)
                dataset = self.dataset.with_recipe(self.dataset.recipe.no_aug()) if last_phase else self.dataset  # type: ignore[union-attr]
                with self._open_loader(dataset) as loader:
                    for losses in self._steps(loader):
                        last_losses = losses
                        self._after_step(losses)
                        wishes = self._watch.end_step()
                        if wishes.stop:
                            stopped = f"signal {wishes.stop}"
                            break
                        if self._evaluation_is_due():
                            self._save()  # a signal while scoring must not cost the epoch
                            if self._evaluate():
                                stopped = "patience"
                            self._save()
                        elif wishes.save:
                            self._save()
                        if stopped or self.course.in_last_phase(self.state.step) != last_phase:
                            break
            self._check_losses()
            self._save()
        best = self.config.output_dir / "weights" / "best.safetensors"
        last = best.with_name("last.safetensors")
        return TrainResult(
            checkpoint=best if self.state.best else last,
            best=self.state.best,
            last=self.state.last,
            steps=self.state.step,
            images_per_s=self._trained_images / max(self._trained_s, 1e-9),
            stopped=stopped,
            final_loss=None if last_losses is None else float(last_losses.total.detach()),
            peak_mb=_peak_mb(),
        )

    def _open_loader(self, dataset: DetectionDataset) -> Loader:
        return make_loader(self.nano, dataset, self.micro, self.config, self.state.position)

    def _steps(self, loader: Loader) -> Iterator[Losses]:
        """Yield after each step until the run's last one; the clock stands still while the caller works."""
        self.model.train()
        for norm in self._frozen_norms:
            norm.eval()
        # A device may be fed ahead of time: the loader's own position is then further than ours.
        sent = ((torch.from_numpy(b.images), torch.from_numpy(b.targets), b) for b in loader)
        with closing(self.nano.hardware.feed(sent, self.nano.device)) as batches:
            yield from self._take_steps(batches, len(loader))

    def _take_steps(self, batches: Iterator[tuple[Tensor, Tensor, Batch]], steps_per_epoch: int) -> Iterator[Losses]:
        while self.state.step < self.course.total_steps:
            start = time.perf_counter()
            self._watch.begin_step()
            for group in self._inner_optimizer.param_groups:
                group["lr"] = self.curve(self.state.step)
            l1 = self.course.in_last_phase(self.state.step)
            for part in range(self.config.accumulate):
                images, targets, batch = next(batches)
                last = part == self.config.accumulate - 1
                losses = self._backward(images, targets, l1=l1, share_gradients=last)
                self._recent.append((self.state.step, losses.total.detach(), batch.image_ids.tolist()))
            if self.config.clip_norm:
                self.nano.clip_gradients(self.model, self.optimizer, max_norm=self.config.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.config.ema:
                self.average.update(self.network)
            self.state.step += 1
            epoch, done = batch.position.epoch, batch.position.batch + 1
            self.state.position = (epoch, done) if done < steps_per_epoch else (epoch + 1, 0)
            self._own_steps += 1
            if self._own_steps == _UNTIMED or self._is_told(self.state.step):
                self.nano.hardware.synchronize()  # the clock must not stop before the device does
            if self._own_steps > _UNTIMED or self._own_steps == self.course.total_steps:
                self._trained_images += self.batch
                self._trained_s += time.perf_counter() - start
            yield losses

    def _backward(self, pixels: Tensor, targets: Tensor, *, l1: bool, share_gradients: bool) -> Losses:
        images = pixels.permute(0, 3, 1, 2).float()
        size_hw = (images.shape[2], images.shape[3])
        with nullcontext() if share_gradients else self.model.no_sync():
            losses = self._loss(
                self.model(images),
                targets,
                size_hw,
                l1=l1,
                class_weights=self.weights,
                static=self.nano.hardware.asynchronous,
            )
            self.nano.backward(losses.total / self.config.accumulate)
        return losses

    def _is_told(self, step: int) -> bool:
        return step % self.config.print_interval == 0 or step == self.course.total_steps

    def _after_step(self, losses: Losses) -> None:
        """Tell what there is to tell."""
        step, total = self.state.step, self.course.total_steps
        if self._is_told(step):
            self._check_losses()
            self._told = {name: float(value.detach()) for name, value in losses._asdict().items()}
        if not self.nano.is_global_zero:
            return
        images_per_s = self._trained_images / max(self._trained_s, 1e-9)
        report = StepReport(
            step=step,
            total=total,
            epoch=round(step / self.course.steps_per_epoch, 3),
            images_per_s=round(images_per_s, 2),
            left_s=(total - step) * self.batch / images_per_s if images_per_s else None,
            lr=self.curve(step - 1),
            memory_mb=_peak_mb(),
            processes=self.nano.world_size,
            losses=self._told,
        )
        if self._progress is not None:
            self._progress(report)
        if self._is_told(step):
            values = {**self._told, "lr": report.lr, "images_per_s": report.images_per_s, "epoch": report.epoch}
            # A display shows these already, and more often.
            _log.log(
                INFO if self._progress is None else DEBUG,
                "step %d/%d epoch %.1f loss %.3f (iou %.2f obj %.2f cls %.2f l1 %.2f) lr %.2e, %.1f images/s, %s left",
                step, total, values["epoch"], values["total"], values["iou"], values["objectness"], values["classes"],
                values["l1"], values["lr"], values["images_per_s"], clock(report.left_s),
            )  # fmt: skip
            for callback in self.callbacks:
                callback.on_step(step, values)

    def _check_losses(self) -> None:
        """Name the first step since the last look whose loss is not a number; one host read for all of them.

        Raises:
            BoxwrightError: there is one. The last checkpoint was written before it.
        """
        recent, self._recent = self._recent, []
        if not recent:
            return
        values = torch.stack([total for _, total, _ in recent]).tolist()
        for (step, _, image_ids), value in zip(recent, values, strict=True):
            if not np.isfinite(value):
                ids = set(image_ids)
                names = [
                    self.records.relative_path(i) for i, d in enumerate(self.records.image_ids.tolist()) if d in ids
                ]
                raise BoxwrightError(
                    f"The loss of step {step} is {value}. Its images: {', '.join(names[:8])}. The last good checkpoint "
                    f"is in {str(self.config.output_dir / 'weights')!r}. Lower lr_per_image, now "
                    f"{self.course.lr_per_image:g}, or set clip_norm=35."
                )

    # Scoring.

    def _evaluation_is_due(self) -> bool:
        if not len(self.held_out):
            return False
        every = self.config.eval_interval * self.course.steps_per_epoch
        return self.state.step == self.course.total_steps or (every > 0 and self.state.step % every == 0)

    def _evaluate(self) -> bool:
        """Score the weights, keep the best; return whether patience has run out."""
        self._check_losses()
        network = self.average.model if self.config.ema else self.network
        self._average_norms()
        start = time.perf_counter()
        metrics = score_model(self.nano, network, self.spec, self.held_out)
        values = {"AP": metrics.AP, "AP50": metrics.AP50, "AP75": metrics.AP75, "AR100": metrics.AR100}
        self.state.last = values
        better = values["AP"] > self.state.best.get("AP", -1.0)
        self.state.without_better = 0 if better else self.state.without_better + 1
        if better:
            self.state.best = {**values, "step": self.state.step}
        if self.nano.is_global_zero:
            _log.info(
                "step %d: AP %.4f AP50 %.4f%s (scored in %.1f s)",
                self.state.step, values["AP"], values["AP50"], ", the best so far" if better else "",
                time.perf_counter() - start,
            )  # fmt: skip
            for callback in self.callbacks:
                callback.on_evaluation(self.state.step, values)
            weights = self.config.output_dir / "weights"
            if better:
                save_weights(weights / "best.safetensors", network, self.spec)
            if self.config.save_history_ckpt:
                save_weights(weights / f"step_{self.state.step}.safetensors", network, self.spec)
        self.model.train()
        for norm in self._frozen_norms:
            norm.eval()
        return bool(self.config.patience) and self.state.without_better >= self.config.patience

    # Saving and going on.

    def _average_norms(self) -> None:
        """Give all processes the same batch-norm statistics: those that are scored, saved and taken up again."""
        networks = (self.network, self.average.model) if self.config.ema else (self.network,)
        average_norms(self.nano, *networks, leave=self.config.freeze)

    def _save(self) -> None:
        """Write `last.pt` (all that --resume needs) and `last.safetensors` (the weights to use)."""
        self._check_losses()
        self._average_norms()
        self._watch.note_saved()
        if not self.nano.is_global_zero:
            return
        norms = torch._foreach_norm([p.detach() for p in self.network.parameters()])
        if not torch.stack(list(norms)).isfinite().all():
            raise BoxwrightError(
                f"After step {self.state.step} the weights are no longer numbers, so they are not saved. The last "
                f"good checkpoint is in {str(self.config.output_dir / 'weights')!r}. Lower lr_per_image, or set "
                "clip_norm=35."
            )
        folder = self.config.output_dir / "weights"
        save_checkpoint(
            folder / "last.pt",
            {
                "format": 1,
                "step": self.state.step,
                "position": list(self.state.position),
                "best": self.state.best,
                "last": self.state.last,
                "without_better": self.state.without_better,
                "model": self.network.state_dict(),
                "average": self.average.model.state_dict(),
                "average_steps": self.average.steps,
                "optimizer": self._inner_optimizer.state_dict(),
                "scaler": self.nano.scaler_state(),
                "rng": torch.get_rng_state(),
                "data": self._fingerprint,
                "course": [self.course.total_steps, self.course.steps_per_epoch, self.batch],
                "world_size": self.nano.world_size,
                "threads": torch.get_num_threads(),
                "config": to_yaml(self.config),
            },
        )
        save_weights(folder / "last.safetensors", self.average.model if self.config.ema else self.network, self.spec)

    def _resume(self, saved: dict[str, Any]) -> None:
        """Take up a run where its last whole checkpoint left it, and say what is not as it was.

        Raises:
            CheckpointError: it is of another run.
        """
        course = [self.course.total_steps, self.course.steps_per_epoch, self.batch]
        if saved["course"] != course:
            raise CheckpointError(
                f"The checkpoint is of a run of {saved['course'][0]} steps, {saved['course'][1]} an epoch, at batch "
                f"{saved['course'][2]}; this one is {course[0]}, {course[1]} and {course[2]}. Use the same data, "
                "batch, max_epoch and steps, or start anew with --ckpt."
            )
        changes = []
        if self._fingerprint and saved["data"] != self._fingerprint:
            changes.append("the data")
        if saved["world_size"] != self.nano.world_size:
            changes.append(f"the number of processes ({saved['world_size']} then, {self.nano.world_size} now)")
        if saved["threads"] != torch.get_num_threads():
            changes.append(f"the number of threads ({saved['threads']} then, {torch.get_num_threads()} now)")
        if changes and self.nano.is_global_zero:
            _log.warning("Changed since the checkpoint: %s. The run goes on, but not bit by bit.", ", ".join(changes))
        self.network.load_state_dict(saved["model"])
        self.average.model.load_state_dict(saved["average"])
        self.average.steps = saved["average_steps"]
        self._inner_optimizer.load_state_dict(saved["optimizer"])
        self.nano.load_scaler_state(saved["scaler"])
        torch.set_rng_state(saved["rng"])
        self.state = RunState(
            step=saved["step"],
            position=(saved["position"][0], saved["position"][1]),
            best=saved["best"],
            last=saved["last"],
            without_better=saved["without_better"],
        )
        if self.nano.is_global_zero:
            _log.info("Going on from step %d of %d.", self.state.step, self.course.total_steps)

    def _lock_data(self, path: Path) -> str:
        """Return the fingerprint of the training images; say what has changed since the run's first start."""
        now = fingerprint(self.records)
        if self.config.resume and path.exists():
            for sentence in compare(path, self.records):
                _log.warning("The data changed since the run began: %s", sentence)
        else:
            now.write_lock(path)
        return now.digest

    def _tell_what_fits(self) -> str:
        assert self.dataset.recipe is not None
        largest_hw = self.dataset.recipe.batch_size_hw(self.size_hw, 1 - 1e-9)
        network = build(self.config.model, self.spec.num_classes)
        share = self.nano.world_size * self.config.accumulate
        return tell_what_fits(network, largest_hw, self._free_bytes, self.nano.world_size, self.batch, share)

    def _choose_batch(self, network: nn.Module, saved: dict[str, Any] | None) -> int:
        """Return the batch that fits, the same in every process and the same as before when a run goes on."""
        if saved is not None:
            return int(saved["course"][2])
        batch = 0
        if self.nano.is_global_zero:
            batch = choose_batch(network, self.size_hw, self._free_bytes, self.nano.world_size, len(self.records))
        share = self.nano.world_size * self.config.accumulate
        return max(int(self.nano.broadcast(batch)) // share, 1) * share


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_worker(
    nano: TorchNano,
    config: TrainConfig,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    level: int | None = None,
) -> TrainResult:
    """Train in this process. Only this function and the config cross the border to a worker.

    `level` is the starting process's log level, for processes that it starts.
    """
    if nano.is_distributed and level is not None:
        log.configure("normal" if nano.is_global_zero else "quiet")
        log.get_logger().setLevel(level if nano.is_global_zero else max(level, WARNING))
    with writing_to(config.output_dir), taking_up(nano, config) as config:
        result = Training(nano, config, callbacks, progress).run()
        if nano.is_global_zero:  # where the starting process is interrupted, this is how it learns of the result
            (config.output_dir / RESULT).write_text(json.dumps(result.to_dict()) + "\n", encoding="utf-8")
        return result
