"""The fused optimizer: plain SGD that takes note of each step."""

from typing import Any

import torch

from habana_frameworks.torch import record


class FusedSGD(torch.optim.SGD):
    """Has the arguments of the real one."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0,
        weight_decay: float = 0,
        dampening: float = 0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, weight_decay=weight_decay, dampening=dampening, nesterov=nesterov,
            foreach=False,
        )  # fmt: skip

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        record.end_step()
        return result
