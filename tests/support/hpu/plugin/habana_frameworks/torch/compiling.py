"""The compile back end: it runs what it is given, counts graphs, and refuses what a Gaudi would choke on."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.registry import register_backend
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._dynamo.utils import counters

from habana_frameworks.torch import record


class HpuInterface(DeviceInterface):
    """What the compiler wants to know of the device."""

    current_device = staticmethod(torch.hpu.current_device)
    set_device = staticmethod(torch.hpu.set_device)
    device_count = staticmethod(torch.hpu.device_count)
    is_available = staticmethod(torch.hpu.is_available)
    synchronize = staticmethod(torch.hpu.synchronize)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True


register_interface_for_device("hpu", HpuInterface)

# At its limit the compiler would go on without graphs, and say so in a warning only.
torch._dynamo.config.fail_on_recompile_limit_hit = True

_compiled: list[tuple[Any, list[weakref.ref[nn.Parameter]]]] = []


def _refuse_again(graph: torch.fx.GraphModule, inputs: list[Any]) -> None:
    """Refuse a graph that is there already: the same operations on the same shapes and weights."""
    tensors = [i for i in inputs if isinstance(i, torch.Tensor)]
    key = graph.code, [(tuple(t.shape), t.dtype) for t in tensors], torch.is_grad_enabled()
    weights = [t for t in tensors if isinstance(t, nn.Parameter)]
    for other, refs in _compiled:
        if other == key and all(ref() is weight for ref, weight in zip(refs, weights, strict=True)):
            raise RuntimeError(f"compiled again for shapes that it was compiled for before: {key[1]}")
    _compiled.append((key, [weakref.ref(weight) for weight in weights]))


@register_backend(name="hpu_backend")
def hpu_backend(graph: torch.fx.GraphModule, inputs: list[Any], **_options: Any) -> Callable[..., Any]:
    """Return the graph as it is."""
    breaks = list(counters["graph_break"])
    if breaks:
        record.seen["graph_breaks"] += breaks
        raise RuntimeError(f"graph break: {breaks[0]}")
    shapes = [list(i.shape) for i in inputs if isinstance(i, torch.Tensor)]
    if any(not isinstance(side, int) for shape in shapes for side in shape):
        raise RuntimeError(f"a graph with shapes that are not fixed: {shapes}")
    _refuse_again(graph, inputs)
    # The largest input tells a network's graph (the images) from a loss's (its outputs).
    images = [s for s in shapes if len(s) == 4 and s[1] == 3]
    record.seen["graphs"].append({"images": images[0] if images else None, "step": record.seen["optimizer_steps"]})
    run: Callable[..., Any] = graph.forward
    return run
