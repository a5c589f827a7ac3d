"""Launches of jobs that talk to each other through torch and gloo."""

import atexit
import os
import signal
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from boxwright.core.world import World
from boxwright.launchers.base import WorkerFailed, WorkerSpec
from boxwright.launchers.local import SubprocessLauncher
from boxwright.launchers.restart import Restart

WORKERS = [WorkerSpec(rank=rank, local_rank=rank, world_size=2, local_world_size=2) for rank in range(2)]


def join_group() -> None:
    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))


def add_ranks(world: World) -> float:
    import torch

    total = torch.tensor([world.rank + 1.0])
    torch.distributed.all_reduce(total)
    return total.item()


def test_two_ranks_add_their_numbers():
    def job(world: World) -> tuple[float, int]:
        import torch

        join_group()
        return add_ranks(world), torch.get_num_threads()

    assert SubprocessLauncher().run(job, WORKERS) == (3.0, 1)


def test_a_job_need_not_leave_the_group(tmp_path: Path):
    def job(world: World) -> None:
        from torch import distributed

        join_group()
        atexit.register(lambda: (tmp_path / str(world.rank)).write_text(str(distributed.is_initialized())))

    SubprocessLauncher().run(job, WORKERS)

    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["False", "False"]


def test_the_rank_that_died_is_blamed_not_the_one_that_lost_it_and_the_group_starts_again():
    def job(world: World) -> float:
        join_group()
        add_ranks(world)
        if world.rank == 1 and os.environ["BOXWRIGHT_ATTEMPT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return add_ranks(world)

    with pytest.raises(WorkerFailed, match="Worker 1 was killed by signal 9") as caught:
        SubprocessLauncher().run(job, WORKERS)
    assert (caught.value.rank, caught.value.kind) == (1, "death")

    assert SubprocessLauncher(restart=Restart(max_restarts=1)).run(job, WORKERS) == 3.0


def test_a_port_that_another_program_took_is_given_up_for_a_new_one():
    def job(world: World) -> tuple[str, float]:
        taken = None
        if world.rank == 0 and os.environ["BOXWRIGHT_ATTEMPT"] == "0":
            taken = socket.create_server(("", world.master_port))
        join_group()
        assert taken is None
        return os.environ["BOXWRIGHT_ATTEMPT"], add_ranks(world)

    assert SubprocessLauncher().run(job, WORKERS) == ("1", 3.0)
