"""Chooses cores and threads for each worker, on this machine or on the one where an engine starts it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from boxwright.core.cpu import Cpu, split_cores
from boxwright.core.errors import UsageError
from boxwright.core.procfs import format_cpu_list
from boxwright.launchers.base import WorkerSpec

ELSEWHERE = ("ray", "spark")
"""The launchers whose engine chooses the machines."""


def make_workers(
    cpu: Cpu,
    num_processes: int,
    *,
    cpu_for_each_process: Sequence[Iterable[int]] | None = None,
    threads: int | None = None,
    allow_overlap: bool = False,
) -> list[WorkerSpec]:
    """Return one worker for each process, with its own cores and threads.

    Without `cpu_for_each_process` each gets whole physical cores, inside the mask (taskset, cpuset) and, if possible,
    inside one socket. A container's quota limits the threads and the number of processes, not the cores: on a shared
    machine every container would otherwise use the same first ones.

    Args:
        cpu: the machine, as `read_cpu()` gives it.
        num_processes: how many workers.
        cpu_for_each_process: the logical cpus of each worker, instead of the split above.
        threads: computing threads of each worker; by default one per physical core.
        allow_overlap: whether two entries of `cpu_for_each_process` may name the same cpu.

    Raises:
        UsageError: there are fewer cores than processes, or `cpu_for_each_process` does not fit.

    Example:
        >>> from boxwright.core.cpu import Core
        >>> cores = tuple(Core(cpus=(i, i + 4)) for i in range(4))
        >>> cpu = Cpu(model="", vendor="", isa=frozenset(), all_cores=cores, allowed=tuple(range(8)))
        >>> [(worker.cores, worker.threads) for worker in make_workers(cpu, 2)]
        [((0, 1, 4, 5), 2), ((2, 3, 6, 7), 2)]
    """
    workers = make_workers_anywhere(num_processes)
    if cpu_for_each_process is None:
        if allow_overlap:
            raise UsageError(
                "allow_overlap=True needs cpu_for_each_process. Give each process its cpus, or leave it out."
            )
        shares = _split(cpu, num_processes)
    else:
        shares = [tuple(sorted(set(cpus))) for cpus in cpu_for_each_process]
        _check(cpu, num_processes, shares, allow_overlap=allow_overlap)
    # The quota is for all workers together: each gets its part, the first ones the remainder.
    each, rest = divmod(cpu.usable_cores, num_processes)
    for rank, share in enumerate(shares):
        physical = len({cpu.core_of(one).cpus for one in share})
        granted = max(1, each + (rank < rest)) if cpu.quota is not None else physical
        own_threads = min(physical, granted) if threads is None else threads
        workers[rank] = replace(workers[rank], cores=share, threads=own_threads, anywhere=False)
    return workers


def make_workers_anywhere(num_processes: int) -> list[WorkerSpec]:
    """Return workers whose machines an engine will choose.

    Raises:
        UsageError: fewer than 1 is asked for.

    Example:
        >>> [worker.rank for worker in make_workers_anywhere(2)]
        [0, 1]
    """
    if num_processes < 1:
        raise UsageError(f"num_processes={num_processes!r} is not possible. Ask for at least 1.")
    return [
        WorkerSpec(rank=r, local_rank=r, world_size=num_processes, local_world_size=num_processes, anywhere=True)
        for r in range(num_processes)
    ]


def settle_here(spec: WorkerSpec, cpu: Cpu, cpus: int) -> WorkerSpec:
    """Return a worker that an engine has started on this machine, with its cores and threads.

    A machine that the workers fill is split as `make_workers` does. On one that other programs of the engine may share,
    the worker is not pinned: they would use the same first cores.

    Args:
        spec: the worker, with its local rank and size on this machine.
        cpu: this machine.
        cpus: the logical cpus that the engine has granted each worker.
    """
    logical = len(cpu.allowed)
    left = logical - spec.local_world_size * cpus
    if left < cpus and spec.local_world_size <= cpu.usable_cores:
        own = make_workers(cpu, spec.local_world_size)[spec.local_rank]
        return replace(spec, cores=own.cores, threads=own.threads, anywhere=False)
    physical = cpus * len(cpu.cores) // logical
    return replace(spec, cores=(), threads=max(1, min(physical, cpu.usable_cores)), anywhere=False)


def fit_cores(machines: Sequence[int], workers: int) -> int:
    """Return the most cpus that each worker can have on these machines; 0 if there is no room for all.

    Example:
        >>> fit_cores([16, 8], 3)
        8
    """
    for cpus in range(max(machines, default=0), 0, -1):
        if sum(one // cpus for one in machines) >= workers:
            return cpus
    return 0


def _split(cpu: Cpu, num_processes: int) -> list[tuple[int, ...]]:
    if num_processes > cpu.usable_cores:
        why = "allowed by the mask" if cpu.usable_cores == len(cpu.cores) else f"granted by the quota of {cpu.quota:g}"
        raise UsageError(
            f"num_processes={num_processes!r} needs as many physical cores, but {cpu.usable_cores} are {why}. "
            f"Use num_processes={cpu.usable_cores!r} or fewer, or name the cpus with cpu_for_each_process."
        )
    shares = split_cores(cpu.cores, num_processes)
    return [tuple(sorted(one for core in share for one in core.cpus)) for share in shares]


def _check(cpu: Cpu, num_processes: int, shares: Sequence[tuple[int, ...]], *, allow_overlap: bool) -> None:
    given = f"cpu_for_each_process={[list(share) for share in shares]!r}"
    if len(shares) != num_processes:
        raise UsageError(
            f"{given} has {len(shares)} lists for num_processes={num_processes!r}. Give each process its list."
        )
    seen: dict[int, int] = {}
    for rank, share in enumerate(shares):
        if not share:
            raise UsageError(f"{given} gives process {rank} no cpu. Name at least one.")
        for one in share:
            cpu.core_of(one)  # raises if there is no such cpu
            if one not in cpu.allowed:
                raise UsageError(
                    f"{given} names cpu {one!r}, which this process may not use (taskset, container limits). "
                    f"Choose from: {format_cpu_list(cpu.allowed)}."
                )
            if one in seen and not allow_overlap:
                raise UsageError(
                    f"{given} gives cpu {one!r} to processes {seen[one]} and {rank}, which slow each other down. "
                    "Give each its own, or set allow_overlap=True."
                )
            seen[one] = rank
