"""Exporters that go wrong."""

import json
from pathlib import Path
from typing import Any

from support.toy import save_toy_onnx

from boxwright.core.errors import ConversionError
from boxwright.core.spec import Spec


def write_another(source: object, path: Path, *, size_step: object, metadata: dict[str, str]) -> dict[str, Any]:
    """Write a file that computes something else."""
    save_toy_onnx(path, spec=Spec.from_dict(json.loads(metadata["boxwright"])))
    return {}


def break_down(source: object, path: Path, *, size_step: object, metadata: dict[str, str]) -> dict[str, Any]:
    """Write half a file and fail."""
    path.write_bytes(b"half")
    raise ConversionError("The model could not be exported to ONNX: planted")
