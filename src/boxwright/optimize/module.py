"""Converted models that are `nn.Module`s, with the attributes of the original."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.core.signature import Array
from boxwright.optimize.model import OptimizedModel


class ConvertedModule(OptimizedModel, nn.Module):  # type: ignore[misc] # train() refuses, eval() changes nothing
    """A converted model as a module.

    `as_module` derives a class from this one and from the original's, so that `isinstance`, attributes, parameters and
    other methods are the original's, and only calls are answered by the converted model.
    """

    _lenient = False

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):  # the original is not part of the model
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:  # noqa: ARG002 as in nn.Module
        """Return the model itself for a move to where it is; `to`, `cpu`, `cuda`, `float` and `half` end here."""
        probe = fn(torch.zeros(1, 1, 1, 1))
        if probe.device.type != "cpu" or probe.dtype != torch.float32:
            raise UsageError(
                f"A converted model can't be moved to {probe.device.type!r} or {probe.dtype}: device and precision are "
                "part of it. Convert the original again."
            )
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(
            "A converted model can't be pickled or copied. Use InferenceOptimizer.save(model, folder) and load(folder)."
        )

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Return the original's `generate`, with the converted model computing each step anew, without a cache.

        Raises:
            UsageError: a cache is asked for, or a step needs an input that the model was converted without.
        """
        inherited: Any = super()
        if not hasattr(inherited, "generate"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'generate'")
        if kwargs.setdefault("use_cache", False):
            raise UsageError("use_cache=True is not possible: a converted model has no cache. Leave it out.")
        with self._leniently():
            return inherited.generate(*args, **kwargs)

    @contextmanager
    def _leniently(self) -> Iterator[None]:
        vars(self)["_lenient"] = True
        try:
            yield
        finally:
            vars(self)["_lenient"] = False

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Array], bool]:
        if self._lenient:
            kwargs = self._leave_out(kwargs)
        return super()._flatten(args, kwargs)

    def _leave_out(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a step that the model takes; the others must say nothing."""
        known = self.signature.names()
        for name, value in kwargs.items():
            if name not in known and isinstance(value, Tensor) and not _says_nothing(name, value):
                raise UsageError(
                    f"generate() needs {name!r} here, because the texts are padded. Convert the model with an example "
                    f"that has {', '.join(map(repr, known))} and {name!r}."
                )
        constants = self.signature.constants()
        return {name: value for name, value in kwargs.items() if name in known and name not in constants}


def as_module(opened: OptimizedModel, original: nn.Module | None) -> OptimizedModel:
    """Return a converted model as a module of the original's class; without an original as a plain module."""
    if original is None or isinstance(original, OptimizedModel):
        module = ConvertedModule.__new__(ConvertedModule)
        nn.Module.__init__(module)
    else:
        kind = type(original)

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the converted model's output."""
            return OptimizedModel.__call__(self, *args, **kwargs)

        forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined] # what others look at
        made: Any = type(f"Converted{kind.__name__}", (ConvertedModule, kind), {"forward": forward})
        module = made.__new__(made)
        state = {k: dict(v) if k in ("_parameters", "_buffers", "_modules") else v for k, v in vars(original).items()}
        vars(module).update(state)
    vars(module).update(
        {**vars(opened), "original": original, "training": False, "_opened": opened}
    )  # it owns the folder
    return module


def _says_nothing(name: str, value: Tensor) -> bool:
    """Return whether an input is what the model assumes without it: no padding, places counted from zero."""
    if name.endswith("mask"):
        return bool((value != 0).all())
    return name.endswith(("_ids", "position")) and bool((value == torch.arange(value.shape[-1])).all())
