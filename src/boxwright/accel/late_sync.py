"""Averages gradients that DistributedDataParallel does not see, because its `forward` was not called."""

from typing import Any
from weakref import ref

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


class LateSync:
    """Keeps the gradients of a parallel model equal in all processes, whatever part of the model was called.

    DistributedDataParallel averages the gradients of one backward pass after each call of its `forward`. A loss from
    another method or from a submodule, or a second backward pass, leaves each process with its own. Such a pass is
    noticed here, and its gradients are averaged at its end. What DistributedDataParallel has averaged already is equal
    in all processes, so averaging it once more does not change it.
    """

    def __init__(self, parallel: DistributedDataParallel) -> None:
        self._parallel = ref(parallel)  # the parameters, which hold their hooks, outlive the process group
        self._parameters = [p for p in parallel.module.parameters() if p.requires_grad]
        self._expected = False  # a forward pass has prepared DistributedDataParallel for the next backward pass
        self._watches = False
        self._missed = False
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._see)

    def expect(self) -> None:
        """Note a call of the parallel model's `forward`."""
        parallel = self._parallel()
        if torch.is_grad_enabled() and parallel is not None and parallel.require_backward_grad_sync:
            self._expected = True

    def _see(self, _parameter: Tensor) -> None:
        parallel = self._parallel()
        if parallel is None or not parallel.require_backward_grad_sync:  # no_sync(): they are meant to differ for now
            return
        self._missed = self._missed or not self._expected
        if not self._watches:
            self._watches = True
            _at_end_of_backward(self._finish)

    def _finish(self) -> None:
        missed = self._missed
        self._expected = self._watches = self._missed = False
        if missed:
            _at_end_of_backward(self._average)  # after whatever DistributedDataParallel still does in this pass

    def _average(self) -> None:
        """Average all gradients; a parameter without one counts as zero where others have one."""
        parallel = self._parallel()
        assert parallel is not None
        group = parallel.process_group
        there = torch.tensor([float(p.grad is not None) for p in self._parameters])
        there = there.to(self._parameters[0].device)
        distributed.all_reduce(there, op=distributed.ReduceOp.SUM, group=group)
        used = [p for p, count in zip(self._parameters, there.tolist(), strict=True) if count > 0]
        for kind in {(p.device, p.dtype) for p in used}:
            same = [p for p in used if (p.device, p.dtype) == kind]
            _average_tensors([_gradient(p) for p in same], group)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _average_tensors(tensors: list[Tensor], group: Any) -> None:
    joined = torch.cat([t.detach().flatten() for t in tensors])
    distributed.all_reduce(joined, group=group)
    joined /= distributed.get_world_size(group)
    for tensor, part in zip(tensors, torch.split(joined, [t.numel() for t in tensors]), strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def _at_end_of_backward(function: Any) -> None:
    # What torch's own parallel wrappers use; there is no public name for it.
    torch.autograd.Variable._execution_engine.queue_callback(function)
