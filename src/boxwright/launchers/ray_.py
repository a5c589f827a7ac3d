"""Strategy `ray`: each worker is a fresh child process of an agent, and agents are Ray actors in a placement group.

An existing `ray.init` is used. Otherwise Ray is started, or connected to, for the launch.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from boxwright.core.errors import UsageError, check_choice
from boxwright.core.world import World
from boxwright.launchers.agent import serve
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.driver import run_on_engine
from boxwright.launchers.engine import EngineLauncher, Placement
from boxwright.launchers.interrupts import keep_handler
from boxwright.launchers.network import check_reachable
from boxwright.launchers.placement import fit_cores
from boxwright.launchers.wire import Invitation, Listener

T = TypeVar("T")

Spread = Literal["pack", "spread", "strict_pack", "strict_spread"]
"""How workers are distributed over machines: on few, on many, on exactly one, on one each."""

_STORE_BYTES = 80 << 20  # the least that Ray accepts: its object store is hardly used
_TURN_S = 0.25
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayLauncher(EngineLauncher):
    """Runs a job on the machines of a Ray cluster; Boxwright must be installed on each.

    Attributes:
        address: the cluster, as `ray.init` takes it; None for the one in use or in RAY_ADDRESS, else for a new one on
            this machine.
        spread: how workers are distributed over machines.

    `EngineLauncher` has the other attributes.
    """

    name: ClassVar[str] = "ray"

    address: str | None = None
    spread: Spread = "pack"

    def __post_init__(self) -> None:
        EngineLauncher.__post_init__(self)  # super() does not work in a dataclass with slots
        check_choice("spread", self.spread, get_args(Spread))

    def run(self, job: Callable[[World], T], workers: Sequence[WorkerSpec]) -> T:
        """Call `job` in every worker with its world, and return the first worker's result.

        Raises:
            UsageError: the workers contradict each other, the job can't be sent, or the cluster has no room.
            WorkerFailed: a worker failed; all are stopped.
        """
        data = self.pack_job(job, workers)
        with open_ray(self.address):
            return cast(T, run_on_engine(data, workers, _RayEngine(self), self))


@contextmanager
def open_ray(address: str | None = None, *, cores: int | None = None, memory: int | None = None) -> Iterator[None]:
    """Connect to Ray for the duration of this block, or use the connection that the program has.

    Args:
        address: the cluster; None for the one in use or in RAY_ADDRESS, else for a new one on this machine.
        cores: CPUs of a new one; None for all.
        memory: bytes that tasks of a new one may reserve; None for Ray's default.

    Raises:
        UsageError: the program is connected to another cluster, cores or memory are given for one that runs, or Ray
            does not start.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None and address.startswith("ray://"):
        raise UsageError(
            f"address={address!r} is a Ray Client's: its program is outside the cluster, where workers can't connect "
            "to it. Start the program inside, with `ray job submit`."
        )
    is_new = address in (None, "local") and not ray.is_initialized()
    if not is_new and (cores is not None or memory is not None):
        other = "one is running" if ray.is_initialized() else f"address={address!r} is another"
        raise UsageError(f"cores and memory are for a new Ray, and {other}. Leave them out, or stop it first.")
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "local", "auto", here):
            raise UsageError(
                f"address={address!r}, but this program is connected to Ray at {here!r}. "
                "Leave the address out, or call ray.shutdown() first."
            )
        yield
        return
    settings: dict[str, Any] = {}
    if is_new:
        settings = {"num_cpus": cores, "_memory": memory, "object_store_memory": _STORE_BYTES}
    elif address not in (None, "auto"):
        check_reachable("address", address, [address], port=6379)
    with _undisturbed():
        try:
            ray.init(
                address=address or "local",
                include_dashboard=False if is_new else None,
                log_to_driver=False,
                logging_level="ERROR",
                **settings,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise UsageError(
                f"Ray does not start with address={address!r}: {reason}. Its own log says more."
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Start Ray with the real streams, as it calls `fileno` on them, and restore the program's SIGTERM handler."""
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    for name, stream in streams.items():
        try:
            stream.fileno()
        except (AttributeError, OSError, ValueError):
            setattr(sys, name, getattr(sys, f"__{name}__") or open(os.devnull, "w"))  # noqa: SIM115  Ray may keep it
    try:
        with keep_handler(signal.SIGTERM):
            yield
    except SystemExit as end:
        if end.code in (1, signal.SIGTERM):  # raised by one of Ray's handlers; now the program's own decides
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        sys.stdout, sys.stderr = streams["stdout"], streams["stderr"]


class _Agent:
    """The actor: it stays in `serve`, in one thread, as long as its worker lives."""

    def serve(self, invitation: Invitation, slot: int) -> None:
        node = ray.get_runtime_context().get_node_id()
        serve(invitation, slot, f"{ray.util.get_node_ip_address()} ({node[:12]})")


@dataclass(frozen=True, slots=True)
class _RayEngine:
    launcher: RayLauncher

    def listen(self) -> Listener:
        return Listener(ray.util.get_node_ip_address())

    @contextmanager
    def place(
        self, invitation: Invitation, count: int, least: int, wait: Callable[[float], None]
    ) -> Iterator[Placement]:
        group, count, cpus = self._reserve(count, least, wait)
        agent = ray.remote(_Agent)
        actors = [
            agent.options(
                num_cpus=cpus,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=slot),
            ).remote()
            for slot in range(count)
        ]
        calls = [actor.serve.remote(invitation, slot) for slot, actor in enumerate(actors)]
        try:
            yield Placement(count=count, cpus=cpus, failure=partial(_find_failure, calls))
        finally:
            with suppress(RayError):
                # The driver has hung up: agents end their workers and clean up. Those of lost machines never answer.
                ray.wait(calls, num_returns=count, timeout=_LEAVE_S)
            for actor in actors:
                with suppress(RayError):
                    ray.kill(actor)
            with suppress(RayError):
                remove_placement_group(group)

    def _reserve(self, count: int, least: int, wait: Callable[[float], None]) -> tuple[PlacementGroup, int, int]:
        """Return a placement group, for how many workers it is, and the CPUs of each."""
        launcher, start_s = self.launcher, time.monotonic()
        end_s = start_s + launcher.wait_for_all_s(count, least)
        while True:
            cpus = launcher.cores_per_worker or max(1, fit_cores(_machines(), count))
            group = placement_group([{"CPU": cpus}] * count, strategy=launcher.spread.upper())
            while not (is_ready := group.wait(_TURN_S)) and time.monotonic() < end_s:
                wait(0.01)
            if is_ready:
                return group, count, cpus
            remove_placement_group(group)
            if count == least:
                raise UsageError(
                    f"Ray has no room for {count} workers with {cpus} CPUs each, spread={launcher.spread!r} after "
                    f"{time.monotonic() - start_s:.0f} s: its machines have {_machines()!r} CPUs, some perhaps in use. "
                    "Ask for fewer, or set min_workers if fewer are enough."
                )
            count -= 1
            end_s += 2.0


def _find_failure(calls: Sequence[Any]) -> str | None:
    done, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
    for one in done:
        try:
            ray.get(one)
        except RayError as error:
            return str(error).strip()
    return None


def _machines() -> list[int]:
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
