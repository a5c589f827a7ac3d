"""ONNX Runtime: fp32, static int8 ("qlinear") and dynamic int8 ("integer") on the CPU. Running needs no torch.

On a GPU: fp32, fp16, and "tensorrt" with an engine in the file, by ONNX Runtime's providers.

For the CPU, the folder holds one file, optimised at ONNX Runtime's extended level: constants folded, SiLU one
operator, quantised operators in place of their float ones. This is the same on every machine. What depends on the
instruction set (blocked layouts) happens when the file is loaded, so the folder can be moved.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from boxwright.core import catalogue
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, ConversionError, MissingDependencyError
from boxwright.core.signature import Array, Port, Signature
from boxwright.core.types import Precision
from boxwright.devices.chosen import CPU, Chosen
from boxwright.runtimes.base import Choice, Graph, Tuning, check_offer, first_line, one_by_one, side_by_side
from boxwright.runtimes.buckets import BUCKETS, in_buckets
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.trust import ENGINE_SUFFIX

MODEL_FILE = "model.onnx"
_TENSORRT = "TensorrtExecutionProvider"
_MODES = {Precision.FP32: ("",), Precision.INT8: ("qlinear", "integer")}
_MODES_ELSEWHERE = {Precision.FP32: ("",), Precision.FP16: ("", "tensorrt"), Precision.INT8: ("tensorrt",)}
_ENGINE_FILE = f"model{ENGINE_SUFFIX}"
_GPU_PACKAGES = "On a machine with an NVIDIA GPU run: pip uninstall onnxruntime; pip install onnxruntime-gpu"

_EXTENDED = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
_ACTIVATION_FUSIONS = ["ConvActivationFusion", "ConvAddActivationFusion", "GemmActivationFusion"]
# ONNX Runtime's errors have no common base class.
_ERRORS = tuple(v for v in vars(_state).values() if isinstance(v, type) and issubclass(v, Exception))
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


class OnnxGraph:
    """A `Graph` over an ONNX file.

    Attributes:
        path: the file.
        signature: what it takes and returns.
        metadata: texts stored in the file.
        streams: how many requests it computes in parallel.
    """

    def __init__(
        self,
        path: Path,
        signature: Signature | None = None,
        tuning: Tuning | None = None,
        place: Chosen | None = None,
    ) -> None:
        """Open a file; without a signature, one is made from its inputs and outputs.

        Raises:
            CheckpointError: there is no such file, or ONNX Runtime can't load it.
            MissingDependencyError: it does not run on the device.
        """
        tuning = tuning or Tuning()
        self.path = path
        cores = read_cpu().usable_cores
        side_by_side = tuning.hint == "throughput"
        self.streams = tuning.streams or (max(1, cores // (tuning.threads or 1)) if side_by_side else 1)
        options = tuning.session_options or _options(
            tuning.threads or (1 if side_by_side else max(1, cores // self.streams))
        )
        if self.streams > 1 and tuning.session_options is None:
            # A thread that waits by spinning takes the core from a parallel request.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = _open(path, options, place or Chosen())
        self.signature = signature or _read_signature(self._session)
        self.metadata: Mapping[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self._inputs = [i.name for i in self._session.get_inputs()]
        self._outputs = [o.name for o in self._session.get_outputs()]
        self._pool: ThreadPoolExecutor | None = None

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for flat inputs.

        Raises:
            CheckpointError: the file does not take such inputs, or the graph is closed.
        """
        if self._session is None:
            raise CheckpointError("This session is closed. Load the model again.")
        feeds = {name: np.ascontiguousarray(a) for name, a in zip(self._inputs, inputs, strict=True)}
        try:
            return tuple(self._session.run(self._outputs, feeds))
        except _ERRORS as error:
            given = " and ".join(f"{a.dtype} of shape {a.shape!r}" for a in inputs)
            raise CheckpointError(f"{str(self.path)!r} can't run {given}: {first_line(error)}") from error

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests in their order, `Tuning.streams` of them computed in parallel."""
        if self.streams == 1:
            yield from one_by_one(self, requests)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.streams, thread_name_prefix="onnxruntime")
        yield from side_by_side(self.run, requests, self._pool, self.streams)

    def close(self) -> None:
        """Release the file and stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = self._session = None


class OnnxRuntime:
    """Exports a torch model to ONNX, quantises it if asked, and runs it."""

    name = "onnxruntime"

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write `model.onnx`, optimised at the extended level, or a file for another device; return how it was made."""
        if choice.device != CPU:
            return _convert_for_device(source, choice, folder, calibration)
        check_offer(choice, calibration, modes=_MODES, channels_last=False)
        with TemporaryDirectory(prefix="boxwright-onnx-") as scratch:
            exported = Path(scratch) / "exported.onnx"
            recipe: dict[str, Any] = catalogue.load("exporter", "onnx")(source, exported)
            if choice.precision is Precision.INT8:
                # Fuse SiLU to one operator first: otherwise the value between its two parts would be rounded.
                fused, quantised = Path(scratch) / "fused.onnx", Path(scratch) / "quantised.onnx"
                optimise_file(exported, fused, keep_activations=True)
                quantize = catalogue.load("quantizer", f"onnx_{choice.mode}")
                how = quantize(fused, quantised, source, calibration)
                recipe |= {"quantized": how.pop("quantized"), "quantisation": how}
                exported = quantised
            optimise_file(exported, folder / MODEL_FILE)
        return recipe | {"optimised": "extended", "onnxruntime": onnxruntime.__version__}

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> Graph:
        """Return a graph over the folder's file."""
        if choice.device == CPU:
            return OnnxGraph(folder / MODEL_FILE, signature, tuning)
        file = _ENGINE_FILE if choice.mode == "tensorrt" else MODEL_FILE
        graph = OnnxGraph(folder / file, signature, tuning, Chosen(choice.device, tuning.number))
        return in_buckets(graph, threads=graph.streams)  # each new shape chooses and tunes kernels


def _convert_for_device(source: Any, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
    """Write an ONNX file for another device, which ONNX Runtime optimises when it is loaded there, or an engine."""
    devices = [name for name in catalogue.names("device") if name != CPU]
    check_offer(choice, calibration, modes=_MODES_ELSEWHERE, channels_last=False, devices=devices)
    _find_providers(folder / MODEL_FILE, Chosen(choice.device))  # before the work
    export = catalogue.load("exporter", "onnx")
    if choice.mode != "tensorrt":
        halved = {} if choice.precision is Precision.FP32 else {"choice": choice, "calibration": calibration}
        recipe: dict[str, Any] = export(source, folder / MODEL_FILE, **halved)
        return recipe | {"onnxruntime": onnxruntime.__version__}
    _refuse_without_tensorrt()
    profile = _make_profile(source)
    with TemporaryDirectory(prefix="boxwright-onnx-") as scratch:
        file = Path(scratch) / "exported.onnx"
        recipe = export(source, file)
        if choice.precision is Precision.INT8:
            how = catalogue.load("quantizer", "onnx_symmetric")(file, file, source, calibration)
            recipe |= {"quantized": how.pop("quantized"), "quantisation": how}
        int8 = choice.precision is Precision.INT8
        return recipe | build_engine(file, folder / _ENGINE_FILE, half=True, int8=int8, profile=profile)


def _make_profile(source: Any) -> dict[str, str]:
    """Return the shapes that an engine is built for: the example's, with up to the largest bucket's rows.

    Raises:
        ConversionError: other axes than the batch are free.
    """
    signature: Signature = source.signature
    if any(None in port.shape[1:] for port in signature.inputs):
        raise ConversionError("A TensorRT engine is built for inputs of one size; only their batch may vary.")
    if not signature.free_batch:
        return {}
    rows = int(source.example[0].shape[0])
    numbers = {"min": 1, "opt": rows, "max": max(rows, BUCKETS[-1])}
    return {
        f"trt_profile_{which}_shapes": ",".join(
            f"{port.name}:{'x'.join(map(str, (number, *port.shape[1:])))}" for port in signature.inputs
        )
        for which, number in numbers.items()
    }


def optimise_file(path: Path, target: Path, *, keep_activations: bool = False) -> None:
    """Write a file as ONNX Runtime optimises it at its extended level, which is valid on any machine.

    Args:
        path: the file to read.
        target: the file to write.
        keep_activations: do not fuse activations into convolutions and products, which a quantiser looks for.

    Raises:
        ConversionError: ONNX Runtime can't load the file.
    """
    options = _options(1)
    options.graph_optimization_level = _EXTENDED
    options.optimized_model_filepath = str(target)
    left_out = _ACTIVATION_FUSIONS if keep_activations else []
    try:
        onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out
        )
    except _ERRORS as error:
        raise ConversionError(f"ONNX Runtime can't run the exported model: {first_line(error)}") from error


def _refuse_without_tensorrt() -> None:
    have = onnxruntime.get_available_providers()
    if _TENSORRT not in have:
        raise MissingDependencyError(
            f"'tensorrt' needs ONNX Runtime with its TensorRT provider; this one has {', '.join(have)}. "
            f"{_GPU_PACKAGES} tensorrt"
        )


def build_engine(
    path: Path, target: Path, *, half: bool, int8: bool = False, profile: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write an ONNX file with a TensorRT engine in it, for the input shapes that the given file or the profile fixes.

    Args:
        path: the given file; for int8 with the roundings in it.
        target: the file to write.
        half: let TensorRT compute in fp16.
        int8: let it compute in int8.
        profile: the provider's settings for inputs of any batch size.

    Raises:
        MissingDependencyError: this ONNX Runtime has no TensorRT provider.
        ConversionError: TensorRT can't build the engine.
    """
    _refuse_without_tensorrt()
    settings = {
        "trt_dump_ep_context_model": True,
        "trt_ep_context_file_path": str(target),
        "trt_ep_context_embed_mode": 1,
        "trt_fp16_enable": half,
        "trt_int8_enable": int8,
        **(profile or {}),
    }
    try:
        onnxruntime.InferenceSession(str(path), _options(0), providers=[(_TENSORRT, settings), "CUDAExecutionProvider"])
    except Exception as error:  # its errors share no base class
        raise ConversionError(f"TensorRT can't build the engine: {first_line(error)}") from error
    if not target.is_file():
        raise ConversionError("TensorRT took no part of the model: no engine was written.")
    return {"engine": "TensorRT", "half": half, "onnxruntime": onnxruntime.__version__}


def _options(threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    # Its messages bypass any logger and colour stderr, even if it is a file. Errors are raised as exceptions too.
    options.log_severity_level = 4
    # Always set: the default counts the machine's cores, not this process's, and pins threads to them.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return options


def has_provider(device: str) -> bool:
    """Return whether this ONNX Runtime is made for a device; the device's libraries may still be missing."""
    return _provider(device) in onnxruntime.get_available_providers()


def _provider(device: str) -> str:
    return f"{device.upper()}ExecutionProvider"


def _find_providers(path: Path, place: Chosen) -> list[Any]:
    """Return the providers for a file on a device, the first one with its settings."""
    have = onnxruntime.get_available_providers()
    if path.name.endswith(ENGINE_SUFFIX):  # it runs only where it was built
        if _TENSORRT not in have:
            raise CheckpointError(f"{str(path)!r} holds a TensorRT engine, which this ONNX Runtime can't run.")
        return [(_TENSORRT, {"device_id": place.number})]
    if place.is_cpu:
        return [_provider(place.name)]
    name = _provider(place.name)
    if name not in have:
        raise MissingDependencyError(
            f"device={place.name!r} needs ONNX Runtime with its {name}; this one has {', '.join(have)}. {_GPU_PACKAGES}"
        )
    # As elsewhere, 32 bits are 32 bits: no TF32.
    return [(name, {"device_id": place.number, "use_tf32": 0}), _provider("cpu")]


def _open(path: Path, options: Any, place: Chosen) -> Any:
    if not path.is_file():
        raise CheckpointError(f"There is no model file at {str(path)!r}. Check the path.")
    providers = _find_providers(path, place)
    # Not a session's own log: while a file is read, errors go to this one, with names from the file in colour.
    if options.log_severity_level >= 0:  # -1 leaves it to this one
        onnxruntime.set_default_logger_severity(options.log_severity_level)
    elsewhere = isinstance(providers[0], tuple)
    try:
        with redirect_stdout(sys.stderr) if elsewhere else nullcontext():  # it prints what it can't find
            if elsewhere and hasattr(onnxruntime, "preload_dlls"):
                onnxruntime.preload_dlls()  # the libraries that pip has installed
            session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except _ERRORS as error:
        raise CheckpointError(f"{str(path)!r} can't be loaded by ONNX Runtime: {first_line(error)}") from error
    wanted = providers[0][0] if elsewhere else providers[0]
    if wanted not in session.get_providers():  # it falls back to the CPU silently
        raise MissingDependencyError(
            f"ONNX Runtime can't start its {wanted}: a library of the device is missing, or is not of the version that "
            f"onnxruntime-gpu {onnxruntime.__version__} needs. onnxruntime.ai lists them under Execution Providers."
        )
    return session


def _read_signature(session: Any) -> Signature:
    inputs, outputs = (
        tuple(
            Port(
                name=value.name,
                dtype=_DTYPES.get(value.type, value.type),
                shape=tuple(d if isinstance(d, int) and d > 0 else None for d in value.shape),
            )
            for value in values
        )
        for values in (session.get_inputs(), session.get_outputs())
    )
    return Signature(
        inputs=inputs,
        outputs=outputs,
        call={"tuple": [{"tuple": [{"leaf": i} for i in range(len(inputs))]}, {"dict": {}}]},
        result={"dict": {port.name: {"leaf": i} for i, port in enumerate(outputs)}},
    )
