"""The training loop, as it runs in every process."""

import json
import resource
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from logging import DEBUG, INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.accel.checkpoint import load_checkpoint
from boxwright.accel.ema import WeightAverage
from boxwright.accel.nano import TorchNano
from boxwright.core import log
from boxwright.core.config import to_dict
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.data.batch import Batch
from boxwright.data.dataset import DetectionDataset
from boxwright.data.loader import Loader
from boxwright.detector.loss import Losses, yolox_loss
from boxwright.detector.sizes import SIZES
from boxwright.detector.weights import load_weights, read_state
from boxwright.detector.yolox import build
from boxwright.launchers.files import carried_file
from boxwright.tasks.train.checkpoints import Keeper
from boxwright.tasks.train.config import Course, TrainConfig
from boxwright.tasks.train.data import choose_recipe, leave_out_bad, make_dataset, make_loader, read_sets
from boxwright.tasks.train.disk import is_full, writing_to
from boxwright.tasks.train.fast_blocks import fuse_blocks
from boxwright.tasks.train.fetch import open_data
from boxwright.tasks.train.logbook import Callback
from boxwright.tasks.train.loggers import make_callbacks
from boxwright.tasks.train.memory import choose_batch, tell_what_fits
from boxwright.tasks.train.nan_guard import RecentLosses
from boxwright.tasks.train.optimizer import class_weights, freeze, make_optimizer
from boxwright.tasks.train.progress import Progress, StepReport, clock
from boxwright.tasks.train.result import RESULT, RunState, TrainResult
from boxwright.tasks.train.resume import taking_up
from boxwright.tasks.train.score import score_model
from boxwright.tasks.train.stopping import Watch
from boxwright.tasks.train.store import Store

_log = get_logger(__name__)
_UNTIMED = 2  # the first steps allocate memory and choose kernels; they are not what a run's speed is


class Training:
    """One process's part of a run."""

    def __init__(
        self,
        nano: TorchNano,
        config: TrainConfig,
        callbacks: Sequence[Callback],
        progress: Progress | None,
        *,
        data: Path,
        store: Store | None,
    ) -> None:
        self.nano, self.config, self._progress, self._store = nano, config, progress, store
        torch.manual_seed(config.seed)
        folder = config.output_dir
        saved = load_checkpoint(folder / "weights" / "last.pt") if config.resume else None
        train_records, self.held_out = read_sets(config, data)
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
        self._keeper = Keeper(
            nano,
            config,
            spec=self.spec,
            network=network,
            average=self.average,
            optimizer=optimizer,
            course=self.course,
            batch=self.batch,
            records=self.records,
        )
        if saved is not None:
            self.state = self._keeper.take_up(saved)
        self.callbacks: list[Callback] = []
        if nano.is_global_zero:
            resume_at = None if saved is None else self.state.step
            self.callbacks = [*make_callbacks(folder, config.loggers, resume_at=resume_at), *callbacks]
        self._own_steps = 0
        self._trained_images = 0
        self._trained_s = 0.0
        self._recent = RecentLosses(self.records, folder / "weights", self.course.lr_per_image)
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
                _clear_frames(error)
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
                dataset = self.dataset.with_recipe(self.dataset.recipe.no_aug()) if last_phase else self.dataset
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
            self._recent.check()
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
                self._recent.add(self.state.step, losses.total, batch.image_ids.tolist())
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
            self._recent.check()
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

    # Scoring.

    def _evaluation_is_due(self) -> bool:
        if not len(self.held_out):
            return False
        every = self.config.eval_interval * self.course.steps_per_epoch
        return self.state.step == self.course.total_steps or (every > 0 and self.state.step % every == 0)

    def _evaluate(self) -> bool:
        """Score the weights, keep the best; return whether patience has run out."""
        self._recent.check()
        network = self._keeper.best_network
        self._keeper.share_norms()
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
            if better:
                self._keeper.save_best("best")
            if self.config.save_history_ckpt:
                self._keeper.save_best(f"step_{self.state.step}")
        self.model.train()
        for norm in self._frozen_norms:
            norm.eval()
        return bool(self.config.patience) and self.state.without_better >= self.config.patience

    def _save(self) -> None:
        self._recent.check()
        self._keeper.save(self.state)
        if self._store is not None and self.nano.is_global_zero:
            self._store.try_push()
        self._watch.note_saved()

    # Memory.

    def _tell_what_fits(self) -> str:
        largest_hw = self.dataset.recipe.largest_hw(self.size_hw)
        network = build(self.config.model, self.spec.num_classes)
        return tell_what_fits(
            network,
            largest_hw,
            self._free_bytes,
            processes=self.nano.world_size,
            batch=self.batch,
            accumulate=self.config.accumulate,
            precision=Precision.parse(self.config.precision),
        )

    def _choose_batch(self, network: nn.Module, saved: dict[str, Any] | None) -> int:
        """Return the batch that fits, the same in every process and the same as before when a run goes on."""
        if saved is not None:
            return int(saved["course"][2])
        batch = 0
        if self.nano.is_global_zero:
            precision = Precision.parse(self.config.precision)
            batch = choose_batch(
                network, self.size_hw, self._free_bytes, self.nano.world_size, len(self.records), precision
            )
        share = self.nano.world_size * self.config.accumulate
        return max(int(self.nano.broadcast(batch)) // share, 1) * share


def _clear_frames(error: BaseException) -> None:
    """Let go of what an error's calls had: who keeps the error, as a notebook does, would keep a whole batch."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


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

    `level` is the starting process's log level, for processes that it starts; None in itself.
    """
    if level is not None:
        log.configure("normal" if nano.is_global_zero else "quiet")
        log.get_logger().setLevel(level if nano.is_global_zero else max(level, WARNING))
    with writing_to(config.output_dir), taking_up(nano, config) as (own, store):
        data = open_data(own)
        if own.ship and own.ckpt is not None:
            own = replace(own, ckpt=carried_file(own.ckpt.name))
        result = Training(nano, own, callbacks, progress, data=data, store=store).run()
        result = replace(result, checkpoint=config.output_dir / result.checkpoint.relative_to(own.output_dir))
        if nano.is_global_zero:  # where the starting process is interrupted, this is how it learns of the result
            (own.output_dir / RESULT).write_text(json.dumps(result.to_dict()) + "\n", encoding="utf-8")
            if store is not None:
                store.push()
        return result
