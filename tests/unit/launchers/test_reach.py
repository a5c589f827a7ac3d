"""Addresses at which nobody listens are told at once."""

import socket

import pytest

from boxwright.core.errors import UsageError
from boxwright.launchers.reach import check_reachable


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_one_of_several_that_listens_is_enough(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable("master", "x", [f"127.0.0.1:{closed_port}", f"127.0.0.1:{port}"], port=1)
        check_reachable("address", "x", ["127.0.0.1"], port=port)


def test_where_nobody_listens_the_address_is_named(closed_port: int) -> None:
    place = f"127.0.0.1:{closed_port}"
    with pytest.raises(UsageError, match=f"Nobody listens at address='{place}' .*refused.*Check the address"):
        check_reachable("address", place, [place], port=1)


@pytest.mark.parametrize(("place", "words"), [("host:a", "'a' is no port"), ("127.0.0.1:99999", "Nobody listens")])
def test_what_is_no_port_is_told(place: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_reachable("address", place, [place], port=1)
