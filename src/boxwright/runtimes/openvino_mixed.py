"""bf16 in OpenVINO with some layers in float32.

A CPU's compiler leaves a node as it is if the file says that its precision must not be converted. Versions of OpenVINO
that do not know this mark read over it; so whether it is obeyed is looked up in the compiled model.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from boxwright.core.affinity import unbound
from boxwright.core.errors import UsageError, suggest
from boxwright.runtimes.ends import find_last_layers
from boxwright.runtimes.fold import fold_batch_norms
from boxwright.runtimes.openvino_convert import find_module
from boxwright.runtimes.source import PREFIX, Source
from boxwright.runtimes.telemetry import no_telemetry

with no_telemetry():
    import openvino

MARK = {"name": "DisablePrecisionConversion", "version": "0", "value": "dynamic:f16"}
_CONVOLUTIONS = ("Convolution", "GroupConvolution")
_PRODUCT = "MatMul"  # becomes another node when it is compiled, and loses its mark
_PLAIN = ("Const", "Parameter", "Result")  # nodes that compute nothing


def mix(path: Path, source: Source, keep_float: Sequence[str], *, check: bool, strict: bool) -> dict[str, Any]:
    """Have a written model compute its last layers and others in float32 where the rest is in bf16; return the recipe.

    Only convolutions can be kept. The recipe is empty, and the file as it was, if there is none to keep or OpenVINO
    does not obey.

    Args:
        path: the model's .xml file.
        source: the torch model behind it.
        keep_float: names of torch modules that stay in float32 beside the last layers.
        check: whether this machine computes in bf16, so that it can be seen what stays.
        strict: refuse what can't stay in float32, instead of leaving it in bf16.

    Raises:
        UsageError: a module of `keep_float` is not there, or can't stay in float32 (`strict`).
    """
    module: nn.Module = source.flat()
    fold_batch_norms(module, source.example)
    known = [name.removeprefix(PREFIX) for name, _ in module.named_modules() if name.startswith(PREFIX)]
    for name in keep_float:
        if name not in known:
            raise UsageError(f"keep_float names {name!r}, which is no module of the model.{suggest(name, known)}")
    wanted = [*find_last_layers(module, source.example), *(PREFIX + name for name in keep_float)]
    tree = ET.parse(path)
    layers = {kind: _find(tree, kind) for kind in (*_CONVOLUTIONS, _PRODUCT)}
    able = [name for name in dict.fromkeys(wanted) if any(_is_inside(layers[k], name) for k in _CONVOLUTIONS)]
    before = path.read_bytes()
    marked = _mark(tree, able)
    tree.write(path)
    obeyed = bool(able) and (not check or _is_obeyed(path, marked))
    unable = [name for name in keep_float if not obeyed or PREFIX + name not in able]
    if not obeyed:
        path.write_bytes(before)
    if unable and strict:
        raise UsageError(
            f"OpenVINO {openvino.__version__} can't keep {', '.join(unable)} in float32 when the rest is in bf16"
            + (", only convolutions. Leave it out of keep_float." if obeyed else ". Leave keep_float out.")
        )
    if not obeyed:
        return {}
    return {
        "float32": [name.removeprefix(PREFIX) for name in able],
        "always_bf16": sorted(name.removeprefix(PREFIX) for name in layers[_PRODUCT]),
    }


def _find(tree: "ET.ElementTree[ET.Element]", kind: str) -> set[str]:
    """Return the modules with a node of this kind."""
    return {find_module(layer.get("name", "")) for layer in tree.iterfind(f"layers/layer[@type='{kind}']")}


def _is_inside(layers: Iterable[str], module: str) -> bool:
    return any(f"{layer}.".startswith(f"{module}.") for layer in layers)


def _mark(tree: "ET.ElementTree[ET.Element]", modules: Sequence[str]) -> set[str]:
    """Mark the nodes of these modules and of what is inside them; return the names of the convolutions among them."""
    marked = set()
    for layer in tree.iterfind("layers/layer"):
        name, kind = layer.get("name", ""), layer.get("type", "")
        if kind in _PLAIN or not any(_is_inside([find_module(name)], module) for module in modules):
            continue
        notes = layer.find("rt_info")
        if notes is None:
            notes = ET.Element("rt_info")
            layer.insert(0 if layer.find("data") is None else 1, notes)
        ET.SubElement(notes, "attribute", MARK)
        if kind in _CONVOLUTIONS:
            marked.add(name)
    return marked


def _is_obeyed(path: Path, marked: set[str]) -> bool:
    with unbound():
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    notes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    return all(
        note["runtimePrecision"].astype(str) == "f32"
        for note in notes
        if note["layerType"].astype(str) == "Convolution"
        and not marked.isdisjoint(note["originalLayersNames"].astype(str).split(","))
    )
