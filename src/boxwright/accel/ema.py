"""The moving average of a model's weights: smoother than the weights themselves, and what is evaluated and saved."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from boxwright.accel.schedule import ema_decay


class WeightAverage:
    """Follows a model: after each step every float parameter and buffer moves towards the model's.

    `ramp` sets how fast the decay nears `base`: a run of few steps needs a short one, or the average stays at the
    start.
    """

    def __init__(self, model: nn.Module, *, base: float = 0.9998, ramp: float = 2000.0) -> None:
        self.model = deepcopy(model).eval().requires_grad_(False)
        self._base, self._ramp = base, ramp
        self.steps = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move every float tensor to decay · average + (1 - decay) · model; whole numbers are copied."""
        self.steps += 1
        decay = ema_decay(self.steps, base=self._base, ramp=self._ramp)
        ours: list[Tensor] = []
        theirs: list[Tensor] = []
        source = model.state_dict()
        for key, value in self.model.state_dict().items():
            if value.is_floating_point():
                ours.append(value)
                theirs.append(source[key])
            else:
                value.copy_(source[key])
        torch._foreach_lerp_(ours, theirs, 1 - decay)
