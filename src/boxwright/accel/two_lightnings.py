"""Modules written for the package `pytorch_lightning`, run by the Trainer of the package `lightning`.

Both packages hold the same code under two names, and each takes only objects of its own classes.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from boxwright.core.errors import UsageError

_THEIRS = "pytorch_lightning."
_OURS = {"LightningModule": LightningModule, "LightningDataModule": LightningDataModule}


@contextmanager
def adopted(*values: Any) -> Iterator[None]:
    """Within the block, objects of `pytorch_lightning` are objects of `lightning`, too.

    Their class becomes one that derives from both; the methods of the user's own class stay in front.
    """
    found = [(one, type(one), base) for value in values for one in _parts_of(value) if (base := _find_base(type(one)))]
    try:
        for one, kind, base in found:
            object.__setattr__(one, "__class__", _join(kind, base))
        yield
    finally:
        for one, kind, _ in found:
            object.__setattr__(one, "__class__", kind)


def refuse_callbacks(callbacks: Iterable[Any]) -> None:
    """Refuse callbacks that `pytorch_lightning` defines itself: Lightning looks for some of them by their class.

    Raises:
        UsageError: there is one.
    """
    for one in callbacks:
        for kind in type(one).__mro__:
            if kind.__module__.startswith(_THEIRS) and kind.__name__ != "Callback":
                raise UsageError(
                    f"The callback {kind.__name__} is the one of the package pytorch_lightning. Import it from the "
                    f"package that the Trainer uses: from lightning.pytorch.callbacks import {kind.__name__}."
                )


def _parts_of(value: Any) -> list[Any]:
    return list(value.modules()) if isinstance(value, nn.Module) else [value]


def _find_base(kind: type) -> type | None:
    """Return Lightning's class that stands for one of `pytorch_lightning`; None for any other class."""
    theirs = [k.__name__ for k in kind.__mro__ if k.__module__.startswith(_THEIRS)]
    return next((_OURS[name] for name in theirs if name in _OURS), None)


def _join(kind: type, base: type) -> type:
    class Joined(type(kind)):  # type: ignore[misc]
        def mro(cls) -> list[type]:
            usual = super().mro()
            theirs = [k for k in usual if k.__module__.startswith(_THEIRS)]
            others = [k for k in usual if k not in theirs]
            end = 1 + max(i for i, k in enumerate(others) if k.__module__.startswith("lightning."))
            return [*others[:end], *theirs, *others[end:]]

    joined: type = Joined(kind.__name__, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    return joined
