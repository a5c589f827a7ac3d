"""Training a detector: `train(config)` plans the run, starts its processes and returns their result."""

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import yaml

from boxwright.accel.checkpoint import load_checkpoint
from boxwright.accel.nano import TorchNano
from boxwright.accel.places import is_url, locate
from boxwright.accel.strategy import make_launcher
from boxwright.core import catalogue, yaml_file
from boxwright.core.config import to_yaml
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import BoxwrightError, CheckpointError, UsageError
from boxwright.core.files import locked
from boxwright.core.log import get_logger
from boxwright.core.signals import sigterm_raises
from boxwright.devices.support import AUTO, choose_precision
from boxwright.launchers.supervisor import Patience
from boxwright.tasks.models import find_model
from boxwright.tasks.train.checkpoints import check_saved
from boxwright.tasks.train.config import TrainConfig
from boxwright.tasks.train.loggers import Callback, check_callbacks, check_loggers
from boxwright.tasks.train.loop import run_worker
from boxwright.tasks.train.progress import RESULT, Progress, StepReport, TrainResult, receive
from boxwright.tasks.train.remote_data import SHIPPED, pack
from boxwright.tasks.train.report import write_report
from boxwright.tasks.train.resume import writing_to
from boxwright.tasks.train.run_store import LAST, PREVIOUS, RunStore, file_state

__all__ = ["StepReport", "TrainConfig", "TrainResult", "train"]

_log = get_logger(__name__)
# A step of a large model may take this long, and only then can the run be saved. A second signal kills.
_PATIENCE = Patience(after_interrupt_s=120.0)
# Settings that a resumed run may change without a warning: they change no number.
_FREE = {
    "resume", "output_dir", "data", "ckpt", "workers", "worker_kind", "strategy", "address", "master", "max_restarts",
    "min_processes", "cores_per_process", "spread", "ship", "store", "allow_outside",
}  # fmt: skip
# Settings that weights and optimizer in a checkpoint depend on.
_FIXED = {"model", "freeze", "momentum", "weight_decay", "size_hw", "ema", "train_split", "val_split", "val", "seed"}


def train(config: TrainConfig, *, callbacks: Sequence[Callback] = (), progress: Progress | None = None) -> TrainResult:
    """Train and return the result; the run's files are in `config.output_dir`.

    Written there: `args.yaml` (the resolved config), `plan.txt`, `metrics.jsonl`, `results.csv`, `data_report.json`,
    `data.lock`, `weights/last.pt` (for `resume`), `weights/{last,best}.safetensors`, `pictures/` (held-out images with
    their boxes at each evaluation), `result.json`, curves and `report.html`. SIGTERM and Ctrl-C end a run after its
    step: all processes stop there, the checkpoint is written, and `stopped` of the result names the signal.

    Args:
        config: the run.
        callbacks: your own receivers of its progress.
        progress: called with a report after each step; from a thread if the steps are in other processes. If it raises,
            the run ends with that error.

    Raises:
        UsageError: a setting is wrong, or another program is writing to the folder.
        DataError: the set can't be used.
        CheckpointError: weights don't fit, nothing can be resumed, or the disk is full.
        WorkerError: a process failed.
    """
    catalogue.find("model", config.model)
    check_loggers(config.loggers)
    check_callbacks(callbacks)
    config = _resolve_places(config)
    folder = config.output_dir
    last = folder / LAST
    store = None if config.store is None else RunStore(config.store, folder)
    if not config.resume:
        if last.exists():
            raise UsageError(f"{str(folder)!r} holds a run already. Resume it with --resume, or choose another folder.")
        if store is not None and store.has_run():
            raise UsageError(
                f"store={config.store!r} holds a run already. Resume it with --resume, or choose another one."
            )
    config = _resolve_precision(config)
    nano = TorchNano(
        num_processes=config.num_processes or None,
        use_ipex=config.use_ipex,
        strategy=make_launcher(
            config.strategy,
            max_restarts=config.max_restarts,
            patience=_PATIENCE,
            address=config.address,
            master=config.master,
            min_workers=config.min_processes,
            cores_per_worker=config.cores_per_process,
            spread=config.spread,
            files=(folder / SHIPPED, *([] if config.ckpt is None else [config.ckpt])) if config.ship else None,
        ),
        precision=config.precision,
        device=config.device,
        device_options=config.device_options,
        channels_last=True,
        seed=config.seed,
        broadcast_buffers=False,
        batch=config.batch,
    )
    if nano.is_external:
        raise UsageError(
            "boxwright train starts its processes itself. Start it without torchrun or srun, with --num_processes."
        )
    folder.mkdir(parents=True, exist_ok=True)
    busy = UsageError(f"Another run is writing to {str(folder)!r}. Choose another folder.")
    with writing_to(folder), locked(folder / ".lock", wait_s=0, refusal=busy):
        if config.resume:
            if store is not None and (config.is_elsewhere or not last.exists()):
                if not store.has_run():
                    raise store.nothing_to_resume()
                store.pull()
            if not last.exists() and not (folder / PREVIOUS).exists():
                raise CheckpointError(
                    f"{str(folder)!r} holds no checkpoint: the run ended before its first save. Start it again with "
                    "the same command, without --resume."
                )
            _compare_settings(last, config)
        plan = nano.plan.lines()
        with _described(folder, {"args.yaml": to_yaml(config), "plan.txt": "\n".join(plan) + "\n"}, store):
            for line in plan:
                _log.info("%s", line)
            with _packed(config):
                result = _launch(nano, config, callbacks, progress, store)
        write_report(folder, result.to_dict(), plan)
        if store is not None:
            store.push(("curves.png", "report.html"))
    return result


def _resolve_places(config: TrainConfig) -> TrainConfig:
    """Return the config with paths and URLs that mean the same in every process.

    Raises:
        UsageError: there is no folder to ship, or the store is the run's own folder.
        CheckpointError: the weights that `ckpt` names are not there.
    """
    data, store = config.data, config.store
    if not is_url(str(data)):
        data = Path(data).resolve()
        if config.ship and not data.is_dir():
            raise UsageError(
                f"ship=true sends a folder, and data={str(data)!r} is not one. Name the folder of the set."
            )
    files = {name: file.resolve() for name in ("bf16_ops", "fp32_ops") if (file := getattr(config, name)) is not None}
    if config.ckpt is not None:
        found = _find_weights(config.ckpt)
        files["ckpt"] = found.resolve() if config.ship else found
    config = replace(config, output_dir=config.output_dir.resolve(), data=data, **files)
    if store is None:
        return config
    store = locate(store if is_url(store) else Path(store).expanduser().resolve())
    if store in (str(config.output_dir), f"file://{config.output_dir}"):
        raise UsageError(f"store={store!r} is output_dir itself. Name a place that outlives this machine.")
    return replace(config, store=store)


def _resolve_precision(config: TrainConfig) -> TrainConfig:
    """Return the config with a precision in place of "auto"; a resumed run keeps the one that it has recorded."""
    recorded = config.output_dir / "args.yaml"
    if config.resume and config.precision == AUTO and recorded.is_file():
        before = yaml_file.parse(recorded.read_text(encoding="utf-8"))
        if isinstance(before, dict) and "precision" in before:
            return replace(config, precision=str(before["precision"]))
    return replace(config, precision=choose_precision(config.precision, config.device, read_cpu().isa))


def _find_weights(ckpt: Path) -> Path:
    """Return the file to start from; a model's name means its official weights, as in every other command.

    Raises:
        CheckpointError: they are not stored, or in a form that can't be trained.
    """
    name = str(ckpt)
    if ckpt.is_file() or name not in catalogue.names("model"):
        return ckpt
    found = find_model(name)
    if found.suffix == ".onnx":
        raise CheckpointError(
            f"{str(found)!r} can't be trained: it is an ONNX file. Run: boxwright weights get {name} --format pth"
        )
    return found


def _compare_settings(last: Path, config: TrainConfig) -> None:
    """Compare with the settings of the run to resume, before anything in its folder is written.

    Raises:
        CheckpointError: there is no checkpoint, or a setting has changed that a run can't change.
    """
    saved, now = load_checkpoint(last), yaml_file.parse(to_yaml(config))
    check_saved(saved, last)
    try:
        before = yaml_file.parse(saved["config"])
    except yaml.YAMLError as error:
        raise CheckpointError(f"The settings in {str(last)!r} are not valid YAML: {error}. Start a new run.") from error
    if not isinstance(before, dict):
        raise CheckpointError(f"{str(last)!r} holds no settings of a run. Start a new run.")
    changed = sorted({key for key in now if before.get(key) != now[key]} - _FREE)
    if fixed := [f"{key} was {before.get(key)!r} and is {now[key]!r}" for key in changed if key in _FIXED]:
        raise CheckpointError(
            f"This is another run than the one in {str(last.parent.parent)!r}: {', '.join(fixed)}. Use its settings."
        )
    if changed:
        _log.warning(
            "Changed since the run began: %s. Resuming, but results will not be bit-identical.",
            ", ".join(f"{key} ({before.get(key)!r}, now {now[key]!r})" for key in changed),
        )


@contextmanager
def _described(folder: Path, texts: dict[str, str], store: RunStore | None) -> Iterator[None]:
    """Write files that describe the run; restore the former ones if it fails without having saved anything.

    Otherwise a refused `resume` would leave settings behind that the run can't be resumed with.
    """
    before = {name: (folder / name).read_bytes() for name in texts if (folder / name).exists()}
    saved = file_state(folder / LAST)

    def write(contents: dict[str, bytes]) -> None:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        if store is not None and contents:
            store.push(tuple(contents))

    write({name: text.encode() for name, text in texts.items()})
    try:
        yield
    except BaseException:
        if saved is not None and file_state(folder / LAST) == saved:
            write(before)
        raise


@contextmanager
def _packed(config: TrainConfig) -> Iterator[None]:
    """Keep the data in one file while the launcher needs it."""
    if not config.ship:
        yield
        return
    archive = config.output_dir / SHIPPED
    try:
        pack(Path(config.data), archive, leave_out=[config.output_dir])
        yield
    finally:
        archive.unlink(missing_ok=True)


def _launch(
    nano: TorchNano,
    config: TrainConfig,
    callbacks: Sequence[Callback],
    progress: Progress | None,
    store: RunStore | None,
) -> TrainResult:
    """Run the workers; after a signal, return what they could still finish."""
    if nano.plan.strategy == "none":
        return nano.launch(run_worker, config, tuple(callbacks), progress)
    level = get_logger().getEffectiveLevel()
    written = config.output_dir / RESULT
    written.unlink(missing_ok=True)
    remote = store if config.is_elsewhere else None  # holds the workers' files, also if they failed
    with sigterm_raises(), nullcontext() if progress is None else receive(progress) as sender:
        try:
            result = nano.launch(run_worker, config, tuple(callbacks), sender, level)
            if remote is not None:
                remote.pull()
            return result
        except BaseException as ended:
            if remote is not None:
                try:
                    remote.pull()
                except BoxwrightError as error:  # what ended the run is the error to show
                    _log.warning("%s", error)
            # The launcher raises the signal again when all workers have ended; if they finished, their result is here.
            if not isinstance(ended, KeyboardInterrupt | SystemExit) or not written.exists():
                raise
            result = TrainResult.from_dict(json.loads(written.read_text(encoding="utf-8")))
            # Workers always get SIGTERM; the user knows the signal that this process got.
            number = signal.SIGINT if isinstance(ended, KeyboardInterrupt) else signal.SIGTERM
            return replace(result, stopped=f"signal {number.value}")
