"""The `hccl` back end over gloo. As the real one is treated, it knows no AVG and reduces no int64."""

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup, ProcessGroupGloo, ReduceOp, Work
from torch.futures import Future

from habana_frameworks.torch import record


def _host(tensor: Tensor) -> Tensor:
    if tensor.device.type != "hpu":
        raise RuntimeError(f"hccl moves HPU tensors, not {tensor.device.type} ones")
    return torch.ops.simulated_hpu.host_alias(tensor)  # type: ignore[no-any-return]


class _Done(Work):
    """The collective has run before this is returned."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Future[Any] = Future(devices=["hpu:0"])
        self._future.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        return self._future


class Hccl(ProcessGroup):
    """One process's end of the group."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = ProcessGroupGloo(store, rank, size, timeout)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("hpu")]  # for torch's collectives of Python objects

    def getBackendName(self) -> str:
        return "hccl"

    def _note(self, name: str) -> None:
        record.seen["collectives"][name] = record.seen["collectives"].get(name, 0) + 1

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        op = getattr(opts, "reduceOp", ReduceOp.SUM)
        if op == ReduceOp.AVG:
            raise RuntimeError("hccl knows no AVG: divide a sum")
        for tensor in tensors:
            if tensor.dtype == torch.int64:
                raise RuntimeError("hccl reduces no int64")
        self._note("allreduce")
        self._gloo.allreduce([_host(t) for t in tensors], opts or distributed.AllreduceOptions()).wait()
        return _Done(tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        self._note("broadcast")
        self._gloo.broadcast([_host(t) for t in tensors], opts).wait()
        return _Done(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        self._note("allgather")
        host = [[_host(t) for t in row] for row in outputs]
        self._gloo.allgather(host, [_host(t) for t in inputs]).wait()
        return _Done(outputs)

    def _allgather_base(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        self._note("allgather")
        self._gloo._allgather_base(_host(output), _host(tensor)).wait()
        return _Done(output)

    def barrier(self, opts: Any = None) -> Work:
        self._note("barrier")
        self._gloo.barrier().wait()
        return _Done([])


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Hccl:
    return Hccl(store, rank, size, timeout)


distributed.Backend.register_backend("hccl", _create, devices=["hpu"])
