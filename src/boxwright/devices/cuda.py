"""NVIDIA GPUs."""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_map

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.devices.base import Device, Run
from boxwright.devices.group import find_others
from boxwright.devices.near import pci_cpus
from boxwright.devices.options import DeviceOptions
from boxwright.devices.support import NO_INT8, Support

_END = object()
_WARM_RUNS = 3


class CudaDevice(Device):
    """The GPUs that torch sees; each process has one.

    Precision 32 is IEEE float32: TF32, which torch allows cuDNN by default, is off during a run. bf16 uses the tensor
    cores.
    """

    name = "cuda"
    collective = "nccl"
    packages = True
    memory_errors = ("CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED")

    def __init__(self, options: DeviceOptions | None = None) -> None:
        options = options or DeviceOptions()
        options.refuse_all_but(self.name, "compile")
        if options.compile:
            self.compiler = "inductor"
            self.most_sizes = 4  # one graph per size, and compiling one takes longer than many steps
        self._pool: Any = None
        if not torch.cuda.is_available():
            raise UsageError(
                "device='cuda' was asked for, but torch sees no CUDA device here. Use device='cpu', or install a torch "
                "built for CUDA on a machine with a GPU."
            )

    # What there is.

    def count(self) -> int:
        """Return how many GPUs there are."""
        return torch.cuda.device_count()

    def near_cpus(self) -> tuple[tuple[int, ...], ...]:
        """Return the cpus on each GPU's side of the machine."""
        if self.count() < 2:  # one process is not pinned
            return ()
        found: list[Any] = [torch.cuda.get_device_properties(i) for i in range(self.count())]
        if not all(hasattr(gpu, "pci_bus_id") for gpu in found):
            return ()
        return tuple(pci_cpus(gpu.pci_domain_id, gpu.pci_bus_id, gpu.pci_device_id) for gpu in found)

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here."""
        if precision is Precision.INT8:
            return NO_INT8
        if precision in (Precision.BF16, Precision.BF16_TRUE) and not torch.cuda.is_bf16_supported(False):
            return Support(ok=False, note="this GPU has no bf16 instructions; use precision='16'")
        if precision is Precision.FP32:
            return Support(ok=True, note="IEEE float32, TF32 is off; bf16 uses the tensor cores")
        return Support(ok=True)

    def free_bytes(self) -> int:
        """Return the current GPU's free memory, with torch's unused reserve, within torch's own limit."""
        free, total = torch.cuda.mem_get_info()
        used = torch.cuda.memory_allocated()
        limit = int(total * torch.cuda.get_per_process_memory_fraction())
        return min(free + torch.cuda.memory_reserved() - used, limit - used)

    def held_bytes(self, place: torch.device) -> int:
        """Return the GPU's memory that torch has reserved."""
        return int(torch.cuda.memory_reserved(place))

    def title(self, place: torch.device) -> str:
        """Return the GPU's name."""
        return str(torch.cuda.get_device_name(place))

    # A process of a run.

    def place(self, local_rank: int) -> torch.device:
        """Return the GPU of a process and make it the current one."""
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device

    @contextmanager
    def working(self, precision: Precision, *, tune: bool = True) -> Iterator[None]:  # noqa: ARG002 - TF32 is off in all
        """Keep TF32 off and let cuDNN choose the fastest kernels, until the end of the run."""
        cudnn: Any = torch.backends.cudnn
        benchmark, tf32 = cudnn.benchmark, _read_tf32()
        cudnn.benchmark = tune or benchmark
        if tf32 is not None:
            _set_tf32(False)
        try:
            yield
        finally:
            cudnn.benchmark = benchmark
            if tf32 is not None:
                _set_tf32(tf32)

    def join_group(self, place: torch.device, timeout: timedelta) -> None:
        """Join over NCCL, bound to this process's GPU."""
        distributed.init_process_group(self.collective, timeout=timeout, device_id=place, **find_others(timeout))

    def parallel_devices(self, place: torch.device) -> list[torch.device] | None:
        """Return this process's GPU."""
        return [place]

    # Its parts.

    def make_sgd(self, groups: Iterable[Any], *, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        """Return SGD that updates all weights in few kernels."""
        return SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)

    # Its steps.

    def feed(self, batches: Iterable[Any], place: torch.device) -> Generator[Any, None, None]:
        """Yield nested values on the GPU, one batch ahead: a thread pins it and a separate stream copies it."""
        stream = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
        iterator = iter(batches)

        def send() -> tuple[Any, torch.cuda.Event | None]:
            batch = next(iterator, _END)
            if batch is _END:
                return _END, None
            with torch.cuda.device(place), torch.cuda.stream(stream):
                there = _each_tensor(batch, lambda t: t.pin_memory().to(place, non_blocking=True))
                return there, stream.record_event()

        with ThreadPoolExecutor(1, "boxwright-feed") as pool:
            ahead = pool.submit(send)
            while True:
                batch, event = ahead.result()
                if event is None:
                    return
                ahead = pool.submit(send)
                computing = torch.cuda.current_stream(place)
                computing.wait_event(event)
                _each_tensor(batch, lambda t, used=computing: t.record_stream(used))  # type: ignore[misc]
                yield batch

    def synchronize(self) -> None:
        """Wait for the current GPU."""
        torch.cuda.synchronize()

    # Its requests, without gradients.

    def stage(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory, in the same layout."""
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def capture(self, run: Run, example: Sequence[Tensor], place: torch.device) -> Run:
        """Return a function that copies its inputs to the GPU and replays a CUDA graph.

        The graphs of this object share a pool of memory. They may overwrite each other's intermediate results, because
        they run one after the other, but not each other's outputs, which are kept.
        """
        with torch.cuda.device(place):
            if self._pool is None:  # torch shares the memory only of captures in one stream
                self._pool = torch.cuda.graph_pool_handle(), torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
            pool, aside = self._pool
            inputs = [tensor.to(place) for tensor in example]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_WARM_RUNS):  # chooses kernels, and allocates what can't be allocated in a capture
                    run(*inputs)
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # Other threads of the program may use the GPU meanwhile.
            with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
                outputs = tuple(run(*inputs))

        def replay(*tensors: Tensor) -> Sequence[Tensor]:
            for mine, given in zip(inputs, tensors, strict=True):
                mine.copy_(given, non_blocking=True)
            graph.replay()
            return outputs

        return replay

    def fetch(self, tensor: Tensor) -> Tensor:
        """Queue a copy to pinned memory."""
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)

    def mark(self, place: torch.device, *, patient: bool) -> Callable[[], None]:
        """Return a function that waits for the work that this thread has queued."""
        event = torch.cuda.Event(blocking=patient)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(place))
        return event.synchronize


def _each_tensor(batch: Any, use: Callable[[Tensor], Any]) -> Any:
    return tree_map(lambda value: use(value) if isinstance(value, Tensor) else value, batch)


# torch 2.9 and later have a new name for this switch, but their compiler reads the old one, and the two don't mix
# (pytorch issue 166387).
def _read_tf32() -> bool | None:
    """Return whether cuDNN may use TF32; None if the user has set it by the new name, which then holds."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return None


def _set_tf32(allowed: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the new name
        torch.backends.cudnn.allow_tf32 = allowed
