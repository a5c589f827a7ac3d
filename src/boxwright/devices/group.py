"""How the processes of a group find each other.

By default, torch's first process listens on all interfaces, without a key.
"""

import errno
import os
import socket
from datetime import timedelta
from itertools import count
from typing import Any

from torch import distributed

from boxwright.core.world import RENDEZVOUS, World, current

_stores: Any = distributed  # its type hints leave the stores out
_joined = count()  # every process of a run joins its groups in the same order


def find_others(timeout: timedelta) -> dict[str, Any]:
    """Return the arguments by which `init_process_group` finds the other processes.

    On one machine that is our launcher's private file, on an engine's machines the address of the first process. Worlds
    of other launchers are left to torch.
    """
    if RENDEZVOUS not in os.environ:
        return {}
    world, store = current(), None
    if world.store:
        # A group's file must be new: it still holds the addresses of the group before.
        store = _stores.FileStore(f"{world.store}-{next(_joined)}", world.world_size)
        store.set_timeout(timeout)
    elif os.environ[RENDEZVOUS] == f"{world.master_addr}:{world.master_port}":
        store = _open_store(world, timeout)
    else:  # a launcher that was started inside one of our workers
        return {}
    return {"store": store, "rank": world.rank, "world_size": world.world_size}


def _open_store(world: World, timeout: timedelta) -> Any:
    """Return torch's store in the first process, listening on its one address, or a connection to it."""
    server = None
    if world.is_first:
        family = socket.AF_INET6 if ":" in world.master_addr else socket.AF_INET
        try:
            server = socket.create_server((world.master_addr, world.master_port), family=family).detach()
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            raise distributed.DistNetworkError(f"{name}: {error}, {world.master_addr}:{world.master_port}") from error
    return _stores.TCPStore(
        world.master_addr, world.master_port, world.world_size, world.is_first, timeout, master_listen_fd=server
    )
