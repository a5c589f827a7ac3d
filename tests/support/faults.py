"""A small job that learns, saves and resumes, and ways to kill parts of it."""

import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

import psutil
from support.processes import has_ended

from boxwright.core.world import World
from boxwright.launchers.base import current_attempt
from boxwright.launchers.local import SubprocessLauncher
from boxwright.launchers.placement import make_workers_anywhere

STEPS = 12
_SAVE_EVERY = 3

Victim = Literal["nobody", "rank", "node", "executor"]


@dataclass(frozen=True)
class Learning:
    """Learns a small linear map over all workers, from its last checkpoint; each attempt is killed at its own step.

    Attributes:
        folder: where the checkpoint is.
        victim: what is killed.
        moments: for each attempt the step of the kill, and the worker that does it: itself, its Ray node, or its Spark
            executor. The attempt after the last of them is not killed.
    """

    folder: Path
    victim: Victim = "nobody"
    moments: tuple[tuple[int, int], ...] = ()

    @classmethod
    def with_seed(cls, folder: Path, victim: Victim, seed: int, deaths: int = 1) -> "Learning":
        """Return a job whose victim is killed once in each of `deaths` attempts, at steps that the seed chooses."""
        chance = random.Random(seed)
        steps = sorted(chance.sample(range(STEPS), deaths))
        return cls(folder, victim, tuple((step, chance.randrange(2)) for step in steps))

    def __call__(self, world: World) -> tuple[list[float], int]:
        """Return the weights, and how often the group was started."""
        import torch
        from torch import distributed, nn

        (self.folder / f"{current_attempt()}.{world.rank}.pid").write_text(str(os.getpid()))
        distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
        torch.manual_seed(0)
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        file, first = self.folder / "state.pt", 0
        if current_attempt() and file.exists():
            saved = torch.load(file, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            first = saved["step"]
        for step in range(first, STEPS):
            self._kill(world, step)
            numbers = torch.Generator().manual_seed(1000 * step + world.rank)
            inputs = torch.randn(16, 8, generator=numbers)
            optimizer.zero_grad()
            (model(inputs) - inputs[:, :2]).square().mean().backward()
            for parameter in model.parameters():
                distributed.all_reduce(parameter.grad)
                parameter.grad /= world.world_size
            optimizer.step()
            if (step + 1) % _SAVE_EVERY == 0 and world.is_first:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save(state, file.with_suffix(".draft"))
                os.replace(file.with_suffix(".draft"), file)
        return [value for p in model.parameters() for value in p.flatten().tolist()], current_attempt()

    def _kill(self, world: World, step: int) -> None:
        if current_attempt() >= len(self.moments) or step != self.moments[current_attempt()][0]:
            return
        rank = self.moments[current_attempt()][1]
        if self.victim == "node":
            raylet = _ancestor(lambda process: process.name() == "raylet")
            assert raylet is not None
            # A cluster does not survive its head: then it is the other worker's node.
            on_head = _gather("--head" in raylet.cmdline())
            if world.rank != (1 - rank if on_head[rank] else rank):
                return
            raylet.kill()
        elif world.rank != rank:
            return
        elif self.victim == "executor":
            executor = _ancestor(lambda process: process.name() == "java")
            assert executor is not None
            executor.kill()
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(60)  # the kill comes from outside


def _gather(value: bool) -> list[bool]:
    import torch
    from torch import distributed

    own = torch.tensor([int(value)])
    everyones = [torch.zeros_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyones, own)
    return [bool(one) for one in everyones]


def exchange_places(world: World) -> list[tuple[int, ...]]:
    """Return the rank, node, local rank and local size of every worker, gathered over gloo."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    own = torch.tensor([world.rank, world.node_rank, world.local_rank, world.local_world_size])
    places = [torch.zeros_like(own) for _ in range(world.world_size)]
    distributed.all_gather(places, own)
    return [tuple(place.tolist()) for place in places]


def learn_undisturbed(folder: Path) -> list[float]:
    """Return what two workers of this machine learn when nothing happens to them."""
    workers = [replace(worker, anywhere=False) for worker in make_workers_anywhere(2)]
    return SubprocessLauncher().run(Learning(folder), workers)[0]


def find_orphans(folder: Path) -> list[int]:
    """Return the workers of a `Learning` that have not ended, and do not end in due time."""
    pids = [int(file.read_text()) for file in folder.glob("*.pid")]
    return [pid for pid in pids if not has_ended(pid, within_s=30)]


def _ancestor(fits: Callable[[psutil.Process], bool]) -> psutil.Process | None:
    return next((process for process in psutil.Process().parents() if fits(process)), None)
