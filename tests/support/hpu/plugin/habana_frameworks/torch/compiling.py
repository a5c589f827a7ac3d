"""The compile back end: it runs what it is given, counts graphs, and refuses what a Gaudi would choke on."""

from collections.abc import Callable
from typing import Any

import torch
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
    # The largest input tells a network's graph (the images) from a loss's (its outputs).
    images = [s for s in shapes if len(s) == 4 and s[1] == 3]
    record.seen["graphs"].append({"images": images[0] if images else None, "step": record.seen["optimizer_steps"]})
    run: Callable[..., Any] = graph.forward
    return run
