"""What crosses the border to the processes of a run, and what comes back."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from boxwright.accel.module import NanoModule
from boxwright.core.world import World
from boxwright.launchers.base import Launcher

if TYPE_CHECKING:
    from boxwright.accel.nano import TorchNano


class Outcome:
    """The first worker's result, and the weights of the models that it was given."""

    def __init__(self, result: Any, states: list[dict[str, Tensor]]) -> None:
        self.result = result
        self.states = states


class StaysHere:
    """Holds what workers need not have: they would import the engine behind it."""

    def __init__(self, value: Launcher | None = None) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type["StaysHere"], tuple[()]]:
        return StaysHere, ()


class Job:
    """What crosses the border to a worker: the nano object, the function and its arguments."""

    def __init__(self, nano: "TorchNano", function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.nano, self.function, self.args, self.kwargs = nano, function, args, kwargs

    def __call__(self, world: World) -> Outcome:
        """Do the job in this worker."""
        threads = torch.get_num_threads()  # as the launcher has set OMP_NUM_THREADS
        held = find_modules((self.nano.__dict__, self.args, self.kwargs))
        with self.nano._work(world, threads):
            result = self.function(self.nano, *self.args, **self.kwargs)
        states = [{k: v.detach().cpu() for k, v in m.state_dict().items()} for m in held] if world.is_first else []
        if isinstance(result, NanoModule):
            result = result._inner
        return Outcome(result if world.is_first else None, states)


def find_modules(values: Any) -> list[nn.Module]:
    """Return the models in nested arguments, in a fixed order, each once."""
    found: dict[int, nn.Module] = {}

    def walk(value: Any) -> None:
        if isinstance(value, nn.Module):
            found.setdefault(id(value), value)
        elif isinstance(value, Mapping):
            for item in value.values():
                walk(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                walk(item)

    walk(values)
    return list(found.values())
