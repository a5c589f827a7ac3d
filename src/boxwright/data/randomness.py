"""Random numbers that depend on where they are used, not on what was drawn before."""

from enum import IntEnum

import numpy as np
from numpy.random import Generator, Philox

from boxwright.core.errors import UsageError

_WORD = 1 << 64


class Purpose(IntEnum):
    """What a stream of random numbers is for; no two uses share one."""

    SAMPLE = 0
    ORDER = 1
    SIZE = 2


def stream(seed: int, purpose: Purpose, epoch: int, index: int = 0) -> Generator:
    """Return a generator that is the same for the same arguments, in any process and any order.

    Philox counts in 256 bits. Purpose, epoch and index fill the upper three quarters, so that two streams of a seed
    can't overlap before 2^64 blocks.

    Raises:
        UsageError: a number is negative or has more than 64 bits.

    Example:
        >>> bool(stream(7, Purpose.SAMPLE, 0, 3).random() == stream(7, Purpose.SAMPLE, 0, 3).random())
        True
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("index", index)):
        if not 0 <= value < _WORD:
            raise UsageError(f"{name}={value!r} can't be used for random numbers. Use 0 to 2**64 - 1.")
    counter = np.array([0, purpose, epoch, index], np.uint64)
    return Generator(Philox(key=seed, counter=counter))
