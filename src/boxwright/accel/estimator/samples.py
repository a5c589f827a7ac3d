"""How many samples a batch has."""

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from torch.utils._pytree import tree_leaves

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger

_log = get_logger(__name__)


class SampleCounter:
    """Counts the samples of batches as the user says or else as their form shows; warns once where it shows several.

    Args:
        stated: the user's `count_samples(batch)`; None for their form.
    """

    def __init__(self, stated: Callable[[Any], Any] | None) -> None:
        self._stated = stated
        self._warned = False

    def __call__(self, batch: Any) -> int:
        """Return how many samples a batch has.

        Raises:
            UsageError: the user's function returned no number of samples.
        """
        if self._stated is not None:
            return _check(self._stated(batch))
        samples = count_samples(batch)
        # Only a dict is in doubt: its order means nothing. The first element of a tuple is the model's first input.
        if isinstance(batch, Mapping) and not self._warned:
            lengths = {name: len(value) for name, value in batch.items() if getattr(value, "shape", ())}
            if len(set(lengths.values())) > 1:
                self._warned = True
                _log.warning(
                    "The tensors of a batch have different lengths (%s): it is counted as %d samples. If that is "
                    "wrong, give from_torch() a count_samples(batch) that returns their number.",
                    ", ".join(f"{name} {length}" for name, length in lengths.items()),
                    samples,
                )
        return samples


def _check(stated: Any) -> int:
    try:
        samples = index(stated)
    except TypeError:
        samples = -1
    if samples < 0:
        raise UsageError(f"count_samples(batch) returned {stated!r}. Return how many samples the batch has.")
    return samples


def count_samples(batch: Any) -> int:
    """Return how many samples a batch has: the first length of its first tensor.

    Of a tuple that begins with a list, as detectors take their images, it is the length of that list.

    Example:
        >>> import torch
        >>> count_samples((torch.zeros(4, 3), torch.zeros(4)))
        4
        >>> count_samples(([torch.zeros(3, 8, 8), torch.zeros(3, 8, 9)], [{"boxes": torch.zeros(0, 4)}] * 2))
        2
    """
    if isinstance(batch, list | tuple) and batch and _is_list(batch[0]) and not _is_nested(batch):
        return len(batch[0])
    for leaf in tree_leaves(batch):
        if getattr(leaf, "shape", ()):
            return int(leaf.shape[0])
    return len(batch) if hasattr(batch, "__len__") else 1


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and not hasattr(value, "_fields")


def _is_nested(batch: Sequence[Any]) -> bool:
    """Return whether a batch begins with a list of inputs, each for all samples, and not with a list of samples.

    Inputs have as many entries as the tensors beside their list. Where there are none beside it, only what torch's own
    collation may have made is taken for inputs: lists of tensors within a list.
    """
    beside = [part for part in batch if hasattr(part, "shape")]
    if not beside and not (type(batch) is list and all(type(part) is list for part in batch)):
        return False
    if any(isinstance(one, Mapping) for part in batch if _is_list(part) for one in part):
        return False
    lengths = {tuple(getattr(leaf, "shape", ()))[:1] for leaf in tree_leaves([batch[0], beside or list(batch)])}
    return len(lengths) == 1 and () not in lengths
