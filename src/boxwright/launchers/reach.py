"""Whether anybody listens at an address: engines try for minutes what a moment can tell."""

import socket
from collections.abc import Sequence

from boxwright.core.errors import UsageError

_PATIENCE_S = 10.0


def check_reachable(name: str, value: str, places: Sequence[str], *, port: int) -> None:
    """Refuse an address at which nobody listens.

    Args:
        name: what the user calls it.
        value: what the user wrote.
        places: `host:port` or `host`; one that listens is enough.
        port: where a place names none.

    Raises:
        UsageError: nobody listens at any of them.
    """
    reasons = []
    for place in places:
        host, colon, number = place.rpartition(":")
        if not colon:
            host, number = place, str(port)
        if not number.isdecimal():
            raise UsageError(f"{name}={value!r}: {number!r} is no port. Write it as host:{port}.")
        try:
            socket.create_connection((host.strip("[]"), int(number)), _PATIENCE_S).close()
        except (OSError, OverflowError) as error:
            reasons.append(f"{place}: {error}")
        else:
            return
    raise UsageError(
        f"Nobody listens at {name}={value!r} ({'; '.join(reasons)}). Check the address, and that the cluster runs."
    )
