"""Keeps the stack of this thread's signal handlers from libraries that replace it."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Put the calling thread's alternate signal stack back as it was before a block.

    Python asks for its signal handlers to run on that stack. A library that leaves one of its own there and frees it
    later makes the next Ctrl-C a segmentation fault.
    """
    if sys.platform != "linux":
        yield
        return
    libc, before = ctypes.CDLL(None), _Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)
