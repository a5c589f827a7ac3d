"""Ports, interfaces and addresses of this machine and others."""

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from boxwright.core.errors import UsageError
from boxwright.launchers.base import WorkerSpec

_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_PATIENCE_S = 10.0


def find_free_port() -> int:
    """Return a port that no program listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def find_interface(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None if none has.

    Example:
        >>> find_interface("127.0.0.1")
        'lo'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # it has no IPv4 address
                if socket.inet_ntoa(fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return None


def use_interface(spec: WorkerSpec, address: str) -> WorkerSpec:
    """Return a worker whose gloo talks over the interface with this address, unless the user has chosen one.

    By default gloo resolves the host name. On many machines that gives 127.0.0.1, which no other machine can reach, or
    an address that needs a network.
    """
    name = find_interface(address)
    return spec if name is None else _with_defaults(spec, {_GLOO_INTERFACE: name})


def use_loopback(spec: WorkerSpec) -> WorkerSpec:
    """Return a worker whose collectives listen on the loopback only, unless the user has chosen an interface."""
    name = find_interface(_LOOPBACK)
    # "=": not every interface whose name begins like it.
    return spec if name is None else _with_defaults(spec, {_GLOO_INTERFACE: name, _NCCL_INTERFACE: f"={name}"})


def _with_defaults(spec: WorkerSpec, variables: Mapping[str, str]) -> WorkerSpec:
    given = {*os.environ, *dict(spec.env)}
    return replace(spec, env=(*((k, v) for k, v in variables.items() if k not in given), *spec.env))


def check_reachable(name: str, value: str, places: Sequence[str], *, port: int) -> None:
    """Reject an address that refuses connections; engines would retry it for minutes.

    Args:
        name: the option, for the message.
        value: what the user gave for it.
        places: `host:port` or `host`; one that accepts is enough.
        port: the default port.

    Raises:
        UsageError: none accepts a connection.
    """
    reasons = []
    for place in places:
        host, colon, number = place.rpartition(":")
        if not colon:
            host, number = place, str(port)
        if not number.isdecimal():
            raise UsageError(f"{name}={value!r}: {number!r} is not a port. Write it as host:{port}.")
        try:
            socket.create_connection((host.strip("[]"), int(number)), _PATIENCE_S).close()
        except (OSError, OverflowError) as error:
            reasons.append(f"{place}: {error}")
        else:
            return
    raise UsageError(
        f"Nothing listens at {name}={value!r} ({'; '.join(reasons)}). Check the address, and that the cluster runs."
    )
