"""The alternate signal stack of the calling thread."""

import ctypes
import sys


class Stack(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def read_signal_stack() -> tuple[int, int]:
    """Return its address and size; zeros if there is none."""
    stack = Stack()
    if sys.platform == "linux":
        ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
    return stack.address or 0, stack.size
