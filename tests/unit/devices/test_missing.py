"""Devices that are not there, memory that is too small, options: always a sentence that says what to do."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from boxwright.core import catalogue
from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.types import Precision
from boxwright.data.policy import AugmentPolicy, policy_for
from boxwright.detector.yolox import build
from boxwright.devices.cuda import CudaDevice
from boxwright.devices.hpu import HpuDevice
from boxwright.devices.options import DeviceOptions, set_variables
from boxwright.tasks.train.batch_size import explain_overflow


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    with pytest.raises(UsageError, match="torch sees no CUDA device here"):
        catalogue.load("device", "cuda")()


def test_a_machine_without_the_gaudi_plugin_says_where_it_comes_from() -> None:
    with pytest.raises(MissingDependencyError, match="comes with Intel's Gaudi software"):
        catalogue.load("device", "hpu")()


def test_a_full_gpu_is_recognised() -> None:
    device = object.__new__(CudaDevice)
    assert device.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert device.is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    assert not device.is_out_of_memory(RuntimeError("shapes do not fit"))


def test_a_full_gaudi_is_recognised() -> None:
    device = object.__new__(HpuDevice)
    assert device.is_out_of_memory(torch.OutOfMemoryError("out of memory"))
    words = "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::2147483648 (2048)MB"
    assert device.is_out_of_memory(RuntimeError(words))
    assert not device.is_out_of_memory(RuntimeError("shapes do not fit"))


def tell(free_mib: int, **changes: Any) -> str:
    settings: dict[str, Any] = {"processes": 2, "batch": 64, "accumulate": 1, "precision": Precision.FP32} | changes
    return explain_overflow(build("yolox_nano", 3), (64, 64), free_mib * 2**20, **settings)


@pytest.mark.parametrize(("accumulate", "processes"), [(1, 2), (1, 1), (4, 2)])
def test_a_batch_that_is_too_large_is_answered_with_one_that_fits(accumulate: int, processes: int) -> None:
    sentence = tell(200, accumulate=accumulate, processes=processes)
    assert "64 at up to (64, 64) does not fit the 0.2 GiB" in sentence
    smaller = int(sentence.split("--batch ")[1].split(",")[0])
    assert processes <= smaller // accumulate <= 64 // accumulate // 2
    assert smaller % (processes * accumulate) == 0
    parts = int(sentence.split("accumulate=")[1].split(",")[0])
    assert 64 % (parts * processes) == 0
    assert 64 // parts <= smaller // accumulate


def test_where_the_count_must_be_wrong_the_sentence_says_so() -> None:
    assert "Use --batch 32, or accumulate=2" in tell(90_000)
    assert "something else" not in tell(200)


def test_bf16_is_advised_to_those_who_have_it_not_and_takes_less() -> None:
    assert tell(200).endswith(", or --precision bf16.")
    assert "bf16" not in tell(200, precision=Precision.BF16)

    def fits(precision: Precision) -> int:
        return int(tell(120, precision=precision).split("--batch ")[1].split(",")[0])

    assert fits(Precision.FP64) < fits(Precision.FP32) < fits(Precision.BF16) <= fits(Precision.BF16_TRUE)


def test_where_nothing_fits_another_size_is_advised() -> None:
    assert "Use a smaller size or model, or --precision bf16." in tell(1, processes=1)
    assert tell(1, precision=Precision.BF16).endswith("Use a smaller size or model or fewer processes.")


def test_variables_are_those_of_the_device_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PT_HPU_LAZY_MODE", "0")
    options = DeviceOptions(lazy=True, bf16_ops=tmp_path / "ops.txt")
    set_variables("cpu", options)
    assert os.environ["PT_HPU_LAZY_MODE"] == "0"
    monkeypatch.setenv("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "")
    set_variables("hpu", options)
    assert os.environ["PT_HPU_LAZY_MODE"] == "1"
    assert os.environ["PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST"] == str(tmp_path / "ops.txt")


@pytest.mark.parametrize(("model", "size"), [("yolox_nano", 416), ("yolox_s", 640), ("yolox_nano", 64)])
def test_few_sizes_are_spread_over_the_range_and_hold_the_input_size(model: str, size: int) -> None:
    whole, few = policy_for(model), policy_for(model).with_fewer_sizes(4)

    def sizes(policy: AugmentPolicy) -> list[int]:
        return sorted({policy.batch_size_hw((size, size), u / 1000)[0] for u in range(1000)})

    assert size in sizes(few)
    assert len(sizes(few)) <= 4
    assert set(sizes(few)) <= set(sizes(whole))
    assert few.with_fewer_sizes(1).batch_size_hw((size, size), 0.99) == (size, size)
