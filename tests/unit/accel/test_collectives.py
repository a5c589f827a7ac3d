"""Sums over processes, on devices whose collective knows less than others."""

from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from boxwright.accel.collectives import all_reduce
from boxwright.core.errors import UsageError
from boxwright.devices.cpu import CpuDevice

HERE = torch.device("cpu")
BIG = [0, 1, -1, 65535, -65536, 2**31, -(2**31) - 1, 2**40 + 7, -(2**52), 2**61, -(2**61)]


class Narrow(CpuDevice):
    reduces_int64 = False


@pytest.fixture
def three_alike(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Be one of three processes that all have the same values."""
    sent = []

    def reduce(tensor: Tensor, group: Any = None) -> None:
        sent.append(tensor.dtype)
        tensor.mul_(3)

    monkeypatch.setattr(distributed, "all_reduce", reduce)
    return sent


def test_whole_numbers_of_64_bits_are_added_exactly_by_32(three_alike: list[torch.dtype]) -> None:
    value = torch.tensor(BIG)
    kept = value.clone()
    total = all_reduce(value, "sum", 3, Narrow(), HERE)
    assert three_alike == [torch.int32]
    assert torch.equal(total, kept * 3)
    assert torch.equal(value, kept)
    assert all_reduce(torch.tensor(2**40), "mean", 3, Narrow(), HERE).item() == pytest.approx(2**40)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_where_the_collective_knows_them_they_go_as_they_are(
    three_alike: list[torch.dtype], dtype: torch.dtype
) -> None:
    value = torch.ones(2, dtype=dtype)
    assert all_reduce(value, "sum", 3, CpuDevice(), HERE).tolist() == [3, 3]
    assert three_alike == [dtype]
    assert value.tolist() == [1, 1]


def test_other_reductions_are_refused() -> None:
    with pytest.raises(UsageError, match="Choose from: mean, sum"):
        all_reduce(torch.ones(1), "max", 1, CpuDevice(), HERE)
