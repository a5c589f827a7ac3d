"""bf16 in OpenVINO with some layers in float32.

OpenVINO's CPU compiler keeps a node's precision if the file forbids converting it. Versions that do not know this mark
ignore it, so the compiled model shows whether it was obeyed.
"""

import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from boxwright.core.affinity import unbound
from boxwright.core.errors import UsageError
from boxwright.core.files import whole_file
from boxwright.runtimes.fold import fold_copy
from boxwright.runtimes.openvino_convert import find_module
from boxwright.runtimes.rounding import find_last_layers
from boxwright.runtimes.source import PREFIX, Source, check_names
from boxwright.runtimes.telemetry import no_telemetry

with no_telemetry():
    import openvino

# "Not from any type to f16": f16 is what a CPU's compiler asks about, whichever short format it uses.
MARK = {"name": "DisablePrecisionConversion", "version": "0", "value": "dynamic:f16"}
_CONVOLUTIONS = ("Convolution", "GroupConvolution")
_PLAIN = ("Const", "Parameter", "Result")  # nodes that compute nothing
_LAYERS = (nn.Linear, _ConvNd)  # what has weights in torch


def mix(path: Path, source: Source, keep_float: Sequence[str], *, check: bool, strict: bool) -> dict[str, Any]:
    """Mark the last and other layers of a written model to stay in float32 in a bf16 model; return the recipe.

    Only convolutions can be kept: a linear layer becomes another node when it is compiled, and loses its mark. The
    recipe lists them as "keepable", and those that are kept as "float32". It is empty, and the file unchanged, if
    there is no convolution or OpenVINO ignores the mark.

    Args:
        path: the model's .xml file.
        source: the torch model it was converted from.
        keep_float: names of torch modules that stay in float32 beside the last layers.
        check: inspect the compiled model; otherwise (on a CPU without bf16) assume that marks are obeyed.
        strict: reject what can't stay in float32, instead of leaving it in bf16.

    Raises:
        UsageError: a module of `keep_float` is not there, or can't stay in float32 (`strict`).
    """
    module = fold_copy(source)
    layers = _name_layers(module)
    asked = _find_asked(module, layers, keep_float)
    tree = ET.parse(path)
    nodes = _find_nodes(tree, layers)
    wanted = [name for name in dict.fromkeys((*find_last_layers(module, source.example), *asked)) if name in nodes]
    tried = wanted or list(nodes)[:1]  # with nothing to keep, try one to see whether marks work
    obeyed = set(tried)
    if check:
        _mark(node for name in tried for node in nodes[name])
        found = _read_precisions(tree, path.with_suffix(".bin"))
        obeyed = {name for name in tried if all(found.get(node) == "f32" for node in _convolutions(nodes[name]))}
    unable = [name.removeprefix(PREFIX) for name in asked if name not in obeyed]
    if unable and strict:
        raise UsageError(
            f"OpenVINO {openvino.__version__} can't keep {', '.join(map(repr, unable))} in float32 when the rest is in "
            f"bf16{', only convolutions' * bool(obeyed)}. Leave it out of keep_float."
        )
    if not obeyed:
        return {}
    kept = [name for name in wanted if name in obeyed]
    tree = ET.parse(path)
    nodes = _find_nodes(tree, layers)
    _mark(node for name in kept for node in nodes[name])
    with whole_file(path) as draft:
        tree.write(draft)
    return {
        "float32": [name.removeprefix(PREFIX) for name in kept],
        "keepable": [name.removeprefix(PREFIX) for name in nodes],
    }


def _name_layers(module: nn.Module) -> dict[str, str]:
    """Return the first name of each layer by all its names: one that is used in two places has several."""
    first = {part: name for name, part in module.named_modules()}
    names = module.named_modules(remove_duplicate=False)
    return {name: first[part] for name, part in names if isinstance(part, _LAYERS)}


def _find_asked(module: nn.Module, layers: Mapping[str, str], keep_float: Sequence[str]) -> list[str]:
    """Return the layers that modules are or contain; a module without any is returned itself."""
    known = [name.removeprefix(PREFIX) for name, _ in module.named_modules(remove_duplicate=False)]
    check_names(keep_float, known)
    asked: list[str] = []
    for name in keep_float:
        inside = [layers[alias] for alias in layers if f"{alias}.".startswith(f"{PREFIX}{name}.")]
        asked += inside or [PREFIX + name]
    return asked


def _find_nodes(tree: "ET.ElementTree[ET.Element]", layers: Mapping[str, str]) -> dict[str, list[ET.Element]]:
    """Return all nodes of the layers that are convolutions in the file."""
    nodes: dict[str, list[ET.Element]] = {}
    for node in tree.iterfind("layers/layer"):
        owner = layers.get(find_module(node.get("name", "")))
        if owner is not None and node.get("type") not in _PLAIN:
            nodes.setdefault(owner, []).append(node)
    return {name: found for name, found in nodes.items() if _convolutions(found)}


def _convolutions(nodes: Iterable[ET.Element]) -> list[str]:
    return [node.get("name", "") for node in nodes if node.get("type") in _CONVOLUTIONS]


def _mark(nodes: Iterable[ET.Element]) -> None:
    for node in nodes:
        notes = node.find("rt_info")
        if notes is None:
            notes = ET.Element("rt_info")
            node.insert(0 if node.find("data") is None else 1, notes)
        ET.SubElement(notes, "attribute", MARK)


def _read_precisions(tree: "ET.ElementTree[ET.Element]", weights: Path) -> dict[str, str]:
    """Return the precision of a model's convolutions by their names in the file; empty if it can't be read."""
    with tempfile.TemporaryDirectory() as folder, unbound():
        path = Path(folder) / "model.xml"
        tree.write(path)
        core = openvino.Core()
        try:
            model = core.read_model(path, weights)
            compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
        except RuntimeError:
            return {}
        found: dict[str, str] = {}
        for node in compiled.get_runtime_model().get_ops():
            notes = {key: node.get_rt_info()[key].astype(str) for key in ("layerType", "originalLayersNames")}
            if notes["layerType"] == "Convolution":
                precision = node.get_rt_info()["runtimePrecision"].astype(str)
                found |= dict.fromkeys(notes["originalLayersNames"].split(","), precision)
    return found
