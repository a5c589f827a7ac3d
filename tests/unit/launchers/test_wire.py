"""The connection between driver and agents: only for those who have the key."""

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import CHALLENGE, WELCOME, Connection

import pytest

from boxwright.core.errors import WorkerError
from boxwright.launchers.wire import Invitation, Listener, call


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener("127.0.0.1")
    yield listener
    listener.close()


def connect(listener: Listener) -> tuple[Connection, Connection]:
    """Return the driver's end and the agent's end."""
    agent, address = call(listener.invitation)
    assert address == "127.0.0.1"
    agent.send("hello")
    arrived = listener.take(30)
    assert arrived is not None
    assert arrived[1] == "hello"
    return arrived[0], agent


def test_messages_of_any_size_arrive_in_both_directions(listener: Listener):
    driver, agent = connect(listener)
    large = b"x" * 5_000_000
    sender = threading.Thread(target=lambda: [driver.send(message) for message in ("small", large, None)])
    sender.start()
    assert [agent.recv(), agent.recv(), agent.recv()] == ["small", large, None]
    sender.join()
    agent.send({"answer": 1})
    assert driver.recv() == {"answer": 1}
    driver.close()
    with pytest.raises(EOFError):
        agent.recv()
    agent.close()


def test_a_caller_without_the_key_is_refused(listener: Listener):
    with pytest.raises(WorkerError, match="rejected"):
        call(replace(listener.invitation, key=b"wrong"))
    assert listener.take(0) is None


@pytest.mark.parametrize("proof", [b"not a digest", None], ids=["made up", "the agent's own"])
def test_an_agent_trusts_no_driver_without_the_key(proof: bytes | None):
    def pretend() -> None:
        sock, _ = impostor.accept()
        with Connection(sock.detach()) as connection:
            connection.send_bytes(CHALLENGE + bytes(20))
            echo = connection.recv_bytes()
            connection.send_bytes(WELCOME)
            connection.recv_bytes()
            connection.send_bytes(echo if proof is None else proof)
            connection.recv_bytes()

    with socket.create_server(("127.0.0.1", 0)) as impostor:
        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(WorkerError, match="digest received was wrong"):
            call(Invitation(host="127.0.0.1", port=impostor.getsockname()[1], key=b"right"))
        thread.join()


def test_a_silent_stranger_does_not_hold_up_the_others(listener: Listener):
    with socket.create_connection(("127.0.0.1", listener.invitation.port)):
        driver, agent = connect(listener)
    driver.close()
    agent.close()


def test_an_agent_waits_for_a_driver_that_does_not_read_its_output(listener: Listener):
    driver, agent = connect(listener)
    limits_ms = []
    for connection in (driver, agent):
        with socket.socket(fileno=os.dup(connection.fileno())) as sock:
            limits_ms.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        connection.close()
    assert limits_ms == [30_000, 0]  # the kernel counts a full buffer of the other side as silence, too


def test_a_driver_that_does_not_listen_is_named_with_its_address(listener: Listener):
    invitation = listener.invitation
    listener.close()
    with pytest.raises(WorkerError, match=f"127.0.0.1:{invitation.port}"):
        call(invitation)


def test_agents_that_nobody_took_are_hung_up_on(listener: Listener):
    agent, _ = call(listener.invitation)
    agent.send("hello")
    listener.close()
    with pytest.raises((EOFError, ConnectionResetError)):
        agent.recv()
    agent.close()


def test_the_key_is_not_shown(listener: Listener):
    assert "key" not in repr(listener.invitation)
