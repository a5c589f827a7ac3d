"""The connection between driver and agents: whole messages, and only for those who have the key."""

import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from boxwright.core.errors import WorkerError
from boxwright.launchers.wire import Channel, Invitation, Listener, call


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener("127.0.0.1")
    yield listener
    listener.close()


def receive(channel: Channel) -> Any:
    while True:
        for message in channel.take():
            return message
        channel.fill()


def admit(listener: Listener) -> Channel:
    channel = listener.greet()
    try:
        while not listener.admit(channel):
            channel.fill()
    except PermissionError:
        channel.close()
        raise
    return channel


def connect(listener: Listener) -> tuple[Channel, Channel]:
    """Return the driver's end and the agent's end."""
    ends: list[Channel] = []
    agent = threading.Thread(target=lambda: ends.append(call(listener.invitation)))
    agent.start()
    driver = admit(listener)
    agent.join()
    return driver, ends[0]


def test_messages_arrive_whole_in_both_directions_whatever_their_size(listener: Listener):
    driver, agent = connect(listener)
    large = b"x" * 5_000_000
    sender = threading.Thread(target=lambda: [driver.send(message) for message in ("small", large, None)])
    sender.start()
    assert [receive(agent), receive(agent), receive(agent)] == ["small", large, None]
    sender.join()
    agent.send({"answer": 1})
    assert receive(driver) == {"answer": 1}
    driver.close()
    with pytest.raises(EOFError):
        agent.fill()
    agent.close()


def test_a_caller_without_the_key_is_turned_away(listener: Listener):
    failures: list[Exception] = []

    def try_it() -> None:
        try:
            call(Invitation(host="127.0.0.1", port=listener.invitation.port, key=b"wrong"))
        except WorkerError as error:
            failures.append(error)

    stranger = threading.Thread(target=try_it)
    stranger.start()
    with pytest.raises(PermissionError, match="without the key"):
        admit(listener)
    listener.close()
    stranger.join()
    assert "can't be reached" in str(failures[0])


def test_an_agent_tells_nothing_to_a_driver_without_the_key():
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        failures: list[Exception] = []

        def try_it() -> None:
            try:
                call(Invitation(host="127.0.0.1", port=impostor.getsockname()[1], key=b"right"))
            except WorkerError as error:
                failures.append(error)

        agent = threading.Thread(target=try_it)
        agent.start()
        sock, _ = impostor.accept()
        with sock:
            sock.sendall(bytes(32))
            sock.recv(64, socket.MSG_WAITALL)
            sock.sendall(bytes(32))
            agent.join()
    assert "Something else listens there" in str(failures[0])


def test_a_silent_stranger_does_not_hold_up_the_others(listener: Listener):
    with socket.create_connection(("127.0.0.1", listener.invitation.port)):
        silent = listener.greet()
        assert not listener.admit(silent)
        driver, agent = connect(listener)
        agent.send("here")
        assert receive(driver) == "here"
        for channel in (driver, agent, silent):
            channel.close()


def test_nobody_there_is_told_with_the_address(listener: Listener):
    invitation = listener.invitation
    listener.close()
    with pytest.raises(WorkerError, match=f"The driver at 127.0.0.1:{invitation.port} can't be reached"):
        call(invitation)


def test_the_key_is_not_shown(listener: Listener):
    assert "key" not in repr(listener.invitation)


def test_a_channel_works_with_selectors(listener: Listener):
    driver, agent = connect(listener)
    with selectors.DefaultSelector() as selector:
        selector.register(driver, selectors.EVENT_READ)
        assert selector.select(0) == []
        agent.send(1)
        assert selector.select(10)
    driver.close()
    agent.close()
