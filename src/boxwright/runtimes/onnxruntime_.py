"""ONNX Runtime on the CPU: fp32, static int8 ("qlinear") and dynamic int8 ("integer"). Running needs no torch.

The folder holds one file, optimised at ONNX Runtime's extended level: constants folded, SiLU one operator, quantised
operators in place of their float ones. This is the same on every machine. What depends on the instruction set
(blocked layouts) happens when the file is loaded, so the folder can be moved.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from boxwright.runtimes.base import Choice, Tuning, check_offer, first_line, one_by_one
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.trust import ENGINE_SUFFIX

MODEL_FILE = "model.onnx"
_TENSORRT = "TensorrtExecutionProvider"
_MODES = {Precision.FP32: ("",), Precision.INT8: ("qlinear", "integer")}

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

    def __init__(self, path: Path, signature: Signature | None = None, tuning: Tuning | None = None) -> None:
        """Open a file; without a signature, one is made from its inputs and outputs.

        Raises:
            CheckpointError: there is no such file, or ONNX Runtime can't load it.
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
        self._session: Any = _open(path, options)
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
        waiting: deque[Future[tuple[Array, ...]]] = deque()
        try:
            for inputs in requests:
                waiting.append(self._pool.submit(self.run, inputs))
                # One more than can run in parallel, so that no thread waits for the caller.
                if len(waiting) > self.streams:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Release the file and stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = self._session = None


class OnnxRuntime:
    """Exports a torch model to ONNX, quantises it if asked, and runs it."""

    name = "onnxruntime"

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write `model.onnx`, optimised at the extended level; return how it was made."""
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

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> OnnxGraph:  # noqa: ARG002
        """Return a graph over the folder's file."""
        return OnnxGraph(folder / MODEL_FILE, signature, tuning)


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


def build_engine(path: Path, target: Path, *, half: bool) -> dict[str, Any]:
    """Write an ONNX file with a TensorRT engine in it, for the input shapes that the given file fixes.

    Raises:
        MissingDependencyError: this ONNX Runtime has no TensorRT provider.
        ConversionError: TensorRT can't build the engine.
    """
    have = onnxruntime.get_available_providers()
    if _TENSORRT not in have:
        raise MissingDependencyError(
            f"Format 'tensorrt' needs ONNX Runtime with its TensorRT provider; this one has {', '.join(have)}. "
            "On a machine with an NVIDIA GPU run: pip install onnxruntime-gpu tensorrt"
        )
    settings = {
        "trt_dump_ep_context_model": True,
        "trt_ep_context_file_path": str(target),
        "trt_ep_context_embed_mode": 1,
        "trt_fp16_enable": half,
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


def _open(path: Path, options: Any) -> Any:
    if not path.is_file():
        raise CheckpointError(f"There is no model file at {str(path)!r}. Check the path.")
    # A file with a TensorRT engine runs only on the GPU.
    providers = [_TENSORRT] if path.name.endswith(ENGINE_SUFFIX) else ["CPUExecutionProvider"]
    if not set(providers) <= set(onnxruntime.get_available_providers()):
        raise CheckpointError(f"{str(path)!r} holds a TensorRT engine, which this ONNX Runtime can't run.")
    # Not a session's own log: while a file is read, errors go to this one, with names from the file in colour.
    if options.log_severity_level >= 0:  # -1 leaves it to this one
        onnxruntime.set_default_logger_severity(options.log_severity_level)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except _ERRORS as error:
        raise CheckpointError(f"{str(path)!r} can't be loaded by ONNX Runtime: {first_line(error)}") from error


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
