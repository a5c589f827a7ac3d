"""How processes of one machine find each other."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from support.processes import listening_addresses
from torch import distributed

from boxwright.core.world import World
from boxwright.devices.cpu import CpuDevice


def test_a_group_meets_in_a_private_file_and_can_be_joined_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(store=str(tmp_path / "a store"))
    for name, value in {**world.to_env(), "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    before, device = listening_addresses(), CpuDevice()
    for _ in range(2):
        device.join_group(torch.device("cpu"), timedelta(seconds=60))
        try:
            total = torch.ones(1)
            distributed.all_reduce(total)
            assert total == 1
            assert listening_addresses() - before <= {"127.0.0.1"}
        finally:
            distributed.destroy_process_group()
