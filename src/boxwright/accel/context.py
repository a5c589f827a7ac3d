"""An engine for a whole program: `init_context` starts Spark or Ray or connects to it, `stop_context` stops it."""

import atexit
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Literal, get_args

from boxwright.core import catalogue
from boxwright.core.errors import UsageError, check_choice

ClusterMode = Literal["local", "standalone", "yarn-client", "k8s-client", "ray"]
"""`local`: Spark on this machine. `standalone`, `yarn-client`, `k8s-client`: Spark on a cluster. `ray`: Ray."""

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_open: list["Context"] = []  # at most one: the engines allow one per process


class Context:
    """An engine that runs for this program; leaving the `with` block or `stop()` stops it.

    Attributes:
        cluster_mode: as requested.
        strategy: its name for `TorchNano`, `Trainer` and `train`: "spark" or "ray".
    """

    def __init__(self, cluster_mode: ClusterMode, strategy: str, stack: ExitStack) -> None:
        """Hold what `stack` closes."""
        self.cluster_mode, self.strategy = cluster_mode, strategy
        self._stack = stack

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop what was started; a second call does nothing."""
        atexit.unregister(self.stop)
        if self in _open:
            _open.remove(self)
        self._stack.close()


def init_context(
    cluster_mode: ClusterMode = "local",
    cores: int | Literal["*"] = "*",
    memory: str | None = None,
    num_nodes: int | None = None,
    address: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Context:
    """Start an engine, or connect to one, for launches with strategy "spark" or "ray"; it stops with the program.

    An existing session or `ray.init` of the program is used if it matches the request, and `stop_context` leaves it
    running. YARN and Kubernetes use the same code as a standalone master, but are not tested.

    Args:
        cluster_mode: which engine, and where.
        cores: of this machine, or of each node of a cluster; "*" for all.
        memory: of each node's executor, or what Ray may give to tasks, such as "4g"; None for the engine's default.
        num_nodes: how many executors of a cluster to use; None for the cluster's default.
        address: of the Spark master, of the Kubernetes API or of the Ray cluster.
        settings: more of Spark's settings, by their names.

    Raises:
        UsageError: a choice is unknown or does not apply to the mode, or a context is open already.
        MissingDependencyError: the engine is not installed.
    """
    if _open:
        raise UsageError(f"A context is open already ({_open[0].cluster_mode!r}). Call stop_context() first.")
    check_choice("cluster_mode", cluster_mode, get_args(ClusterMode))
    if cores != "*" and (isinstance(cores, bool) or not isinstance(cores, int) or cores < 1):
        raise UsageError(f"cores={cores!r} is not possible. Use a whole number of at least 1, or '*'.")
    if num_nodes is not None and num_nodes < 1:
        raise UsageError(f"num_nodes={num_nodes!r} is not possible. Use 1 or more.")
    size = None if memory is None else _parse_bytes(memory)
    stack = ExitStack()
    if cluster_mode == "ray":
        _refuse(cluster_mode, settings=settings, num_nodes=None if num_nodes == 1 else num_nodes)
        engine = catalogue.load("engine", "ray")
        stack.enter_context(engine(address, cores=None if cores == "*" else cores, memory=size))
    else:
        master, chosen = _plan_spark(cluster_mode, cores, memory, num_nodes, address)
        stack.enter_context(catalogue.load("engine", "spark")(master, chosen | dict(settings or {})))
    context = Context(cluster_mode, "ray" if cluster_mode == "ray" else "spark", stack)
    _open.append(context)
    atexit.register(context.stop)  # a finaliser would be too late: modules are already gone
    return context


def stop_context() -> None:
    """Stop what `init_context` started; does nothing without an open context."""
    while _open:
        _open[-1].stop()


def _plan_spark(
    mode: ClusterMode, cores: int | Literal["*"], memory: str | None, num_nodes: int | None, address: str | None
) -> tuple[str, dict[str, str]]:
    """Return the master's URL and the settings of a session."""
    if mode == "local":
        _refuse(mode, address=address, num_nodes=None if num_nodes == 1 else num_nodes)
        return f"local[{cores}]", {} if memory is None else {"spark.driver.memory": memory}
    settings = {} if memory is None else {"spark.executor.memory": memory}
    if cores != "*":
        settings["spark.executor.cores"] = str(cores)
    elif mode != "standalone":
        raise UsageError(f"cluster_mode={mode!r} can't know how many cores a node has. Give cores, such as cores=4.")
    if mode == "standalone":
        if num_nodes is not None:
            if cores == "*":
                raise UsageError(f"num_nodes={num_nodes!r} needs cores, a number: Spark counts cores, not nodes.")
            settings["spark.cores.max"] = str(cores * num_nodes)
        return _with_scheme("spark://", mode, address), settings
    if num_nodes is not None:
        settings["spark.executor.instances"] = str(num_nodes)
    settings["spark.submit.deployMode"] = "client"
    if mode == "yarn-client":
        _refuse(mode, address=address)
        return "yarn", settings
    return _with_scheme("k8s://", mode, address), settings


def _with_scheme(scheme: str, mode: str, address: str | None) -> str:
    if address is None:
        raise UsageError(f"cluster_mode={mode!r} needs an address, such as {scheme + 'host:port'!r}.")
    return address if address.startswith(scheme) else scheme + address


def _refuse(mode: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name}={value!r} does not apply to cluster_mode={mode!r}. Leave it out.")


def _parse_bytes(text: str) -> int:
    """Return a size in bytes.

    Example:
        >>> _parse_bytes("2g")
        2147483648
    """
    found = re.fullmatch(r"([0-9]+)([kmgt])b?", str(text).strip().lower())
    if found is None:
        raise UsageError(f"memory={text!r} can't be read. Give it with a unit, such as '4g' or '512m'.")
    return int(found[1]) * _UNITS[found[2]]
