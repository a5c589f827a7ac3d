"""Mutates model files (`.pth`, `.safetensors`, `.onnx`) and artifact folders, each within its own structure."""

import hashlib
import io
import json
import math
import os
import pickle
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

from fuzz.blobs import other_form, spoil, spoil_zip
from fuzz.values import NUMBERS, odd_text, odd_value, rewrite_tree, to_json


class Hostile:
    """Makes a folder when it is unpickled; the checks look for it."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._place,)


def spoil_model(rng: Random, seed: Path, target: Path, outside: Path) -> None:
    """Write a spoilt copy of a model file or folder.

    Args:
        rng: decides.
        seed: the good one.
        target: where to; its suffix is the seed's.
        outside: the folder that nothing may touch.
    """
    if seed.is_dir():
        shutil.copytree(seed, target)
        for _ in range(rng.choice((1, 1, 2))):
            _spoil_artifact(rng, target, outside)
        return
    data = seed.read_bytes()
    if rng.random() < 0.15:
        data = other_form(rng, data)
    elif rng.random() < 0.15:
        data = spoil(rng, data)
    else:
        data = {".pth": _spoil_pth, ".safetensors": _spoil_safetensors, ".onnx": _spoil_onnx}[seed.suffix](
            rng, data, outside
        )
    target.write_bytes(data)


def _spoil_pth(rng: Random, data: bytes, outside: Path) -> bytes:
    import torch

    hostile = Hostile(str(outside / "pwned"))
    action = rng.randrange(6)
    if action == 0:
        return spoil_zip(
            rng, data, lambda r, name, body: _spoil_pickle(r, body) if name.endswith("pkl") else spoil(r, body)
        )
    if action == 1:
        content: Any = hostile if rng.random() < 0.5 else {"model": {}, "optimizer": hostile}
        return pickle.dumps(content, protocol=rng.choice((0, 2, 4)))
    content = torch.load(io.BytesIO(data), weights_only=True)
    state = content.get("model", content)
    if action == 2:
        content[odd_text(rng)] = rng.choice((hostile, odd_value(rng)))
    else:
        for key in rng.sample(sorted(state), rng.choice((1, 1, 3, 100))):
            _spoil_tensor(rng, state, key)
    if action == 5:
        content = rng.choice(([state], {"model": content}, {"state_dict": odd_value(rng)}, odd_value(rng), state))
    target = io.BytesIO()
    torch.save(content, target, _use_new_zipfile_serialization=rng.random() < 0.8)
    return target.getvalue()


def _spoil_tensor(rng: Random, state: dict[Any, Any], key: Any) -> None:
    import torch

    tensor = state[key]
    action = rng.randrange(9)
    if action == 0:
        del state[key]
    elif action == 1:
        state[odd_text(rng)] = state.pop(key)
    elif action == 2:
        state[key] = tensor.flatten()[: rng.choice((0, 1, 5))]
    elif action == 3:
        kinds = (torch.float64, torch.float16, torch.int8, torch.bool, torch.complex64, torch.uint8)
        state[key] = tensor.to(rng.choice(kinds))
    elif action == 4:
        value = rng.choice((math.nan, math.inf, 1e30, -1e30))
        state[key] = torch.full(tensor.shape, value) if tensor.is_floating_point() else tensor
    elif action == 5:
        state[key] = odd_value(rng)
    elif action == 6:
        state[key] = torch.zeros(1).expand(rng.choice((10, 2**20, 2**33)), *tensor.shape)
    elif action == 7:
        state[key] = rng.choice(
            (tensor.to_sparse() if tensor.ndim else tensor, torch.nn.Parameter(tensor.float()), tensor[None])
        )
    else:
        state[rng.choice((7, ("a", 1), None, key))] = tensor


def _spoil_pickle(rng: Random, data: bytes) -> bytes:
    """Return a pickle with another name or number in it; it stays readable more often than after bit flips."""
    words = (
        b"torch._utils",
        b"_rebuild_tensor_v2",
        b"collections",
        b"OrderedDict",
        b"FloatStorage",
        b"storage",
        b"cpu",
    )
    word = rng.choice(words)
    others = (
        b"os",
        b"system",
        b"builtins",
        b"eval",
        b"posix",
        b"",
        b"LongStorage",
        b"meta",
        b"torch",
        b"getattr",
        b"cuda:9",
    )
    return data.replace(word, rng.choice(others), 1) if word in data and rng.random() < 0.7 else spoil(rng, data)


def _spoil_safetensors(rng: Random, data: bytes, outside: Path) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    action = rng.randrange(6)
    if action < 2:
        spec = json.loads(header["__metadata__"]["boxwright"])
        header["__metadata__"]["boxwright"] = json.dumps(rewrite_tree(rng, spec, rng.choice((1, 1, 3))))
    elif action == 2:
        header["__metadata__"] = {str(k): str(v) for k, v in {odd_text(rng): odd_value(rng)}.items()}
    elif action == 3:
        part = header[rng.choice([key for key in header if key != "__metadata__"])]
        part[rng.choice(tuple(part))] = rng.choice(
            (odd_value(rng), [0, 2**40], [2**63, 4], [1, 1], "F64", "BOOL", "F8_E4M3")
        )
    else:
        header = rewrite_tree(rng, header, rng.choice((1, 3)))
    text = json.dumps(header).encode()
    if action == 5:
        body = rng.choice((body[:-1], b"", body + b"x", spoil(rng, body), b"\xff\xff\xff\x7f" * (len(body) // 4)))
    length = len(text) if rng.random() < 0.9 else rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(text) + 1))
    return struct.pack("<Q", length) + text + body


def _spoil_onnx(rng: Random, data: bytes, outside: Path) -> bytes:
    import onnx

    model = onnx.load_from_string(data)
    action = rng.randrange(6)
    if action == 0 and model.metadata_props:
        spec = rewrite_tree(rng, json.loads(model.metadata_props[0].value), rng.choice((1, 1, 3)))
        model.metadata_props[0].value = json.dumps(spec)
    elif action == 1:
        tensor = rng.choice(model.graph.initializer)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        place = rng.choice(
            (str(outside / "secret.txt"), "../../outside/secret.txt", "", "toy.onnx", "/dev/zero", "missing")
        )
        tensor.external_data.add(key="location", value=place)
        tensor.external_data.add(key=rng.choice(("length", "offset", "checksum")), value=str(rng.choice(NUMBERS)))
    elif action == 2:
        tensor = rng.choice(model.graph.initializer)
        tensor.dims[:] = [rng.choice((0, 1, 3, -1, 2**31, 2**62)) for _ in range(rng.choice((1, 2, 4, 8)))]
    else:
        for _ in range(rng.choice((1, 1, 2, 5))):
            _spoil_message(rng, model)
    return bytes(model.SerializeToString())


def _spoil_message(rng: Random, message: Any) -> None:
    """Change one field of a protobuf message, or of one inside it."""
    while True:
        fields = [(field, value) for field, value in message.ListFields()]
        if not fields:
            return
        field, value = rng.choice(fields)
        many = hasattr(value, "append") or hasattr(value, "add")
        inner = field.message_type is not None
        if inner and rng.random() < 0.85:
            message = value[rng.randrange(len(value))] if many else value
            continue
        if many and (inner or rng.random() < 0.4):
            if rng.random() < 0.5:
                del value[rng.randrange(len(value))]
            else:
                value.extend([value[rng.randrange(len(value))]] * rng.choice((1, 3, 300)))
        elif inner or rng.random() < 0.1:
            message.ClearField(field.name)
        else:
            _spoil_field(rng, message, field, value, many)
        return


def _spoil_field(rng: Random, message: Any, field: Any, value: Any, many: bool) -> None:
    old = value[0] if many else value
    new: Any
    if isinstance(old, str):
        new = odd_text(rng).encode("utf-8", "replace").decode()
    elif isinstance(old, bytes):
        new = spoil(rng, old)
    elif isinstance(old, float):
        new = rng.choice((0.0, -1.0, 1e30, math.nan, math.inf))
    else:
        new = rng.choice((0, 1, -1, 2, 7, 11, 16, 99, 2**31 - 1))
    try:
        if many:
            value[rng.randrange(len(value))] = new
        else:
            setattr(message, field.name, new)
    except (ValueError, TypeError):  # outside the field's range
        message.ClearField(field.name)


def _spoil_artifact(rng: Random, folder: Path, outside: Path) -> None:
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    file = folder / "artifact.json"
    action = rng.randrange(10)
    if action < 4 or names == []:
        try:
            values = rewrite_tree(rng, json.loads(file.read_text()), rng.choice((1, 1, 2, 4)))
            file.write_text(to_json(rng, values))
        except (ValueError, RecursionError):  # an earlier change has spoilt it
            file.write_bytes(spoil(rng, file.read_bytes()))
        return
    name = rng.choice([name for name in names if name != file.name] or names)
    path = folder / name
    if action == 4:
        path.unlink()
        return
    if action == 5:
        path.unlink()
        path.symlink_to(rng.choice((outside / "secret.txt", "/dev/zero", "/dev/null", name, folder)))
        return
    if action == 6:
        (folder / rng.choice(("extra.bin", "program.pt2", "model.xml", ".hidden"))).write_bytes(b"x" * 100)
        return
    path.write_bytes(_spoil_part(rng, path, outside))
    if rng.random() < 0.8 and file.is_file():  # as an attacker would, to have it loaded
        try:
            values = json.loads(file.read_text())
            values["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
            file.write_text(json.dumps(values))
        except (ValueError, TypeError, KeyError, RecursionError):
            pass


def _spoil_part(rng: Random, path: Path, outside: Path) -> bytes:
    data = path.read_bytes()
    if rng.random() < 0.2:
        return other_form(rng, data)
    if path.suffix in (".npz", ".pt2", ".ts", ".pt"):

        def change(r: Random, name: str, body: bytes) -> bytes:
            if name.endswith(".json"):
                try:
                    return json.dumps(rewrite_tree(r, json.loads(body))).encode()
                except (ValueError, RecursionError):
                    return spoil(r, body)
            if r.random() < 0.3:
                return pickle.dumps(Hostile(str(outside / "pwned")), protocol=2)
            if name.endswith(".npy") and r.random() < 0.6:
                return body.replace(b"'<f4'", r.choice((b"'|O' ", b"'<f8'", b"'<i4'", b"'<c8'")), 1)
            return spoil(r, body)

        return spoil_zip(rng, data, change)
    if path.suffix == ".onnx" and rng.random() < 0.7:
        return _spoil_onnx(rng, data, outside)
    if path.suffix == ".xml" and rng.random() < 0.7:
        words = data.split(b'"')
        at = rng.randrange(len(words))
        words[at] = rng.choice((b"0", b"-1", b"999999999999", b"", b"x", b"9223372036854775807", words[at - 1]))
        return b'"'.join(words)
    return spoil(rng, data)
