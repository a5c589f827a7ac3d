"""The averages of a run: weights over its steps, and batch-norm statistics over its processes."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from boxwright.accel.nano import TorchNano
from boxwright.accel.schedule import ema_decay

Move = Callable[[Sequence[Tensor], Sequence[Tensor], float], None]


class WeightAverage:
    """Follows a model: after each step every float parameter and buffer moves towards the model's.

    The average of a model in bf16 or fp16 is kept in fp32, where such small steps are not rounded away. `ramp` sets how
    fast the decay approaches `base`; a short run needs a small one, or the average stays near the initial weights.
    `move` updates the tensors in the way that is fast on the device (`Device.average`).
    """

    def __init__(
        self, model: nn.Module, *, base: float = 0.9998, ramp: float = 2000.0, move: Move | None = None
    ) -> None:
        self.model = deepcopy(model).eval().requires_grad_(False)
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            if tensor.dtype in (torch.bfloat16, torch.float16):
                tensor.data = tensor.data.float()
        self._base, self._ramp = base, ramp
        self._move = move or _lerp
        self._followed: nn.Module | None = None
        self._pairs: list[tuple[Tensor, Tensor]] = []  # found once: walking the modules takes longer than moving
        self.steps = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move every float tensor to decay · average + (1 - decay) · model; integers are copied."""
        self.steps += 1
        decay = ema_decay(self.steps, base=self._base, ramp=self._ramp)
        if self._followed is not model:
            own, their = ((*m.parameters(), *m.buffers()) for m in (self.model, model))
            self._followed, self._pairs = model, list(zip(own, their, strict=True))
        ours: list[Tensor] = []
        theirs: list[Tensor] = []
        for value, source in self._pairs:
            if value.is_floating_point():
                ours.append(value)
                theirs.append(source.to(value.dtype))
            else:
                value.copy_(source)
        self._move(ours, theirs, decay)


def _lerp(ours: Sequence[Tensor], theirs: Sequence[Tensor], decay: float) -> None:
    torch._foreach_lerp_(list(ours), list(theirs), 1 - decay)


@torch.no_grad()
def average_norms(nano: TorchNano, *networks: nn.Module, leave: tuple[str, ...] = ()) -> None:
    """Average the running means and variances of all networks over all processes.

    The published recipe does it before scoring. Weights are equal in every process, because gradients are shared; the
    statistics are not.

    Args:
        nano: the processes; a single one has nothing to do.
        networks: the same ones in every process.
        leave: prefixes of names to leave unchanged (frozen parts).
    """
    if not nano.is_distributed:
        return
    buffers = [
        buffer
        for network in networks
        for name, buffer in network.named_buffers()
        if name.endswith(("running_mean", "running_var")) and not name.startswith(leave)
    ]
    if not buffers:
        return
    means = nano.all_reduce(torch.cat([buffer.reshape(-1) for buffer in buffers]))
    parts = torch.split(means, [buffer.numel() for buffer in buffers])
    for buffer, mean in zip(buffers, parts, strict=True):
        buffer.copy_(mean.view_as(buffer))
