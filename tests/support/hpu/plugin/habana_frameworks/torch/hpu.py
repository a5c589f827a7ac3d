"""`torch.hpu`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def is_available() -> bool:
    return device_count() > 0


def device_count() -> int:
    return int(os.environ.get("BOXWRIGHT_SIMULATED_HPUS", "1"))


def current_device() -> int:
    return 0  # a process has one card


def set_device(device: Any) -> None: ...


@contextmanager
def device(_device: Any) -> Iterator[None]:
    yield


def synchronize(_device: Any = None) -> None:
    torch.ops.simulated_hpu.wait()


def is_initialized() -> bool:
    return True


def mem_get_info(_device: Any = None) -> tuple[int, int]:
    return 90 * 2**30, 96 * 2**30


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def manual_seed_all(_seed: int) -> None: ...


def manual_seed(_seed: int) -> None: ...


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None: ...
