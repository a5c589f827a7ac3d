"""The training loop, as it runs in every process: `run_worker`, then `Training` from top to bottom."""

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

from boxwright.accel.averages import WeightAverage
from boxwright.accel.checkpoint import load_checkpoint
from boxwright.accel.nano import TorchNano
from boxwright.core import log
from boxwright.core.config import to_dict
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.data.loader import Loader
from boxwright.detector.loss import Losses, yolox_loss
from boxwright.detector.sizes import SIZES
from boxwright.detector.yolox import build
from boxwright.launchers.files import carried_file
from boxwright.tasks.train.batch_size import choose_batch, explain_overflow
from boxwright.tasks.train.checkpoints import Checkpoints, RunState
from boxwright.tasks.train.config import Schedule, TrainConfig
from boxwright.tasks.train.data import choose_policy, leave_out_bad, make_dataset, make_loader, read_sets
from boxwright.tasks.train.loggers import Callback, make_callbacks
from boxwright.tasks.train.nan_guard import NanGuard
from boxwright.tasks.train.network import class_weights, freeze, image_type, make_network, make_optimizer
from boxwright.tasks.train.pictures import drop_pictures, save_pictures
from boxwright.tasks.train.progress import RESULT, Progress, StepReport, TrainResult, clock
from boxwright.tasks.train.remote_data import open_data
from boxwright.tasks.train.resume import DISK_FULL, entering, writing_to
from boxwright.tasks.train.run_store import LAST, RunStore
from boxwright.tasks.train.score import score_model
from boxwright.tasks.train.stopping import StopAndSave

_log = get_logger(__name__)
_UNTIMED = 2  # the first steps allocate memory and choose kernels; a run's speed leaves them out


def run_worker(
    nano: TorchNano,
    config: TrainConfig,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    level: int | None = None,
) -> TrainResult:
    """Train in this process. Only this function and its arguments are sent to a worker.

    `level` is the log level of the starting process, to be set in a worker; None in the starting process.
    """
    if level is not None:
        log.configure("normal" if nano.is_global_zero else "quiet")
        log.get_logger().setLevel(level if nano.is_global_zero else max(level, WARNING))
    with writing_to(config.output_dir), entering(nano, config) as (own, store):
        data = open_data(own)
        if own.ship and own.ckpt is not None:
            own = replace(own, ckpt=carried_file(own.ckpt.name))
        result = Training(nano, own, callbacks, progress, data=data, store=store).run()
        result = replace(result, checkpoint=config.output_dir / result.checkpoint.relative_to(own.output_dir))
        if nano.is_global_zero:  # if the starting process is interrupted, it reads the result from here
            (own.output_dir / RESULT).write_text(json.dumps(result.to_dict()) + "\n", encoding="utf-8")
            if store is not None:
                store.push()
        return result


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
        store: RunStore | None,
    ) -> None:
        self.nano, self.config, self._progress, self._store = nano, config, progress, store
        torch.manual_seed(config.seed)
        folder = config.output_dir
        saved = load_checkpoint(folder / LAST) if config.resume else None
        train_records, self.held_out = read_sets(nano, config, data)
        self.records = leave_out_bad(nano, train_records, self.held_out, config)
        self.size_hw = config.size_hw or SIZES[config.model].input_hw
        self.spec = Spec(
            model=config.model,
            names=self.records.names,
            size_hw=self.size_hw,
            category_ids=self.records.category_ids,
        )
        self.network = network = make_network(config, self.spec.num_classes)
        self._frozen_norms = freeze(network, config.freeze)
        self._free_bytes = nano.free_bytes()
        self.batch = config.batch or self._choose_batch(network, saved)
        self._parts = nano.world_size * config.accumulate
        if self.batch % self._parts:
            raise UsageError(
                f"A batch of {self.batch} can't be cut into {nano.world_size} processes times {config.accumulate} "
                f"parts. Use a multiple of {self._parts}."
            )
        self._inner_optimizer = make_optimizer(network.to(nano.device), config, nano.hardware)
        self.model, self.optimizer = nano.setup(network, self._inner_optimizer)
        weights = class_weights(self.records, config)
        self._class_weights = None if weights is None else weights.to(nano.device)
        self.schedule = Schedule.of(config, max(len(self.records) // self.batch, 1))
        self._learning_rates = self.schedule.learning_rates(config, self.batch)
        policy = choose_policy(config, multiscale=self.schedule.multiscale, most_sizes=nano.hardware.most_sizes)
        self.dataset = make_dataset(nano, self.records, self.size_hw, policy, config)
        self.average = WeightAverage(
            network, base=self.schedule.ema_base, ramp=self.schedule.ema_ramp, move=nano.hardware.average
        )
        self._loss = nano.hardware.compile(yolox_loss)
        self._image_type = image_type(network, config)
        self._checkpoints = Checkpoints(
            nano=nano,
            config=config,
            spec=self.spec,
            network=network,
            average=self.average,
            optimizer=self._inner_optimizer,
            schedule=self.schedule,
            batch=self.batch,
            records=self.records,
        )
        self.state = RunState() if saved is None else self._checkpoints.restore(saved)
        self.callbacks: list[Callback] = []
        if nano.is_global_zero:
            resume_at = None if saved is None else self.state.step
            drop_pictures(folder, after=self.state.step)
            self.callbacks = [*make_callbacks(folder, config.loggers, resume_at=resume_at), *callbacks]
        self._own_steps = 0
        self._trained_images = 0
        self._trained_s = 0.0
        self._nan_guard = NanGuard(self.records, folder / "weights", self.schedule.lr_per_image)
        self._last_losses: dict[str, float] = {}
        self._stop_and_save = StopAndSave(nano)

    def _choose_batch(self, network: nn.Module, saved: dict[str, Any] | None) -> int:
        """Return the batch that fits, the same in every process; a resumed run keeps its own."""
        if saved is not None:
            return int(saved["course"][2])
        batch = 0
        if self.nano.is_global_zero:
            precision = Precision.parse(self.config.precision)
            batch = choose_batch(
                network, self.size_hw, self._free_bytes, self.nano.world_size, len(self.records), precision
            )
        parts = self.nano.world_size * self.config.accumulate
        return max(int(self.nano.broadcast(batch)) // parts, 1) * parts

    def run(self) -> TrainResult:
        """Train until the last step, the end of patience or a signal, and return the result."""
        try:
            for callback in self.callbacks:
                callback.on_start(to_dict(self.config))
            return self._run()
        except RuntimeError as error:
            if not self.nano.hardware.is_out_of_memory(error):
                raise
            _clear_frames(error)
            message = explain_overflow(
                build(self.config.model, self.spec.num_classes),
                self.dataset.policy.largest_hw(self.size_hw),
                self._free_bytes,
                processes=self.nano.world_size,
                batch=self.batch,
                accumulate=self.config.accumulate,
                precision=Precision.parse(self.config.precision),
            )
            raise UsageError(message) from error
        finally:
            for callback in self.callbacks:
                try:
                    callback.on_end()
                except OSError as error:
                    if error.errno not in DISK_FULL:
                        raise
                    # The disk was full before, too; the error that ends the run is the one to show.
                    _log.warning("%s could not write its last lines: %s.", type(callback).__name__, error.strerror)

    def _run(self) -> TrainResult:
        stopped = ""
        last_losses: Losses | None = None
        with self._stop_and_save.listening():
            while self.state.step < self.schedule.total_steps and not stopped:
                last_phase = self.schedule.in_last_phase(self.state.step)
                dataset = self.dataset.with_policy(self.dataset.policy.no_aug()) if last_phase else self.dataset
                batch = self.batch // self._parts
                with make_loader(self.nano, dataset, batch, self.config, self.state.position) as loader:
                    for losses in self._steps(loader):
                        last_losses = losses
                        self._report(losses)
                        requests = self._stop_and_save.end_step()
                        if requests.stop:
                            stopped = f"signal {requests.stop}"
                            break
                        if self._evaluation_is_due():
                            self._save()  # a signal while scoring must not cost the epoch
                            if self._evaluate():
                                stopped = "patience"
                            self._save()
                        elif requests.save:
                            self._save()
                        if stopped or self.schedule.in_last_phase(self.state.step) != last_phase:
                            break
            self._save()
        best = self.config.output_dir / "weights" / "best.safetensors"
        return TrainResult(
            checkpoint=best if self.state.best else best.with_name("last.safetensors"),
            best=self.state.best,
            last=self.state.last,
            steps=self.state.step,
            images_per_s=self._trained_images / max(self._trained_s, 1e-9),
            stopped=stopped,
            final_loss=None if last_losses is None else float(last_losses.total.detach()),
            peak_mb=_peak_mb(),
        )

    def _steps(self, loader: Loader) -> Iterator[Losses]:
        """Yield after each step until the run's last one; the clock stands still while the caller works."""
        self._set_train_mode()
        # A device may be fed ahead of time: the loader's own position is then ahead of ours.
        sent = ((torch.from_numpy(b.images), torch.from_numpy(b.targets), b) for b in loader)
        with closing(self.nano.hardware.feed(sent, self.nano.device)) as batches:
            while self.state.step < self.schedule.total_steps:
                start = time.perf_counter()
                self._stop_and_save.begin_step()
                for group in self._inner_optimizer.param_groups:
                    group["lr"] = self._learning_rates(self.state.step)
                for part in range(self.config.accumulate):
                    images, targets, batch = next(batches)
                    losses = self._backward(images, targets, is_last=part == self.config.accumulate - 1)
                    self._nan_guard.add(self.state.step, losses.total, batch.image_ids.tolist())
                if self.config.clip_norm:
                    self.nano.clip_gradients(self.model, self.optimizer, max_norm=self.config.clip_norm)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                if self.config.ema:
                    self.average.update(self.network)
                self.state.step += 1
                epoch, done = batch.position.epoch, batch.position.batch + 1
                self.state.position = (epoch, done) if done < len(loader) else (epoch + 1, 0)
                self._own_steps += 1
                if self._own_steps == _UNTIMED or self._is_logged(self.state.step):
                    self.nano.hardware.synchronize()  # the clock must not stop before the device does
                if self._own_steps > _UNTIMED or self._own_steps == self.schedule.total_steps:
                    self._trained_images += self.batch
                    self._trained_s += time.perf_counter() - start
                yield losses

    def _backward(self, pixels: Tensor, targets: Tensor, *, is_last: bool) -> Losses:
        """Return the losses of a part of a step's batch, after their backward pass; the last part shares gradients."""
        images = pixels.permute(0, 3, 1, 2).to(self._image_type)
        size_hw = (images.shape[2], images.shape[3])
        with nullcontext() if is_last else self.model.no_sync():
            losses = self._loss(
                self.model(images),
                targets,
                size_hw,
                l1=self.schedule.in_last_phase(self.state.step),
                class_weights=self._class_weights,
                static=self.nano.hardware.asynchronous,
            )
            self.nano.backward(losses.total / self.config.accumulate)
        return losses

    def _set_train_mode(self) -> None:
        self.model.train()
        for norm in self._frozen_norms:
            norm.eval()

    def _is_logged(self, step: int) -> bool:
        return step % self.config.print_interval == 0 or step == self.schedule.total_steps

    def _report(self, losses: Losses) -> None:
        """Pass a step on to the display, the log and the callbacks."""
        step, total = self.state.step, self.schedule.total_steps
        if self._is_logged(step):
            self._nan_guard.check()
            self._last_losses = {name: float(value.detach()) for name, value in losses._asdict().items()}
        if not self.nano.is_global_zero:
            return
        images_per_s = self._trained_images / max(self._trained_s, 1e-9)
        report = StepReport(
            step=step,
            total=total,
            epoch=round(step / self.schedule.steps_per_epoch, 3),
            images_per_s=round(images_per_s, 2),
            left_s=(total - step) * self.batch / images_per_s if images_per_s else None,
            lr=self._learning_rates(step - 1),
            memory_mb=_peak_mb(),
            processes=self.nano.world_size,
            losses=self._last_losses,
        )
        if self._progress is not None:
            self._progress(report)
        if self._is_logged(step):
            values = {**self._last_losses, "lr": report.lr, "images_per_s": report.images_per_s, "epoch": report.epoch}
            # A display shows these already, and more often.
            _log.log(
                INFO if self._progress is None else DEBUG,
                "step %d/%d epoch %.1f loss %.3f (iou %.2f obj %.2f cls %.2f l1 %.2f) lr %.2e, %.1f images/s, %s left",
                step, total, values["epoch"], values["total"], values["iou"], values["objectness"], values["classes"],
                values["l1"], values["lr"], values["images_per_s"], clock(report.left_s),
            )  # fmt: skip
            for callback in self.callbacks:
                callback.on_step(step, values)

    def _evaluation_is_due(self) -> bool:
        if not len(self.held_out):
            return False
        every = self.config.eval_interval * self.schedule.steps_per_epoch
        return self.state.step == self.schedule.total_steps or (every > 0 and self.state.step % every == 0)

    def _evaluate(self) -> bool:
        """Score the weights, keep the best; return whether patience has run out."""
        start = time.perf_counter()
        metrics, found = score_model(self.nano, self._checkpoints.best_network, self.spec, self.held_out)
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
                self._checkpoints.save_best("best")
            if self.config.save_history_ckpt:
                self._checkpoints.save_best(f"step_{self.state.step}")
            save_pictures(self.config.output_dir, self.state.step, self.held_out, found)
        self._set_train_mode()
        return bool(self.config.patience) and self.state.without_better >= self.config.patience

    def _save(self) -> None:
        """Write a checkpoint, unless a loss or the weights are not finite; every process must call it."""
        self._nan_guard.check()
        self._checkpoints.save(self.state)
        if self._store is not None and self.nano.is_global_zero:
            self._store.try_push()
        self._stop_and_save.restart_clock()


def _clear_frames(error: BaseException) -> None:
    """Release what an error's calls held: a notebook, which keeps the error, would keep a whole batch."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
