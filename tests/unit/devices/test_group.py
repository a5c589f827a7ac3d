"""How the processes of a group find each other, and where they listen."""

import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from support.processes import listening_addresses
from torch import distributed

from boxwright.core.world import World
from boxwright.devices.cpu import CpuDevice
from boxwright.launchers.network import find_free_port


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """Make this process the worker of a world."""

    def enter(world: World) -> None:
        place = f"{world.master_addr}:{world.master_port}"
        for name, value in {**world.to_env(), "BOXWRIGHT_RENDEZVOUS": place, "GLOO_SOCKET_IFNAME": "lo"}.items():
            monkeypatch.setenv(name, value)

    return enter


def join_and_leave() -> set[str]:
    """Return where a process of the group listens that it did not before."""
    before = listening_addresses()
    CpuDevice().join_group(torch.device("cpu"), timedelta(seconds=60))
    try:
        total = torch.ones(1)
        distributed.all_reduce(total)
        assert total == 1
        return listening_addresses() - before
    finally:
        distributed.destroy_process_group()


def test_a_group_of_one_machine_meets_in_a_private_file_and_can_be_joined_again(
    tmp_path: Path, enter: Callable[[World], None]
) -> None:
    enter(World(store=str(tmp_path / "a store"), master_port=find_free_port()))
    assert [join_and_leave() for _ in range(2)] == [{"127.0.0.1"}] * 2


def test_a_group_of_an_engine_listens_on_its_one_address(enter: Callable[[World], None]) -> None:
    enter(World(master_port=find_free_port()))
    assert join_and_leave() == {"127.0.0.1"}


def test_a_port_that_is_taken_is_an_error_of_the_network(enter: Callable[[World], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        enter(World(master_port=taken.getsockname()[1]))
        with pytest.raises(distributed.DistNetworkError, match="EADDRINUSE"):
            join_and_leave()
