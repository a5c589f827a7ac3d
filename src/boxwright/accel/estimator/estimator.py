"""`Estimator`: fit, evaluate and predict with creators of model, optimizer and data, on one machine or a cluster."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import nn

from boxwright.accel.checkpoint import save_checkpoint
from boxwright.accel.estimator.blueprint import Blueprint, SchedulerPace, Step
from boxwright.accel.estimator.callbacks import Callback, check_callbacks
from boxwright.accel.estimator.fitting import FitJob, fit
from boxwright.accel.estimator.intake import (
    Intake,
    check_count,
    choose_launcher,
    kind_of,
    read_levels,
    run_with_levels,
)
from boxwright.accel.estimator.metrics import name_metrics
from boxwright.accel.estimator.model_checkpoint import LAST, latest_checkpoint
from boxwright.accel.estimator.orca_names import Numbers, check_orca, takes_model_path
from boxwright.accel.estimator.partitions import collect
from boxwright.accel.estimator.scoring import evaluate, predict
from boxwright.accel.estimator.state import State, WeightsAlone, read_weights, to_cpu, write_entire
from boxwright.accel.nano import TorchNano
from boxwright.accel.places import has_file, is_folder, is_url, locate, to_write
from boxwright.accel.plan import Plan
from boxwright.core.errors import CheckpointError, UsageError, check_choice
from boxwright.core.log import get_logger
from boxwright.launchers.base import Launcher
from boxwright.launchers.placement import ELSEWHERE

_log = get_logger(__name__)
_ORCA = ("use_tqdm", "sync_stats", "log_level")
_OWN = ("num_processes", "strategy", "distributed_backend", "seed")


class Estimator:
    """Trains, scores and applies a model that its workers build themselves. Made by `Estimator.from_torch`.

    Every call starts workers and ends them; between calls this object holds the weights, the optimizer's state and the
    counters. If a worker fails, all restart from the last checkpoint, at most `max_restarts` times.
    """

    def __init__(self, blueprint: Blueprint, nano: TorchNano, *, model_dir: str | None, cache_dir: str | None) -> None:
        self._blueprint = blueprint
        self._nano = nano
        self._model_dir = model_dir
        self._intake = Intake(elsewhere=nano.plan.strategy in ELSEWHERE, cache_dir=cache_dir, seed=blueprint.seed)
        self._state = State()
        self._open = True

    @classmethod
    def from_torch(
        cls,
        *,
        model: Callable[[dict[str, Any]], nn.Module],
        optimizer: Callable[[nn.Module, dict[str, Any]], Any] | None = None,
        loss: Any = None,
        metrics: Any = None,
        scheduler_creator: Callable[[Any, dict[str, Any]], Any] | None = None,
        scheduler_pace: SchedulerPace = "epoch",
        preprocess: Callable[[Any], Any] | None = None,
        step: Step | None = None,
        count_samples: Callable[[Any], int] | None = None,
        backend: str | Launcher = "subprocess",
        config: Mapping[str, Any] | None = None,
        workers_per_node: int = 1,
        num_nodes: int = 1,
        model_dir: str | Path | None = None,
        cache_dir: str | Path | None = None,
        max_restarts: int | None = None,
        seed: int = 0,
        log_to_driver: bool = True,
        **settings: Any,
    ) -> "Estimator":
        """Return an estimator for any PyTorch model.

        Args:
            model: `model(config)` returns the network. Called inside every worker.
            optimizer: `optimizer(model, config)` returns its optimizer; only `fit` needs it.
            loss: a module, `f(outputs, targets)`, or `creator(config)` of one. None for a model that owns its loss: it
                is called with the whole batch and returns a loss, a dict with losses, or (losses, outputs).
            metrics: a list, or a dict with names. Each is an object with update, state, merge and compute, a metric of
                torchmetrics, or a function f(outputs, targets), whose values are averaged over samples.
            scheduler_creator: `f(optimizer, config)` returns a learning rate scheduler.
            scheduler_pace: whether the scheduler steps per "epoch" or "iteration".
            preprocess: `preprocess(batch)` returns the batch that goes into the model, on the worker's device.
            step: `step(model, batch)` in place of forward and loss: returns (losses, outputs) or (losses, outputs,
                targets), in `fit`, `evaluate` and `predict`. Call `model(...)` itself, not a method of it.
            count_samples: `count_samples(batch)` returns how many samples a preprocessed batch has. The default is the
                first length of its first tensor, or the length of the list that a tuple begins with.
            backend: what starts the workers: "subprocess", "spawn", "ray" or "spark", or a configured launcher.
            config: passed to the creators; each worker has its own copy.
            workers_per_node: how many workers per machine; they share all its cores.
            num_nodes: how many machines; more than one for "ray" and "spark", which place the workers on theirs.
            model_dir: a folder, or a URL that fsspec knows, for a checkpoint after each epoch, from which a restarted
                run resumes. On a cluster the first worker writes it: use a place that outlives its machine.
            cache_dir: where tables are written for the workers: a folder or URL that all of them can read.
            max_restarts: restart all workers up to this many times after one failed; 2 by default.
            seed: of the weights and the order of samples.
            log_to_driver: Orca's argument. The workers' output always comes here.
            **settings: other settings of `TorchNano`: precision, device, channels_last, cpu_for_each_process, …;
                find_unused_parameters=True for a model that leaves parameters out in some steps. Orca's use_tqdm,
                sync_stats and log_level too, where they ask for what happens anyway.

        Raises:
            UsageError: settings contradict each other.

        Example:
            >>> import torch
            >>> from torch.utils.data import DataLoader, TensorDataset
            >>> def make_data(config, batch_size):
            ...     x = torch.arange(8.0).reshape(8, 1)
            ...     return DataLoader(TensorDataset(x, 2 * x), batch_size=batch_size)
            >>> estimator = Estimator.from_torch(
            ...     model=lambda config: nn.Linear(1, 1, bias=False),
            ...     optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=config["lr"]),
            ...     loss=nn.MSELoss(),
            ...     config={"lr": 0.02},
            ... )
            >>> stats = estimator.fit(make_data, epochs=20, batch_size=4)
            >>> round(estimator.get_state_dict()["weight"].item(), 2)
            2.0
        """
        check_orca({name: settings.pop(name) for name in _ORCA if name in settings})
        taken = [name for name in _OWN if name in settings]
        if taken:
            raise UsageError(f"{taken[0]}={settings[taken[0]]!r}: use backend, workers_per_node and seed instead.")
        known = {**signature(cls.from_torch).parameters, **signature(TorchNano).parameters}
        for name in settings:
            check_choice("setting", name, [one for one in known if one != "settings"])
        if not log_to_driver:
            raise UsageError(
                "log_to_driver=False: the workers' output always reaches this process. Leave it out, and redirect "
                "sys.stdout and sys.stderr to hide it."
            )
        for name, value in (("model", model), ("optimizer", optimizer), ("scheduler_creator", scheduler_creator)):
            if isinstance(value, nn.Module) or not (callable(value) or (value is None and name != "model")):
                raise UsageError(
                    f"{name} is a {type(value).__name__}. Give a function that makes it: every worker builds its own."
                )
        for name, function in (("preprocess", preprocess), ("step", step), ("count_samples", count_samples)):
            if function is not None and not callable(function):
                raise UsageError(f"{name} is a {type(function).__name__}. Give a function.")
        if loss is not None and step is not None:
            raise UsageError("loss and step: a step returns its own losses. Give one of them.")
        check_choice("scheduler_pace", scheduler_pace, ("epoch", "iteration"))
        blueprint = Blueprint(
            model=model,
            optimizer=optimizer,
            loss=loss,
            metrics=name_metrics(metrics),
            scheduler=scheduler_creator,
            scheduler_pace=scheduler_pace,
            preprocess=preprocess,
            step=step,
            count_samples=count_samples,
            config=dict(config or {}),
            seed=seed,
        )
        num_nodes = check_count("num_nodes", num_nodes)
        workers = check_count("workers_per_node", workers_per_node) * num_nodes
        nano = TorchNano(
            num_processes=workers,
            strategy=choose_launcher(backend, workers, num_nodes, max_restarts),
            seed=seed,
            **settings,
        )
        return cls(
            blueprint,
            nano,
            model_dir=None if model_dir is None else locate(model_dir),
            cache_dir=None if cache_dir is None else str(cache_dir),
        )

    @property
    def plan(self) -> Plan:
        """How the workers use the machine."""
        return self._nano.plan

    @property
    def epoch(self) -> int:
        """How many epochs have been trained, over all calls of `fit`."""
        return self._state.epoch

    def fit(
        self,
        data: Any,
        epochs: int | None = None,
        batch_size: int | None = None,
        *,
        max_steps: int | None = None,
        validation_data: Any = None,
        validation_batch_size: int | None = None,
        callbacks: Sequence[Callback] | None = (),
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        shuffle: bool | None = None,
        **orca: Any,
    ) -> list[dict[str, Any]]:
        """Train for more epochs, and return the numbers of each, such as train_loss and val_loss.

        Args:
            data: `creator(config, batch_size)`, called in every worker with its part of the batch size; a DataLoader
                or Dataset, sent to the workers; a Spark or pandas DataFrame, Ray Dataset, pyarrow Table, or a path or
                URL of parquet files; XShards, or a list of partitions: pandas DataFrames, or dicts of numpy arrays
                under "x" and "y".
            epochs: how many more; 1 by default.
            max_steps: how many more steps, instead of `epochs`; the last epoch may be a part of one.
            batch_size: samples of one step over all workers. A loader, or a creator that chooses its own, needs none.
            validation_data: scored after each epoch; of any of these kinds.
            validation_batch_size: samples of one forward pass there; by default one worker's part of `batch_size`.
            callbacks: objects of `boxwright.accel.estimator.Callback`, called in every worker around the run, each
                epoch and each iteration.
            feature_cols: the columns that are the model's inputs, for tables.
            label_cols: the columns that are the targets, for tables.
            shuffle: whether the rows of a table or data set are shuffled each epoch; True by default.
            orca: Orca's profile, reduce_results and info, where they ask for what happens anyway.

        Raises:
            UsageError: arguments contradict each other.
            WorkerError: a worker failed; the message holds its rank and traceback.
        """
        self._check_open()
        check_orca(orca)
        if max_steps is not None:
            if epochs is not None:
                raise UsageError(f"epochs={epochs!r} and max_steps={max_steps!r}: give one of them.")
            max_steps = check_count("max_steps", max_steps)
        else:
            epochs = check_count("epochs", 1 if epochs is None else epochs)
        data, validation_data = collect(data), collect(validation_data)
        called = check_callbacks(callbacks or ())
        columns = (feature_cols, label_cols)
        workers = self.plan.processes
        source = self._intake.open(data, batch_size, columns, workers=workers, shuffle=shuffle)
        validation = None
        if validation_data is not None:
            size = validation_batch_size
            if size is not None:
                size = check_count("validation_batch_size", size)
            elif batch_size is not None and kind_of(validation_data) != "loader":
                size = batch_size // workers
            validation = self._intake.open(validation_data, size, columns)
        elif validation_batch_size is not None:
            raise UsageError(f"validation_batch_size={validation_batch_size!r} needs validation_data.")
        job = FitJob(
            blueprint=self._blueprint,
            data=source,
            validation=validation,
            epochs=None if epochs is None else self._state.epoch + epochs,
            steps=None if max_steps is None else self._state.iteration + max_steps,
            callbacks=called,
            state=replace(self._state, stats=[]),
            checkpoint=None if self._model_dir is None else locate(self._model_dir, LAST),
            run=uuid4().hex,
        )
        self._state = self._launch(fit, job)
        return [Numbers(numbers) for numbers in self._state.stats]

    def evaluate(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        callbacks: Sequence[Callback] | None = (),
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        **orca: Any,
    ) -> dict[str, Any]:
        """Return loss, metrics and num_samples of the whole set; each sample counts once, however many workers.

        Args:
            data: as for `fit`.
            batch_size: samples of one forward pass in one worker. Every sample is in the same batch whatever the
                number of workers.
            callbacks: as for `fit`; their hooks with `val` in the name are called.
            feature_cols: the columns that are the model's inputs, for tables.
            label_cols: the columns that are the targets, for tables.
            orca: Orca's num_steps, profile, reduce_results and info, where they ask for what happens anyway.

        Raises:
            UsageError: arguments contradict each other.
            WorkerError: a worker failed.
        """
        check_orca(orca)
        return Numbers(self._score(evaluate, collect(data), batch_size, (feature_cols, label_cols), callbacks))

    def predict(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        callbacks: Sequence[Callback] | None = (),
        feature_cols: Sequence[str] | None = None,
        output_cols: Sequence[str] | None = None,
        **orca: Any,
    ) -> Any:
        """Return the outputs for the whole set in the order of the data.

        From a creator, a loader or a data set: arrays, in a tuple or dict where the model has several outputs, or a
        list if the model returns one with an entry per sample. From a Spark or pandas DataFrame, a Ray Dataset or a
        pyarrow Table: the same with a column `prediction`, or `prediction_<name>` for each of several outputs. From
        partitions: a list of them, each with its outputs under "prediction" or in these columns.

        Args:
            data: as for `fit`; targets in its batches are ignored.
            batch_size: samples of one forward pass in one worker.
            callbacks: as for `fit`; their hooks with `pred` in the name are called.
            feature_cols: the columns that are the model's inputs, for tables.
            output_cols: names of the columns of outputs, in the model's order, for tables and partitions.
            orca: Orca's profile, where it asks for what happens anyway.

        Raises:
            UsageError: arguments contradict each other, outputs don't have one entry per sample, or a table already
                has a column of that name.
            WorkerError: a worker failed.
        """
        check_orca(orca)
        if isinstance(output_cols, str):
            raise UsageError(f"output_cols={output_cols!r} is one name. Give a list: [{output_cols!r}].")
        data = collect(data)
        outputs = self._score(predict, data, batch_size, (feature_cols, None), callbacks, output_cols)
        return self._intake.give_back(data, outputs, output_cols)

    def get_model(self) -> nn.Module:
        """Return the model with the weights reached so far, built here."""
        self._check_open()
        return self._blueprint.make_model(self._state.model, self._blueprint.copy_config())

    def get_state_dict(self) -> dict[str, Any]:
        """Return a copy of the weights reached so far."""
        weights = self._state.model if self._state.model is not None else self.get_model().state_dict()
        copied: dict[str, Any] = to_cpu(dict(weights))
        return copied

    @takes_model_path
    def save(self, path: str | Path, *, entire: bool = False) -> str | Path:
        """Write the weights to a file that `load` and `torch.load` read, or to a URL; return its path.

        Args:
            path: the file or URL.
            entire: write the whole model, pickled. Whoever loads it runs its code: `load` needs trust=True, and
                `torch.load` needs weights_only=False. Its classes must be importable there.

        Raises:
            CheckpointError: it could not be written.
        """
        weights = self.get_state_dict()
        with to_write(locate(path)) as file:
            if entire:
                write_entire(file, self.get_model())
            else:
                save_checkpoint(file, weights)
        return path if is_url(str(path)) else Path(path)

    @takes_model_path
    def load(self, path: str | Path, *, trust: bool = False) -> None:
        """Load weights from a file or URL of `save`, `save_checkpoint` or `torch.save`; training begins from epoch 0.

        Args:
            path: the file or URL.
            trust: also read a whole model, which runs the code in the file. Do that only if you know who made it.

        Raises:
            CheckpointError: they can't be read, or belong to another model.
        """
        self._check_open()
        weights = read_weights(locate(path), trust=trust)
        self._blueprint.make_model(weights, self._blueprint.copy_config())
        self._state = State(model=weights)

    @takes_model_path
    def save_checkpoint(self, path: str | Path) -> str | Path:
        """Write what training needs to resume to a file or URL: weights, optimizer, scheduler, counters; return it.

        Raises:
            CheckpointError: it could not be written.
        """
        self._check_open()
        state = self._state
        if state.model is None:
            state = State(model=self.get_state_dict())
        state.save(locate(path))
        return path

    @takes_model_path
    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Resume training from a checkpoint, by default the last one in `model_dir`; return its epoch.

        A file with weights alone, as `ModelCheckpoint(save_weights_only=True)` writes it, is loaded as `load` does.

        Raises:
            CheckpointError: there is none, or it can't be used.
            UsageError: no path was given and there is no model_dir.
        """
        self._check_open()
        if path is None and self._model_dir is None:
            raise UsageError("load_checkpoint() without a path needs a model_dir. Give one of them.")
        file = locate(path if path is not None else self._model_dir or "")
        if is_folder(file):
            file = latest_checkpoint(file)
        if not has_file(file):
            raise CheckpointError(f"There is no checkpoint {file!r}. fit() writes one after each epoch.")
        try:
            state = State.load(file)
        except WeightsAlone:
            _log.warning("%r holds weights alone: training begins from epoch 0 with them.", file)
            self.load(file)
            return 0
        self._blueprint.make_model(state.model, self._blueprint.copy_config())
        self._state = state
        return state.epoch

    @staticmethod
    def latest_checkpoint(folder: str | Path) -> str:
        """Return the latest checkpoint of a `model_dir`, or of a folder that `ModelCheckpoint` wrote.

        Raises:
            CheckpointError: there is none.
        """
        return latest_checkpoint(folder)

    def shutdown(self, **orca: Any) -> None:
        """Remove what was written for the workers; the estimator can't be used afterwards."""
        check_orca(orca)
        self._open = False
        self._intake.close()

    def __enter__(self) -> "Estimator":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _score(
        self,
        function: Callable[..., Any],
        data: Any,
        batch_size: int | None,
        columns: tuple[Sequence[str] | None, Sequence[str] | None],
        callbacks: Sequence[Callback] | None,
        output_cols: Sequence[str] | None = None,
    ) -> Any:
        self._check_open()
        called = check_callbacks(callbacks or ())
        source = self._intake.open(data, batch_size, columns, whole_rows=function is predict, output_cols=output_cols)
        return self._launch(function, self._blueprint, source, self._state.model, called)

    def _launch(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._nano.launch(run_with_levels, read_levels(), function, *args)

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("This estimator was shut down. Make a new one; load() takes the saved weights.")
