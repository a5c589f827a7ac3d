"""`@nano`: a plain training function in several processes, its `loss.backward()` unchanged."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def nano(**settings: Any) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Return a decorator that runs a plain training function in several processes.

    Models, optimizers and loaders among its arguments go through `setup`; `loss.backward()` stays as it is. Takes the
    settings of `TorchNano`.

    Raises:
        UsageError: precision is 16, whose loss must be scaled; that needs `TorchNano.backward`.

    Example:
        >>> @nano(num_processes=1)
        ... def train(model, optimizer, batches):
        ...     for batch in batches:
        ...         optimizer.zero_grad()
        ...         model(batch).sum().backward()
        ...         optimizer.step()
        ...     return "done"
        >>> net = nn.Linear(2, 1)
        >>> train(net, torch.optim.SGD(net.parameters(), lr=0.1), batches=[torch.ones(1, 2)])
        'done'
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            runner = TorchNano(**settings)
            if runner.plan.precision == "16":
                raise UsageError(
                    "@nano can't scale the loss that precision 16 needs. Use TorchNano, or precision='bf16'."
                )
            result: Result = runner.launch(_call_ready, function, args, kwargs)
            return result

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return run

    return decorate


def _call_ready(runner: TorchNano, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Set up the function's arguments, and call it."""
    values = [*args, *kwargs.values()]
    models = [v for v in values if isinstance(v, nn.Module)]
    optimizers = [v for v in values if isinstance(v, Optimizer)]
    loaders = [v for v in values if isinstance(v, torch.utils.data.DataLoader)]
    ready: dict[int, Any] = {}
    for model in models:
        own = {id(p) for p in model.parameters()}
        of_model = [o for o in optimizers if any(id(p) in own for g in o.param_groups for p in g["params"])]
        module, *wrapped = runner.setup(model, *of_model) if of_model else (runner.setup(model),)
        ready[id(model)] = module
        ready |= {id(o): w for o, w in zip(of_model, wrapped, strict=True)}
    ready |= {id(loader): runner.setup_dataloaders(loader) for loader in loaders}
    return function(*(ready.get(id(v), v) for v in args), **{name: ready.get(id(v), v) for name, v in kwargs.items()})
