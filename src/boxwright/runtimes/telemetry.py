"""Importing packages that would report their use over the network."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_REPORTER = "openvino_telemetry"


@contextmanager
def no_telemetry() -> Iterator[None]:
    """Import OpenVINO or NNCF inside this block and they send nothing.

    Both look for their reporting package when they are imported, send a first event right then, and go without where
    the package is missing. Here it is as good as missing. A program that imported OpenVINO before is left as it was.
    """
    if _REPORTER in sys.modules:
        yield
        return
    sys.modules[_REPORTER] = None  # type: ignore[assignment] # Python's own mark for "can't be imported"
    try:
        yield
    finally:
        del sys.modules[_REPORTER]
