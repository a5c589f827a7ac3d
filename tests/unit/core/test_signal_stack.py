import ctypes
import mmap
import sys

import pytest
from support.signal_stack import Stack, read_signal_stack

from boxwright.core.signal_stack import kept_signal_stack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signal stacks are read on Linux alone")


def replace_signal_stack(memory: mmap.mmap) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(address, 0, len(memory))), None) == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_stack_that_a_library_leaves_behind_is_taken_away(fails: bool):
    memory = mmap.mmap(-1, 1 << 16)
    before = read_signal_stack()
    try:
        with kept_signal_stack():
            replace_signal_stack(memory)
            assert read_signal_stack()[1] == 1 << 16
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert read_signal_stack() == before
