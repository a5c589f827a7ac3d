"""Worlds that another launcher has made: torchrun, Slurm, a Kubernetes PyTorchJob. Nothing is started here."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from boxwright.core.world import RENDEZVOUS, World


def from_environment(env: Mapping[str, str] | None = None) -> World | None:
    """Return the world in which another launcher has started this process; None if none has, or one of ours.

    Args:
        env: the variables to read; this process's by default.

    Raises:
        UsageError: a variable is not a number, is missing or contradicts another.

    Example:
        >>> from_environment({"RANK": "1", "WORLD_SIZE": "2"}).rank
        1
    """
    env = os.environ if env is None else env
    world = World.from_env(env)
    # A launcher that was started inside one of our workers has changed the port.
    if env.get(RENDEZVOUS) == f"{world.master_addr}:{world.master_port}":
        return None
    return world if "RANK" in env or "WORLD_SIZE" in env or world.world_size > 1 else None


@contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """Run this process on these logical cpus, unless its launcher has already given it a part of the machine.

    torchrun leaves the affinity mask alone. Slurm, taskset and containers may have cut it: it then stays as it is.
    """
    mask = os.sched_getaffinity(0)
    if not cores or len(mask) != os.cpu_count():
        yield
        return
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mask)
