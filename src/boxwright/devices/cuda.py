"""NVIDIA GPUs."""

from contextlib import AbstractContextManager, nullcontext

import torch

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.devices.support import Support

_AUTOCAST = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


class CudaDevice:
    """The GPUs that torch sees."""

    name = "cuda"
    collective = "nccl"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise UsageError(
                "device='cuda' was asked for, but torch sees no CUDA device here. Use device='cpu', or install a torch "
                "built for CUDA on a machine with a GPU."
            )

    def count(self) -> int:
        """Return how many GPUs there are."""
        return torch.cuda.device_count()

    def place(self, local_rank: int) -> torch.device:
        """Return the GPU of a process and make it the current one."""
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here."""
        if precision is Precision.INT8:
            return Support(ok=False, note="int8 is for inference; train in 32 or bf16 and quantise afterwards")
        if precision in (Precision.BF16, Precision.BF16_TRUE) and not torch.cuda.is_bf16_supported():
            return Support(ok=False, note="this GPU has no bf16 instructions; use precision='16'")
        return Support(ok=True)

    def autocast(self, precision: Precision) -> AbstractContextManager[None]:
        """Return the context of the forward pass."""
        dtype = _AUTOCAST.get(precision)
        return nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)

    def make_scaler(self, precision: Precision) -> torch.amp.GradScaler | None:
        """Return the loss scaler of fp16."""
        return torch.amp.GradScaler("cuda") if precision is Precision.FP16 else None

    def end_of_step(self) -> None:
        """Do nothing: the stream goes on by itself."""

    def free_bytes(self) -> int:
        """Return the current GPU's free memory."""
        return int(torch.cuda.mem_get_info()[0])

    def synchronize(self) -> None:
        """Wait for the current GPU."""
        torch.cuda.synchronize()
