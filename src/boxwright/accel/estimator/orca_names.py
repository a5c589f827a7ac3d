"""Orca's names: of arguments, and of the numbers that `fit` and `evaluate` return."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from boxwright.core.errors import UsageError, check_choice

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
# What happens anyway, and what to do for anything else.
_NEEDLESS: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_tqdm": ((False,), "The numbers of each epoch are logged; log in a callback's after_iter for more."),
    "sync_stats": ((True, False), ""),  # numbers are of all workers
    "log_level": ((), "Call logging.getLogger('boxwright').setLevel(…)."),
    "profile": ((False,), "Use torch.profiler in a callback."),
    "reduce_results": ((True,), "The numbers are those of all workers together."),
    "info": ((None, {}), "Give the values to from_torch(config=…)."),
    "num_steps": ((None,), "All data is scored. Give fewer data."),
    "force": ((True, False), ""),  # no worker lives longer than its call
}


class Numbers(dict[str, Any]):
    """The numbers of an epoch or a set, which Orca's spellings of their names find too.

    Example:
        >>> scores = Numbers({"loss": 0.5, "Accuracy": 0.9})
        >>> scores["val_loss"], scores["val_accuracy"], sorted(scores)
        (0.5, 0.9, ['Accuracy', 'loss'])
    """

    def __missing__(self, key: str) -> Any:
        for name in self:
            if str(key).lower() in (name.lower(), f"val_{name}".lower()):
                return self[name]
        raise KeyError(key)


def check_orca(given: Mapping[str, Any]) -> None:
    """Accept Orca's arguments where they ask for what happens anyway.

    Raises:
        UsageError: one is unknown, or asks for something else.
    """
    for name, value in given.items():
        check_choice("argument", name, _NEEDLESS)
        accepted, advice = _NEEDLESS[name]
        if value not in accepted:
            raise UsageError(f"{name}={value!r} is not possible. {advice}")


def takes_model_path(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function whose `path` may be called `model_path`, as in Orca."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if "model_path" in kwargs:
            kwargs["path"] = kwargs.pop("model_path")
        return function(*args, **kwargs)

    return call
