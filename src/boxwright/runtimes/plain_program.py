"""Programs as plain data: the operators as JSON and the weights as safetensors. Reading them runs no code of the file.

`torch.export.load` unpickles parts of a file and evaluates texts in it, so a file could run anything.
"""

import json
import keyword
import math
import operator
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from boxwright.core.errors import ConversionError
from boxwright.runtimes.trust import CUSTOM_PROGRAM

PROGRAM = "program.json"
TENSORS = "weights.safetensors"

_FORMAT = 1
_COMPRESSED = "float32 stored as bfloat16"
_CONV = torch.ops.aten.conv2d.default
_TYPES = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
# What programs compute with sizes.
_ARITHMETIC = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.neg, operator.pos, operator.abs, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge, operator.and_, operator.or_, operator.xor, operator.not_, operator.lshift, operator.rshift,
    operator.getitem, math.ceil, math.floor, math.trunc, torch.sym_float, torch.sym_int, torch.sym_ite, torch.sym_max,
    torch.sym_min, torch.sym_not, torch.sym_sqrt, torch.sym_sum,
)  # fmt: skip
_FUNCTIONS: dict[str, Any] = {function.__name__: function for function in _ARITHMETIC}
# Private aten operators that occur in exported models; others may not check their inputs.
_PRIVATE = {
    "_adaptive_avg_pool2d", "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_fft_c2c", "_fft_c2r",
    "_fft_r2c", "_log_softmax", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_native_multi_head_attention", "_scaled_dot_product_flash_attention_for_cpu", "_shape_as_tensor", "_softmax",
    "_to_copy", "_transformer_encoder_layer_fwd", "_unsafe_view", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_weight_norm",
}  # fmt: skip
_OTHERS = {
    "torchvision": {"deform_conv2d", "nms", "ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool"},
    "higher_order": {"cond", "map_impl", "scan", "while_loop", "wrap_with_autocast", "wrap_with_set_grad_enabled"},
}


def write_program(module: GraphModule, folder: Path) -> None:
    """Write a program; its file is `CUSTOM_PROGRAM` if it calls operators that may do more than compute.

    Raises:
        ConversionError: it holds something that is neither an operator, a number nor a tensor.
    """
    writer = _Writer()
    values = {"format": _FORMAT, "graph": writer.describe(module)}
    path = folder / (CUSTOM_PROGRAM if writer.custom else PROGRAM)
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    save_file(writer.tensors, folder / TENSORS)
    (folder / TENSORS).chmod(path.stat().st_mode)  # safetensors makes it private


def read_program(folder: Path) -> GraphModule:
    """Return the program in a folder; a broken or hostile file may raise any kind of error.

    `CUSTOM_PROGRAM` may call any operator that is registered: only read it from a folder that the user trusts.
    """
    custom = not (folder / PROGRAM).is_file() and (folder / CUSTOM_PROGRAM).is_file()
    values = json.loads((folder / (CUSTOM_PROGRAM if custom else PROGRAM)).read_text(encoding="utf-8"))
    if values["format"] != _FORMAT:
        raise ValueError(f"its format is {values['format']!r}, not {_FORMAT}")
    with safe_open(folder / TENSORS, "pt") as file:
        compressed = set(json.loads((file.metadata() or {}).get(_COMPRESSED, "[]")))
    # Copied: the file's own pages are neither aligned for the kernels nor safe from a change of the file.
    tensors = {
        name: tensor.float() if name in compressed else tensor.clone()
        for name, tensor in load_file(folder / TENSORS).items()
    }
    return _build(values["graph"], tensors, custom=custom)


def compress_weights(folder: Path) -> None:
    """Store float32 weights of a program in bfloat16: half the size. Reading makes them float32 again."""
    tensors = load_file(folder / TENSORS)
    names = [name for name, tensor in tensors.items() if tensor.dtype == torch.float32]
    mode = (folder / TENSORS).stat().st_mode
    smaller = {name: tensor.bfloat16() if name in names else tensor.clone() for name, tensor in tensors.items()}
    save_file(smaller, folder / TENSORS, metadata={_COMPRESSED: json.dumps(names)})
    (folder / TENSORS).chmod(mode)


def is_plain(target: Any) -> bool:
    """Return whether an operator only computes: it touches no files and belongs to a known package."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return str(target) in _OTHERS["higher_order"]
    if not isinstance(target, torch._ops.OpOverload):
        return target in _ARITHMETIC
    space, _, name = target._schema.name.partition("::")
    if space == "aten":
        plain = not name.startswith("_") or name.startswith("__") or name in _PRIVATE
        arguments = target._schema.arguments
        return plain and all(a.name != "filename" and str(a.type) not in ("Storage", "Stream") for a in arguments)
    return space == "quantized_decomposed" or name in _OTHERS.get(space, ())


class _Writer:
    """Describes graphs, and collects their tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.custom = False
        self._names: dict[tuple[Any, ...], str] = {}

    def describe(self, module: GraphModule) -> dict[str, Any]:
        numbers: dict[Node, int] = {}
        nodes: list[dict[str, Any]] = []
        for node in module.graph.nodes:
            numbers[node] = len(numbers)
            values = self._describe_node(module, node, numbers)
            shape = getattr(node.meta.get("val"), "shape", None)
            if shape is not None and any(user.target is _CONV for user in node.users):
                # Weights are packed for it: for the example's image size, and any batch.
                values["shape"] = [n if isinstance(n, int) else n.node.hint if i else None for i, n in enumerate(shape)]
            nodes.append(values)
        return {"nodes": nodes}

    def _describe_node(self, module: GraphModule, node: Node, numbers: Mapping[Node, int]) -> dict[str, Any]:
        if node.op == "placeholder":
            return {"input": str(node.target)}
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(module)
            if isinstance(value, GraphModule):
                return {"graph": self.describe(value)}
            if isinstance(value, Tensor):
                return {"tensor": self._keep(value), "parameter": isinstance(value, nn.Parameter)}
        if node.op == "output":
            return {"output": _encode(node.args[0], numbers)}
        if node.op == "call_function":
            self.custom = self.custom or not is_plain(node.target)
            return {
                "call": _name(node.target),
                "args": [_encode(value, numbers) for value in node.args],
                "kwargs": {name: _encode(value, numbers) for name, value in node.kwargs.items()},
            }
        raise ConversionError(f"The exported program holds {node.format_node()}, which can't be stored as plain data.")

    def _keep(self, tensor: Tensor) -> str:
        """Return the name of a tensor in the file; tied ones are stored once."""
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in self._names:
            self._names[key] = f"t{len(self._names)}"
            self.tensors[self._names[key]] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return self._names[key]


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target}"
    if target in _ARITHMETIC:
        return str(target.__name__)
    raise ConversionError(f"The exported program calls {target!r}, which is not an operator.")


def _encode(value: Any, numbers: Mapping[Node, int]) -> Any:
    """Return an argument as plain JSON values: a dictionary with one key for what JSON does not have."""
    if isinstance(value, Node):
        return {"node": numbers[value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encode(part, numbers) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(part, numbers) for part in value]}
    if isinstance(value, slice):
        return {"slice": [_encode(part, numbers) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for name, kind in _TYPES.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise ConversionError(f"The exported program holds {value!r}, which can't be stored as plain data.")


def _decode(value: Any, nodes: list[Node]) -> Any:
    if not isinstance(value, dict):
        return [_decode(part, nodes) for part in value] if isinstance(value, list) else value
    ((kind, content),) = value.items()
    if kind == "node":
        return nodes[content]
    if kind == "tuple":
        return tuple(_decode(part, nodes) for part in content)
    if kind == "slice":
        return slice(*(_decode(part, nodes) for part in content))
    if kind == "complex":
        return complex(*content)
    if kind == "device":
        return torch.device(content)
    found = getattr(torch, content)
    if not isinstance(found, _TYPES[kind]):
        raise ValueError(f"{content!r} is not a {kind}")
    return found


def _find(name: str, *, custom: bool) -> Any:
    """Return the operator of a name."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"{name!r} is not the name of an operator")
    if parts[0] == "higher_order":
        import_module("torch._higher_order_ops")  # registers them
    found: Any = torch.ops
    for part in parts:
        found = getattr(found, part)
    if not isinstance(found, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        raise ValueError(f"{name!r} is not an operator")
    if not custom and not is_plain(found):
        raise ValueError(f"the operator {name!r} may do more than compute")
    return found


def _build(values: Mapping[str, Any], tensors: Mapping[str, Tensor], *, custom: bool) -> GraphModule:
    """Return the graph of a description. Names are our own: torch writes them into Python code that it runs."""
    root, graph = nn.Module(), Graph()
    nodes: list[Node] = []
    for number, value in enumerate(values["nodes"]):
        if "input" in value:
            node = graph.placeholder(f"input_{number}")
        elif "output" in value:
            node = graph.output(_decode(value["output"], nodes))
        elif "call" in value:
            target = _find(value["call"], custom=custom)
            args = tuple(_decode(part, nodes) for part in value["args"])
            if not all(name.isidentifier() and not keyword.iskeyword(name) for name in value["kwargs"]):
                raise ValueError(f"{list(value['kwargs'])!r} are not names of arguments")
            kwargs = {name: _decode(part, nodes) for name, part in value["kwargs"].items()}
            node = graph.call_function(target, args, kwargs)
        else:
            name = f"part_{number}"
            if "graph" in value:
                setattr(root, name, _build(value["graph"], tensors, custom=custom))
            elif value["parameter"]:
                setattr(root, name, nn.Parameter(tensors[value["tensor"]], requires_grad=False))
            else:
                root.register_buffer(name, tensors[value["tensor"]])
            node = graph.create_node("get_attr", name)
        if "shape" in value:
            node.meta["shape"] = [n if n is None else int(n) for n in value["shape"]]
        nodes.append(node)
    return GraphModule(root, graph)
