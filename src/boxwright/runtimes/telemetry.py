"""Imports packages that would report their use over the network."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_REPORTER = "openvino_telemetry"


@contextmanager
def no_telemetry() -> Iterator[None]:
    """Import OpenVINO or NNCF inside this block to keep them from sending usage data.

    Both import a reporting package, send a first event at import, and do without if the package is missing. Inside
    this block it seems missing. Nothing changes if the program has imported it before.
    """
    if _REPORTER in sys.modules:
        yield
        return
    sys.modules[_REPORTER] = None  # type: ignore[assignment] # Python's mark for "can't be imported"
    try:
        yield
    finally:
        del sys.modules[_REPORTER]
