"""How large a batch fits: counted from what one image's step keeps in memory."""

import torch
from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.core.types import Precision

_log = get_logger(__name__)
_LARGEST = 64
_PART = 0.6  # of the free memory; the rest is for the data, the allocator's slack and other programs


def bytes_per_image(model: nn.Module, size_hw: tuple[int, int], precision: Precision = Precision.FP32) -> int:
    """Return how many bytes the backward pass of one image keeps, counted on two images on the CPU."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    buffers = {b.untyped_storage().data_ptr() for b in model.buffers()}
    was_training = model.training
    state = {k: v.clone() for k, v in model.state_dict().items()}  # batch-norm statistics move in the forward pass
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision in (Precision.BF16, Precision.FP16))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), autocast:
        outputs = model.train()(torch.zeros(2, 3, *size_hw))
    del outputs
    model.load_state_dict(state)
    model.train(was_training)
    found = sum(size for pointer, size in kept.items() if pointer not in parameters | buffers) // 2
    return int(found * {Precision.BF16_TRUE: 0.5, Precision.FP64: 2.0}.get(precision, 1.0))


def choose_batch(
    model: nn.Module, size_hw: tuple[int, int], free_bytes: int, processes: int, images: int, precision: Precision
) -> int:
    """Return the largest power of two up to 64 that fits the memory and the set, shared by the processes.

    Raises:
        UsageError: not even one image per process fits.
    """
    each, fits = _count_fitting(model, size_hw, free_bytes, processes, precision)
    batch = processes
    while batch * 2 <= min(fits, _LARGEST, max(images, processes)):
        batch *= 2
    if fits < processes:
        raise UsageError(
            f"{free_bytes / 2**30:.1f} GiB of free memory are too little for {processes} processes at {size_hw!r}: one "
            f"image takes {each / 2**20:.0f} MiB. Use a smaller size, a smaller model or fewer processes."
        )
    _log.info("batch: %d (one image takes about %.0f MiB)", batch, each / 2**20)
    return batch


def explain_overflow(
    model: nn.Module,
    size_hw: tuple[int, int],
    free_bytes: int,
    *,
    processes: int,
    batch: int,
    accumulate: int,
    precision: Precision,
) -> str:
    """Return the error message for a batch that is too large: what fits instead."""
    each, fits = _count_fitting(model, size_hw, free_bytes, processes, precision)
    at_once = batch // accumulate
    doubt = ", so by this count it would have fitted: something else takes the memory" if fits >= at_once else ""
    fits = max(min(fits, at_once // 2), 0) // processes * processes
    advice = []
    if fits:
        advice.append(f"--batch {fits * accumulate}")
        parts = next(k for k in range(2, batch + 1) if batch % (k * processes) == 0 and batch // k <= fits)
        advice.append(f"accumulate={parts}, which keeps the batch of {batch}")
    else:
        advice.append("a smaller size or model" + (" or fewer processes" if processes > 1 else ""))
    if precision in (Precision.FP64, Precision.FP32):
        advice.append("--precision bf16")
    return (
        f"A batch of {batch} at up to {size_hw!r} does not fit the {free_bytes / 2**30:.1f} GiB that were free: one "
        f"image takes about {each / 2**20:.0f} MiB{doubt}. Use {', or '.join(advice)}."
    )


def _count_fitting(
    model: nn.Module, size_hw: tuple[int, int], free_bytes: int, processes: int, precision: Precision
) -> tuple[int, int]:
    """Return how many bytes one image takes, and how many images fit over all processes."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    fixed = processes * weights * 4  # weights, gradients, momentum, average
    each = int(bytes_per_image(model, size_hw, precision) * 1.5)  # activations' gradients live beside the activations
    return each, int(free_bytes * _PART - fixed) // max(each, 1)
