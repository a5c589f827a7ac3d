"""Conversions without a search: `InferenceOptimizer.trace`, `quantize`, `save`, `load` and the like."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import nn

from boxwright.core.batches import TARGETS, BatchForm, Call, is_loader
from boxwright.core.errors import CheckpointError, UsageError, check_choice
from boxwright.core.types import Precision
from boxwright.devices.chosen import CPU, find_device
from boxwright.optimize.accuracy import Direction
from boxwright.optimize.budget import Budget
from boxwright.optimize.dynamic import Dynamic, FreeAxes
from boxwright.optimize.metrics import MetricScorer
from boxwright.optimize.model import Conversion, LoadOptions, OptimizedModel, Unconverted
from boxwright.optimize.model_case import (
    ModelCase,
    brings_example,
    example_call,
    fitting_samples,
    own_loader,
    take_samples,
)
from boxwright.optimize.module import as_module
from boxwright.optimize.nano_names import choose_int8, choose_ipex, takes_nano_names
from boxwright.optimize.weights import WEIGHTS, load_weights, save_weights
from boxwright.runtimes.artifact import is_artifact, note_changes
from boxwright.runtimes.base import Choice, Hint
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.plain_program import TENSORS, compress_weights
from boxwright.runtimes.source import Source

CALIBRATION_SAMPLES = 100


class Conversions:
    """The methods of `InferenceOptimizer` that convert, save and load one model; they need no instance."""

    @staticmethod
    @takes_nano_names
    def trace(
        model: nn.Module,
        input_sample: Any = None,
        accelerator: str | None = "jit",
        *,
        use_ipex: bool = False,
        precision: str | Precision = "fp32",
        channels_last: bool = False,
        training_data: Any = None,
        target: str | Sequence[str] | None = None,
        dynamic: Dynamic = None,
        max_distance: float | None = None,
        folder: str | Path | None = None,
        device: str = CPU,
        **load: Any,
    ) -> OptimizedModel:
        """Return the model converted by one accelerator, in float.

        The result is a module with the original's attributes, parameters and methods; its calls are answered by the
        converted model.

        Args:
            model: any module.
            input_sample: an example of its inputs (see `optimize`); by default from the training data or the model. If
                there is none, the first call of the result converts the model.
            accelerator: a runtime: eager, jit, compile, openvino, onnxruntime or ipex, for other devices also
                graph; None for plain PyTorch (eager on the CPU, graph elsewhere).
            use_ipex: use Intel's extension; where it is not installed, PyTorch's kernels, channels last.
            precision: fp32, bf16 or fp16.
            channels_last: whether image tensors are channels last inside.
            training_data: a loader or one batch of real inputs; what varies in them may vary later.
            target: the key of the target in batches that are dictionaries (see `optimize`).
            dynamic: the axes that may have any size (see `optimize`). One that is named is free, or this fails.
            max_distance: how far the outputs may be from the original's (root of the mean square, against their
                spread); None for what the precision explains.
            folder: where the artifact goes; None for a temporary folder that is removed with the model.
            device: what it is converted for and runs on: "cpu", another device, or "auto" (see `SearchConfig`).
            load: `thread_num`, `hint`, `streams`, `output_tensors`, `openvino_config` and `session_options` as in
                `load`.

        Raises:
            ConversionError: the model can't be converted, or its outputs are too far from the original's.
            MissingDependencyError: the runtime's packages are not installed.
        """
        place = find_device(device)
        choice = Choice(
            runtime=accelerator or ("eager" if place.is_cpu else "graph"),
            precision=Precision.parse(precision),
            channels_last=channels_last,
            device=place.name,
        )
        if choice.precision is Precision.INT8:
            raise UsageError("trace() converts in float. Use quantize(…, calib_data=…) for int8.")
        if use_ipex:
            choice = choose_ipex(choice)
        options, example = LoadOptions.of(device=str(place), **load), getattr(model, "example", None)
        model = find_original(model, "trace")
        form = make_form(model, target)
        if input_sample is None and training_data is None and example is None and not brings_example(model):
            return convert_later(model, choice, options, dynamic=dynamic, max_distance=max_distance, folder=folder)
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
    @takes_nano_names
    def quantize(
        model: nn.Module,
        calib_data: Any = None,
        accelerator: str | None = "",
        *,
        precision: str | Precision = "int8",
        use_ipex: bool = False,
        channels_last: bool = False,
        input_sample: Any = None,
        method: str | None = "",
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
        device: str = CPU,
        **load: Any,
    ) -> OptimizedModel:
        """Return the model in int8, with value ranges measured on real inputs, or in bf16 or fp16.

        Args:
            model: any module, or a converted one whose original is known.
            calib_data: a loader or one batch of real inputs; by default the loader that a Lightning module brings.
            accelerator: a runtime: int8 (PyTorch), compile, openvino, onnxruntime or ipex; None for PyTorch. The
                default is openvino for int8, and PyTorch for bf16.
            precision: int8; or bf16 or fp16, for which this is `trace`.
            use_ipex: use Intel's extension (see `trace`).
            channels_last: whether image tensors are channels last inside; for bf16.
            input_sample: an example of the inputs; by default the first batch of `calib_data`.
            method: a variant, where a runtime has several: "qlinear", "integer" (which needs no `calib_data`) or on
                a GPU "tensorrt" for onnxruntime, "bf16" (the rest runs in bfloat16) or "nncf" (NNCF chooses the layers)
                for openvino; BigDL-Nano's "fx", "eager" and "ipex" for PyTorch.
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
            device: what it is converted for and runs on: "cpu", another device, or "auto" (see `SearchConfig`).
            load: `thread_num`, `hint`, `streams`, `output_tensors`, `openvino_config` and `session_options` as in
                `load`.

        Raises:
            BudgetError: the criterion does not hold, whatever stays in float.
            ConversionError: the model can't be converted, or its outputs are too far from the original's.
            MissingDependencyError: the runtime's packages are not installed.
        """
        check_samples(calibration_samples)
        if Precision.parse(precision) is not Precision.INT8:
            for name, value in {"method": method, "keep_float": keep_float, "metric": metric}.items():
                if value:
                    raise UsageError(f"{name} is for precision='int8', not {str(precision)!r}. Leave it out.")
            return Conversions.trace(
                model, input_sample, accelerator, use_ipex=use_ipex, precision=precision, channels_last=channels_last,
                training_data=calib_data, target=target, dynamic=dynamic, max_distance=max_distance, folder=folder,
                device=device, **load,
            )  # fmt: skip
        place = find_device(device)
        choice = choose_int8(accelerator, method, use_ipex=use_ipex, channels_last=channels_last)
        choice = replace(choice, device=place.name)
        options, example = LoadOptions.of(device=str(place), **load), getattr(model, "example", None)
        model = find_original(model, "quantize")
        if (metric is None) != (accuracy_criterion is None):
            raise UsageError("metric and accuracy_criterion go together: give both, or neither.")
        form = make_form(model, target)
        if calib_data is None and choice.mode == "integer" and input_sample is None and not brings_example(model):
            return convert_later(model, choice, options, dynamic=dynamic, max_distance=max_distance, folder=folder)
        data = own_loader(model) if calib_data is None and choice.mode != "integer" else calib_data
        call = example_call(form, model, data, input_sample, known=None if calib_data is not None else example)
        fixed = Source.of(model, *call, free_batch=False)
        by_sample = isinstance(input_sample, Mapping)
        taken = [] if data is None else take_samples(data, form, fixed, calibration_samples, by_sample=by_sample)
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
            calibration=None if data is None else Calibration(samples=taken, keep_float=tuple(keep_float)),
            axes=axes,
            max_distance=max_distance,
            folder=folder,
        )
        return as_module(convert(model, call, options), model)

    @staticmethod
    def save(model: nn.Module, path: str | Path, compression: str | None = None) -> None:
        """Copy a converted model's artifact to a new folder, which runs elsewhere without anything else.

        Of a module that is not converted, such as the original, the weights are written; `load` needs the module then.

        Args:
            model: a converted model, or a module.
            path: the new folder.
            compression: "bf16" to store float32 weights in bfloat16, which halves the file and rounds the weights; they
                are float32 again when loaded. For modules and the accelerators eager and int8; OpenVINO has
                precision="fp16".

        Raises:
            UsageError: the model has no artifact, can't be compressed, or the folder is not empty.
        """
        check_choice("compression", compression or "fp32", ("bf16", "fp32"))
        if compression == "fp32":
            compression = None
        target = Path(path)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{str(target)!r} is not an empty folder. Choose a new one.")
        if not isinstance(model, OptimizedModel):
            save_weights(model, target, rounded=compression is not None)
            return
        if isinstance(model.graph, Unconverted) or model.folder is None:
            raise UsageError(
                "This model has no artifact to copy. Get one from get_model(), trace(), quantize() or load(); one that "
                "was traced without input_sample has it after its first call."
            )
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
        model: nn.Module | None = None,
        *,
        thread_num: int | None = None,
        hint: Hint | None = None,
        streams: int | None = None,
        trust: bool = False,
        **options: Any,
    ) -> Any:
        """Return the model in an artifact folder.

        Args:
            path: the folder.
            model: the original, whose attributes, parameters and methods the loaded model then has. Where `save` wrote
                the weights of a module, they are loaded into this one.
            options: `output_tensors=False` to get arrays even for tensors; `openvino_config`, a dictionary of
                OpenVINO's properties; `session_options`, ONNX Runtime's own; `device`, which one of several ("cuda:1")
                for a model that was converted for such a device.
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
        if (folder / WEIGHTS).is_file() and not is_artifact(folder):
            if how != LoadOptions():
                raise UsageError(f"{str(folder)!r} holds the weights of a module. Give the module only.")
            return load_weights(folder, model)
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
        num_processes: int | None = None,
        cores_per_process: int | None = None,
        cpu_for_each_process: Sequence[Sequence[int]] | None = None,
        *,
        input_sample: Any = None,
        cores: Sequence[Sequence[int]] | None = None,
    ) -> OptimizedModel:
        """Return a model that is called like the given one and runs in several processes, each on its own cores.

        One call goes to one process; a list or a loader of calls, and `map(batches)`, keep all of them busy, with
        results in order. Call `close()` at the end.

        Args:
            model: a converted model, or any module, which is converted to run as it is (`eager`).
            num_processes: how many processes; by default as many as `cores` names, or one per physical core.
            cores_per_process: physical cores of each; by default all of them, split evenly.
            cpu_for_each_process: alias of `cores`.
            input_sample: an example of a module's inputs (see `optimize`); by default the first call.
            cores: the logical cpus of each process.

        Raises:
            UsageError: there are fewer cores than processes.
        """
        from boxwright.runtimes.instances import place, to_multi_instance

        if isinstance(model, OptimizedModel) and input_sample is not None:
            raise UsageError("input_sample does not apply to a converted model. Leave it out.")
        if cores is not None and cpu_for_each_process is not None:
            raise UsageError("cores and cpu_for_each_process mean the same thing. Give one of them.")
        shares = place(num_processes, cpu_for_each_process if cores is None else cores, each=cores_per_process)
        one: Any = model if isinstance(model, OptimizedModel) else Conversions.trace(model, input_sample, "eager")
        if isinstance(one.graph, Unconverted):

            def start(call: Call) -> OptimizedModel:
                one(*call[0], **call[1])
                return Conversions.to_multi_instance(one, cores=shares)

            return as_module(OptimizedModel(Unconverted(start, many=True)), one.original)
        if one.folder is None:
            raise UsageError("This model has no artifact. Get one from get_model(), trace(), quantize() or load().")
        several = OptimizedModel(
            to_multi_instance(one.folder, len(shares), cores=shares, trust=True),  # it runs here already
            method=one.method,
            folder=one.folder,
            options=one.options,
        )
        module = as_module(several, one.original)
        vars(module)["_source"] = (one,)  # keeps it alive, and with it its temporary folder
        return module


def convert_later(
    model: nn.Module,
    choice: Choice,
    options: LoadOptions,
    *,
    dynamic: Dynamic,
    max_distance: float | None,
    folder: str | Path | None,
) -> OptimizedModel:
    """Return a model that is converted by its first call, which shows what its inputs are."""
    # Nothing shows which sizes may vary, so all do that the model allows.
    axes = FreeAxes(dynamic=True if dynamic is None else dynamic, quiet=dynamic is None)
    convert = Conversion(choice=choice, axes=axes, max_distance=max_distance, folder=folder)
    later = Unconverted(lambda call: as_module(convert(model, call, options), model))
    return as_module(OptimizedModel(later, options=options), model)


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
