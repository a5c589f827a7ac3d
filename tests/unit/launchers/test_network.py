"""Free ports, interfaces, and addresses that refuse connections."""

import socket

import pytest

from boxwright.core.errors import UsageError
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.network import check_reachable, find_interface, use_loopback


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_one_of_several_that_listens_is_enough(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable("master", "x", [f"127.0.0.1:{closed_port}", f"127.0.0.1:{port}"], port=1)
        check_reachable("address", "x", ["127.0.0.1"], port=port)


def test_an_address_that_refuses_connections_is_named(closed_port: int) -> None:
    place = f"127.0.0.1:{closed_port}"
    with pytest.raises(UsageError, match=f"address='{place}' .*refused"):
        check_reachable("address", place, [place], port=1)


@pytest.mark.parametrize(("place", "words"), [("host:a", "'a' is not a port"), ("127.0.0.1:99999", "99999")])
def test_what_is_not_a_port_is_named(place: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_reachable("address", place, [place], port=1)


def test_an_address_of_another_machine_belongs_to_no_interface():
    assert find_interface("203.0.113.77") is None


def test_collectives_of_one_machine_use_the_loopback_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert dict(use_loopback(WorkerSpec()).env) == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    chosen = WorkerSpec(env=(("GLOO_SOCKET_IFNAME", "eth0"),))
    assert use_loopback(chosen) == chosen
