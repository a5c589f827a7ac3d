"""Conversions without a search: `InferenceOptimizer.trace`, `quantize`, `save`, `load` and the like."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import nn

from boxwright.core.batches import TARGETS, BatchForm, is_loader
from boxwright.core.errors import CheckpointError, UsageError, check_choice
from boxwright.core.types import Precision
from boxwright.optimize.accuracy import Direction
from boxwright.optimize.budget import Budget
from boxwright.optimize.dynamic import Dynamic, FreeAxes
from boxwright.optimize.metrics import MetricScorer
from boxwright.optimize.model import Conversion, LoadOptions, OptimizedModel
from boxwright.optimize.model_case import ModelCase, example_call, fitting_samples, own_loader, take_samples
from boxwright.optimize.module import as_module
from boxwright.runtimes.artifact import is_artifact, note_changes
from boxwright.runtimes.base import Choice, Hint
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.plain_program import TENSORS, compress_weights
from boxwright.runtimes.source import Source

CALIBRATION_SAMPLES = 100


class Conversions:
    """The methods of `InferenceOptimizer` that convert, save and load one model; they need no instance."""

    @staticmethod
    def trace(
        model: nn.Module,
        input_sample: Any = None,
        accelerator: str = "jit",
        *,
        precision: str | Precision = "fp32",
        channels_last: bool = False,
        training_data: Any = None,
        target: str | Sequence[str] | None = None,
        dynamic: Dynamic = None,
        max_distance: float | None = None,
        folder: str | Path | None = None,
        **load: Any,
    ) -> OptimizedModel:
        """Return the model converted by one accelerator, in float.

        The result is a module with the original's attributes, parameters and methods; its calls are answered by the
        converted model.

        Args:
            model: any module.
            input_sample: an example of its inputs (see `optimize`); by default from the training data or the model.
            accelerator: a runtime: eager, jit, compile, openvino, onnxruntime or ipex.
            precision: fp32, bf16 or fp16.
            channels_last: whether image tensors are channels last inside.
            training_data: a loader or one batch of real inputs; what varies in them may vary later.
            target: the key of the target in batches that are dictionaries (see `optimize`).
            dynamic: the axes that may have any size (see `optimize`). One that is named is free, or this fails.
            max_distance: how far the outputs may be from the original's (root of the mean square, against their
                spread); None for what the precision explains.
            folder: where the artifact goes; None for a temporary folder that is removed with the model.
            load: `thread_num`, `hint`, `streams`, `output_tensors`, `openvino_config` and `session_options` as in
                `load`.

        Raises:
            ConversionError: the model can't be converted, or its outputs are too far from the original's.
            MissingDependencyError: the runtime's packages are not installed.
        """
        choice = Choice(runtime=accelerator, precision=Precision.parse(precision), channels_last=channels_last)
        if choice.precision is Precision.INT8:
            raise UsageError("trace() converts in float. Use quantize(…, calib_data=…) for int8.")
        options, example = LoadOptions.of(**load), getattr(model, "example", None)
        model = find_original(model, "trace")
        form = make_form(model, target)
        call = example_call(form, model, training_data, input_sample, known=example)
        samples: tuple[tuple[Any, ...], ...] = ()
        data = input_sample if is_loader(input_sample) else training_data
        if data is not None and dynamic is None:
            source = Source.of(model, *call, free_batch=False)
            by_sample = isinstance(input_sample, Mapping)
            samples = tuple(take_samples(data, form, source, CALIBRATION_SAMPLES, by_sample=by_sample))
        axes = FreeAxes(dynamic=dynamic, seen=samples)
        convert = Conversion(choice=choice, axes=axes, max_distance=max_distance, folder=folder)
        return as_module(convert(model, call, options), model)

    @staticmethod
    def quantize(
        model: nn.Module,
        calib_data: Any = None,
        accelerator: str = "openvino",
        *,
        input_sample: Any = None,
        method: str = "",
        keep_float: Sequence[str] = (),
        calibration_samples: int = CALIBRATION_SAMPLES,
        target: str | Sequence[str] | None = None,
        dynamic: Dynamic = None,
        max_distance: float | None = None,
        metric: Any = None,
        accuracy_criterion: float | Mapping[str, Any] | None = None,
        validation_data: Any = None,
        direction: Direction = "max",
        folder: str | Path | None = None,
        **load: Any,
    ) -> OptimizedModel:
        """Return the model in int8, with value ranges measured on real inputs.

        Args:
            model: any module, or a converted one whose original is known.
            calib_data: a loader or one batch of real inputs; by default the loader that a Lightning module brings.
            accelerator: a runtime: int8 (PyTorch), compile, openvino, onnxruntime or ipex.
            input_sample: an example of the inputs; by default the first batch of `calib_data`.
            method: a variant, where a runtime has several: "qlinear" or "integer" for onnxruntime, "bf16" (the rest
                runs in bfloat16) or "nncf" (NNCF chooses the layers) for openvino.
            keep_float: module names that are not quantised.
            calibration_samples: how many batches of `calib_data` to use.
            target: the key of the target in batches that are dictionaries (see `optimize`).
            dynamic: the axes that may have any size (see `optimize`). One that is named is free, or this fails.
            max_distance: how far the outputs may be from the original's (see `trace`).
            metric: measure the accuracy with it (see `optimize`), and put sensitive layers back into float until
                `accuracy_criterion` holds.
            accuracy_criterion: the share of the original's accuracy that may be lost, or {"relative": share},
                {"absolute": loss}, with "higher_is_better" beside it in place of `direction`.
            validation_data: what to measure on; by default `calib_data`.
            direction: "max" if more of the metric is better, "min" if less is.
            folder: where the artifact goes; None for a temporary folder that is removed with the model.
            load: `thread_num`, `hint`, `streams`, `output_tensors`, `openvino_config` and `session_options` as in
                `load`.

        Raises:
            BudgetError: the criterion does not hold, whatever stays in float.
            ConversionError: the model can't be converted, or its outputs are too far from the original's.
            MissingDependencyError: the runtime's packages are not installed.
        """
        check_samples(calibration_samples)
        options, example = LoadOptions.of(**load), getattr(model, "example", None)
        model = find_original(model, "quantize")
        if (metric is None) != (accuracy_criterion is None):
            raise UsageError("metric and accuracy_criterion go together: give both, or neither.")
        form = make_form(model, target)
        data = own_loader(model) if calib_data is None else calib_data
        call = example_call(form, model, data, input_sample, known=None if calib_data is not None else example)
        if accelerator == "onnxruntime" and not method:
            method = "qlinear"
        choice = Choice(runtime=accelerator, precision=Precision.INT8, mode=method)
        fixed = Source.of(model, *call, free_batch=False)
        by_sample = isinstance(input_sample, Mapping)
        taken = take_samples(data, form, fixed, calibration_samples, by_sample=by_sample)
        axes = FreeAxes(dynamic=dynamic, seen=tuple(taken))
        if metric is not None:
            if keep_float:
                raise UsageError("keep_float does not apply with a metric, which chooses the layers. Leave it out.")
            budget = Budget.parse(accuracy_criterion, direction)
            scorer = MetricScorer(
                metric=metric,
                data=data if validation_data is None else validation_data,
                form=form,
                direction=budget.direction,
                model=model,
            )
            samples = fitting_samples(axes.make_source(model, call), taken)
            case = ModelCase(
                model=model, call=call, samples=tuple(samples), scorer=scorer, model_digest=uuid4().hex, axes=axes
            )
            return as_module(budget.search(case, choice, folder, options), model)
        convert = Conversion(
            choice=choice,
            calibration=Calibration(samples=taken, keep_float=tuple(keep_float)),
            axes=axes,
            max_distance=max_distance,
            folder=folder,
        )
        return as_module(convert(model, call, options), model)

    @staticmethod
    def save(model: OptimizedModel, path: str | Path, *, compression: str | None = None) -> None:
        """Copy a converted model's artifact to a new folder, which runs elsewhere without anything else.

        Args:
            model: a converted model.
            path: the new folder.
            compression: "bf16" to store float32 weights in bfloat16, which halves the file and rounds the weights; they
                are float32 again when loaded. For the accelerators eager and int8; OpenVINO has precision="fp16".

        Raises:
            UsageError: the model has no artifact, can't be compressed, or the folder is not empty.
        """
        if compression is not None:
            check_choice("compression", compression, ("bf16",))
        if not isinstance(model, OptimizedModel) or model.folder is None:
            raise UsageError(
                f"{type(model).__name__!r} was not made by an optimizer, so there is no artifact to copy. "
                "Use torch.save for a module."
            )
        target = Path(path)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{str(target)!r} is not an empty folder. Choose a new one.")
        if compression is not None and not (model.folder / TENSORS).is_file():
            raise UsageError(
                f"compression={compression!r} does not apply to this model: its weights are in no file of their own. "
                "Use the accelerator 'eager' or 'int8', or OpenVINO with precision='fp16'."
            )
        shutil.copytree(model.folder, target, dirs_exist_ok=True)
        if compression is not None:
            compress_weights(target)
            note_changes(target, compression=compression)

    @staticmethod
    def load(
        path: str | Path,
        *,
        thread_num: int | None = None,
        hint: Hint | None = None,
        streams: int | None = None,
        trust: bool = False,
        model: nn.Module | None = None,
        **options: Any,
    ) -> OptimizedModel:
        """Return the model in an artifact folder.

        Args:
            path: the folder.
            model: the original, whose attributes, parameters and methods the loaded model then has.
            options: `output_tensors=False` to get arrays even for tensors; `openvino_config`, a dictionary of
                OpenVINO's properties; `session_options`, ONNX Runtime's own.
            thread_num: computing threads for one call; None leaves it to the runtime.
            hint: "latency" for the fastest single call, "throughput" for the most calls per second with `map`:
                threads, streams and processes are chosen from the machine's cores and quota, and
                `model.arrangement.explain()` says why. Call `close()` at the end: there may be processes.
            streams: how many calls `map` computes in parallel in this process (OpenVINO and ONNX Runtime).
            trust: load a model that runs code (machine code, TorchScript) even if another user or machine made it.

        Raises:
            CheckpointError: the folder is not an artifact, its files are damaged, or it holds code of another user or
                machine.
            UsageError: both a hint and threads or streams are given, or the runtime has no streams.
        """
        how = LoadOptions.of(thread_num=thread_num, hint=hint, streams=streams, **options)
        folder = Path(path)
        if not is_artifact(folder):
            raise CheckpointError(f"{str(folder)!r} holds no artifact.json: it is not an artifact.")
        return as_module(how.open(folder, trust=trust), model)

    @staticmethod
    def get_context(*models: Any) -> AbstractContextManager[Any]:
        """Return a context to call models in: it switches off gradients for modules.

        Converted models need none: threads and precision are part of them.
        """
        return torch.inference_mode() if any(isinstance(m, nn.Module) for m in models) else nullcontext()

    @staticmethod
    def to_multi_instance(
        model: nn.Module,
        num_processes: int,
        *,
        input_sample: Any = None,
        cores: Sequence[Sequence[int]] | None = None,
    ) -> OptimizedModel:
        """Return a model that is called like the given one and runs in several processes, each on its own cores.

        One call goes to one process; a list of calls, and `map(batches)`, keep all of them busy, with results in order.
        Call `close()` at the end.

        Args:
            model: a converted model, or any module, which is converted to run as it is (`eager`).
            num_processes: how many processes.
            input_sample: an example of a module's inputs (see `optimize`).
            cores: the logical cpus of each; by default the physical cores, split evenly.

        Raises:
            UsageError: there is no example of a module's inputs, or there are fewer cores than processes.
        """
        from boxwright.runtimes.instances import to_multi_instance

        if isinstance(model, OptimizedModel) and input_sample is not None:
            raise UsageError("input_sample does not apply to a converted model. Leave it out.")
        one: Any = model if isinstance(model, OptimizedModel) else Conversions.trace(model, input_sample, "eager")
        if one.folder is None:
            raise UsageError("This model has no artifact. Get one from get_model(), trace(), quantize() or load().")
        several = OptimizedModel(
            to_multi_instance(one.folder, num_processes, cores=cores, trust=True),  # it runs here already
            method=one.method,
            folder=one.folder,
            options=one.options,
        )
        module = as_module(several, one.original)
        vars(module)["_source"] = (one,)  # keeps it alive, and with it its temporary folder
        return module


def make_form(model: nn.Module, target: str | Sequence[str] | None) -> BatchForm:
    """Return how batches are split into inputs and target."""
    if target is None:
        return BatchForm(model, targets=TARGETS)
    return BatchForm(model, targets=(target,) if isinstance(target, str) else tuple(target))


def find_original(model: Any, function: str) -> nn.Module:
    """Return a module, or the original that a converted model was made from.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(model, OptimizedModel):
        if model.original is None:
            raise UsageError(
                f"The model is converted already, and {function}() converts a torch.nn.Module. Give the original "
                "model, or load the converted one with load(folder, model=original)."
            )
        model = model.original
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{function}() converts a torch.nn.Module, not {type(model).__name__!r}. Give the model itself."
        )
    return model


def check_samples(count: int) -> None:
    """Check the number of calibration samples.

    Raises:
        UsageError: it is below 1.
    """
    if count < 1:
        raise UsageError(f"calibration_samples={count!r} must be at least 1.")
