"""Requests of the Open Inference Protocol v2 in a worker: tensors in, boxes, scores and classes out.

One of three inputs is given: `image`, encoded pictures in a BYTES tensor; `pixels`, (N, H, W, 3) BGR in UINT8; or
`tensor`, the network's own input in FP32, whose boxes are then in pixels of that input.
"""

import base64
import binascii
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import UsageError
from boxwright.core.types import Detections
from boxwright.detector.postprocess import postprocess
from boxwright.serve.wire import Head
from boxwright.tasks.predict.predictor import Predictor

if TYPE_CHECKING:
    from boxwright.serve.answer import Answerer

Array = NDArray[Any]
HEADER_LENGTH = "inference-header-content-length"
_BINARY = "application/octet-stream"
_JSON = "application/json"
_INPUTS = {"image": "BYTES", "pixels": "UINT8", "tensor": "FP32"}
_DTYPES: dict[str, np.dtype[Any]] = {
    "UINT8": np.dtype("u1"),
    "FP32": np.dtype("<f4"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
}
OUTPUTS = {"boxes": "FP32", "scores": "FP32", "classes": "INT64", "counts": "INT32"}
_PARAMETERS = ("conf", "nms", "classes", "binary_data_output")
# What clients send for features that this server does not have: harmless if it says nothing.
_IGNORABLE = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")


def infer(
    answerer: "Answerer", head: Head, body: bytes, timings: dict[str, float]
) -> tuple[str, bytes, dict[str, str]]:
    """Return the content type, body and headers of the answer.

    Raises:
        UsageError: the request is not one of the protocol, or asks for an output that does not exist.
        DataError: a picture can't be read.
    """
    values, rest = _split(head, body)
    request = _read(values)
    options = {**head, **_options(request.get("parameters", {}))}
    predictor = answerer.predictor(options)
    name, array = _read_input(request, rest, head["max_images"])
    now = time.monotonic()
    if name == "image":
        found = [
            answerer.find(predictor, f"Picture {number}", data).detections for number, data in enumerate(array, start=1)
        ]
    elif name == "pixels":
        found = _from_pixels(predictor, array)
    else:
        found = _from_tensor(predictor, array)
    timings |= {stage: seconds * 1000 for stage, seconds in predictor.watch.seconds.items()} or {
        "network": (time.monotonic() - now) * 1000
    }
    return _write(answerer.name, head["version"], request, found)


def _split(head: Head, body: bytes) -> tuple[bytes, bytes]:
    length = head.get("header_length")
    if length is None:
        return body, b""
    if length > len(body):
        raise UsageError("Inference-Header-Content-Length is larger than the body.")
    return body[:length], body[length:]


def _read(text: bytes) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The request is not JSON: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("inputs"), list):
        raise UsageError('The request must be an object with a list of "inputs".')
    for one in (*values["inputs"], *_list(values, "outputs")):
        if not isinstance(one, dict) or not isinstance(one.get("parameters", {}), dict):
            raise UsageError("Inputs and outputs must be objects, as must their parameters.")
        if not isinstance(one.get("name"), str):
            raise UsageError(f"Inputs and outputs must have a name, which is text, not {one.get('name')!r}.")
    if not isinstance(values.get("parameters", {}), dict):
        raise UsageError('"parameters" must be an object.')
    return values


def _list(values: dict[str, Any], name: str) -> list[Any]:
    found = values.get(name) or []
    if not isinstance(found, list):
        raise UsageError(f'"{name}" must be a list.')
    return found


def _options(parameters: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in _IGNORABLE:
            continue
        if name not in _PARAMETERS:
            raise UsageError(f"Unknown parameter {name!r}. There are: {', '.join(_PARAMETERS)}.")
        if name in ("conf", "nms"):
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                raise UsageError(f"{name} must be a number between 0 and 1, not {value!r}.")
            options[name] = float(value)
        elif name == "classes":
            if not isinstance(value, str):
                raise UsageError(f'classes must be names as "person,dog", not {value!r}.')
            options[name] = [one.strip() for one in value.split(",") if one.strip()]
    return options


def _read_input(request: dict[str, Any], rest: bytes, most: int) -> tuple[str, Any]:
    """Return the name of the input, and its pictures or its array."""
    if len(request["inputs"]) != 1:
        raise UsageError(f"Give exactly one input: {', '.join(_INPUTS)}.")
    given = request["inputs"][0]
    name, datatype, shape = given.get("name"), given.get("datatype"), given.get("shape")
    if name not in _INPUTS:
        raise UsageError(f"Unknown input {name!r}. There are: {', '.join(_INPUTS)}.")
    if datatype != _INPUTS[name]:
        raise UsageError(f"The input {name!r} has the datatype {_INPUTS[name]}, not {datatype!r}.")
    if not _is_shape(shape) or not 1 <= shape[0] <= most:
        raise UsageError(f"The shape of {name!r} must begin with 1 to {most} pictures, not {shape!r}.")
    size = given.get("parameters", {}).get("binary_data_size")
    data = None
    if size is not None:
        if not isinstance(size, int) or size != len(rest):
            raise UsageError(f"binary_data_size of {name!r} is {size!r}, but {len(rest)} bytes follow the header.")
        data = rest
    elif rest:
        raise UsageError(f"{len(rest)} bytes follow the header, but no input has a binary_data_size.")
    if name == "image":
        if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
            raise UsageError(f"The shape of 'image' must be [N] or [N, 1], not {shape!r}.")
        pictures = _split_bytes(data) if data is not None else _decode_base64(given.get("data"))
        if len(pictures) != shape[0]:
            raise UsageError(f"The shape of 'image' promises {shape[0]} pictures, but there are {len(pictures)}.")
        return name, pictures
    count = int(np.prod([int(side) for side in shape], dtype=object))
    if data is not None:
        if count * _DTYPES[datatype].itemsize != len(data):
            raise UsageError(f"The shape {shape!r} of {name!r} does not fit its {len(data)} bytes.")
        return name, np.frombuffer(data, _DTYPES[datatype]).reshape(shape)
    return name, _from_json(name, given.get("data"), datatype, shape, count)


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and 1 <= len(shape) <= 4
        and all(isinstance(side, int) and not isinstance(side, bool) and side >= 0 for side in shape)
    )


def _from_json(name: str, data: Any, datatype: str, shape: Sequence[int], count: int) -> Array:
    try:
        values = np.asarray(data, np.float64).reshape(-1)
        if datatype == "UINT8" and not ((values >= 0) & (values <= 255)).all():
            raise ValueError("a value is outside 0 to 255")
        if len(values) != count:
            raise ValueError(f"there are {len(values)} values")
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"The data of {name!r} are not {datatype} values of shape {list(shape)!r}: {error}") from error
    return values.astype(_DTYPES[datatype]).reshape(shape)


def _split_bytes(data: bytes) -> list[bytes]:
    """Return the elements of a BYTES tensor: each follows its length in four bytes."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + size > len(data):
            raise UsageError("A BYTES tensor is cut off: an element is longer than what follows.")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def _decode_base64(data: Any) -> list[bytes]:
    if not isinstance(data, list):
        raise UsageError("The data of 'image' must be a list of pictures in base64.")
    try:
        flat = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in data]
        return [base64.b64decode(one, validate=True) for one in flat]
    except (binascii.Error, ValueError, TypeError) as error:
        raise UsageError(f"A picture is not base64: {error}") from error


def _from_pixels(predictor: Predictor, array: Array) -> list[Detections]:
    if array.ndim != 4 or array.shape[3] != 3 or 0 in array.shape:
        raise UsageError(f"The shape of 'pixels' must be [N, height, width, 3], not {list(array.shape)!r}.")
    return [predictor.predict_batch([image])[0] for image in array]


def _from_tensor(predictor: Predictor, array: Array) -> list[Detections]:
    spec, keep = predictor.session.spec, predictor.thresholds
    if array.shape[1:] != (3, *spec.size_hw):
        raise UsageError(f"The shape of 'tensor' must be [N, 3, {spec.size_hw[0]}, {spec.size_hw[1]}].")
    found = []
    for output in predictor.session(array.astype(np.float32, copy=False)):
        boxes, scores, class_ids = postprocess(
            output, size_hw=spec.size_hw, strides=spec.strides, form=spec.output, conf=keep.conf, nms=keep.nms
        )
        one = Detections(boxes_xyxy=boxes, scores=scores, class_ids=class_ids, names=spec.names, size_hw=spec.size_hw)
        found.append(one if keep.classes is None else one.filter(classes=keep.classes))
    return found


def _write(
    name: str, version: str, request: dict[str, Any], found: Sequence[Detections]
) -> tuple[str, bytes, dict[str, str]]:
    arrays: dict[str, Array] = {
        "boxes": np.concatenate([one.boxes_xyxy for one in found]).astype("<f4"),
        "scores": np.concatenate([one.scores for one in found]).astype("<f4"),
        "classes": np.concatenate([one.class_ids for one in found]).astype("<i8"),
        "counts": np.array([len(one) for one in found], "<i4"),
    }
    wanted = _list(request, "outputs") or [{"name": one} for one in OUTPUTS]
    all_binary = request.get("parameters", {}).get("binary_data_output", False) is True
    outputs, tail = [], []
    for one in wanted:
        if one.get("name") not in OUTPUTS:
            raise UsageError(f"Unknown output {one.get('name')!r}. There are: {', '.join(OUTPUTS)}.")
        if one.get("parameters", {}).get("classification"):
            raise UsageError("This model has no classification output. Leave `classification` out.")
        array = arrays[one["name"]]
        entry: dict[str, Any] = {"name": one["name"], "datatype": OUTPUTS[one["name"]], "shape": list(array.shape)}
        if one.get("parameters", {}).get("binary_data", all_binary) is True:
            entry["parameters"] = {"binary_data_size": array.nbytes}
            tail.append(array.tobytes())
        else:
            entry["data"] = array.reshape(-1).tolist()
        outputs.append(entry)
    answer: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": outputs}
    if "id" in request:
        answer["id"] = request["id"]
    text = json.dumps(answer).encode()
    if not tail:
        return _JSON, text, {}
    return _BINARY, b"".join([text, *tail]), {HEADER_LENGTH: str(len(text))}
