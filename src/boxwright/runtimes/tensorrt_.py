"""TensorRT through ONNX Runtime's provider: an ONNX file that holds the engine built for this machine's GPU."""

from pathlib import Path
from typing import Any

import onnxruntime

from boxwright.core.errors import ConversionError, MissingDependencyError
from boxwright.runtimes.base import first_line

PROVIDER = "TensorrtExecutionProvider"


def build_engine(path: Path, target: Path, *, half: bool) -> dict[str, Any]:
    """Write an ONNX file with a TensorRT engine in it, for the input shapes that the given file fixes.

    Raises:
        MissingDependencyError: this ONNX Runtime has no TensorRT provider.
        ConversionError: TensorRT can't build the engine.
    """
    have = onnxruntime.get_available_providers()
    if PROVIDER not in have:
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
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        onnxruntime.InferenceSession(str(path), options, providers=[(PROVIDER, settings), "CUDAExecutionProvider"])
    except Exception as error:  # its errors share no base class
        raise ConversionError(f"TensorRT can't build the engine: {first_line(error)}") from error
    if not target.is_file():
        raise ConversionError("TensorRT took no part of the model: no engine was written.")
    return {"engine": "TensorRT", "half": half, "onnxruntime": onnxruntime.__version__}
