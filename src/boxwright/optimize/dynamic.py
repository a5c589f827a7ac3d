"""Which axes of a model's inputs may have any size."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from boxwright.core.batches import Call
from boxwright.core.errors import ConversionError, UsageError, check_choice
from boxwright.core.signature import Array, Signature

Dynamic = bool | str | Sequence[str] | Mapping[str, Collection[int]] | None
"""None for the batch and what varies in the data; True for everything that the model takes in other sizes; False for
nothing; names of `NAMES`; or the axes of each input, by its name."""
NAMES = ("batch", "height", "width", "sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeAxes:
    """What `dynamic=` asks for, and inputs of other sizes from the user's data; `quiet` leaves out what stays fixed.

    Example:
        >>> FreeAxes(dynamic="hight")
        Traceback (most recent call last):
        boxwright.core.errors.UsageError: Unknown dynamic 'hight'. Did you mean 'height'? Choose from: ...
    """

    dynamic: Dynamic = None
    seen: tuple[tuple[Array, ...], ...] = ()
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in self._names():
            check_choice("dynamic", name, NAMES)

    def make_source(self, model: Any, call: Call) -> Any:
        """Return the source of a model and an example call, with these axes free.

        Raises:
            UsageError: an axis was asked for by name that no input has, or along which the model takes no other size.
            ConversionError: the model fails on the example.
        """
        from boxwright.runtimes.source import Source, free_axes  # imports torch

        fixed = Source.of(model, *call, free_batch=False)
        arrays = [t.numpy() for t in fixed.example]
        axes = self._find(fixed.signature, arrays, speaks=hasattr(model, "generate"))
        batch = self.dynamic in (None, True) or "batch" in self._names() or any(0 in found for found in axes)
        inner = [[axis for axis in found if axis] for found in axes]
        source = free_axes(fixed, free_batch=batch, axes=inner, seen=self.seen)
        if not self._asked:
            return source if self.dynamic is True and not self.quiet else replace(source, notes=())
        missing = self._missing(source.signature)
        if missing:
            raise UsageError(
                f"dynamic={self.dynamic!r} is not possible: the model takes no other size along {', '.join(missing)}."
            )
        return source

    def check(self, signature: Signature, note: str) -> None:
        """Check that a converted model has the axes free that were asked for by name.

        Raises:
            ConversionError: one is fixed; `note` says why.
        """
        missing = self._missing(signature) if self._asked else []
        if missing:
            raise ConversionError(
                f"dynamic={self.dynamic!r} is not possible with this runtime: {note or ', '.join(missing)}. "
                "Leave out dynamic to get a model for the sizes that work."
            )

    @property
    def _asked(self) -> bool:
        return not (self.dynamic is None or isinstance(self.dynamic, bool))

    def _names(self) -> tuple[str, ...]:
        if self.dynamic is None or isinstance(self.dynamic, bool | Mapping):
            return ()
        return (self.dynamic,) if isinstance(self.dynamic, str) else tuple(self.dynamic)

    def _find(self, signature: Signature, example: Sequence[Array], *, speaks: bool) -> list[list[int]]:
        if isinstance(self.dynamic, Mapping):
            known = [port.name for port in signature.inputs]
            for name in self.dynamic:
                check_choice("dynamic", name, known)
            found = [list(self.dynamic.get(name, ())) for name in known]
            for name, axes, array in zip(known, found, example, strict=True):
                if any(not 0 <= axis < array.ndim for axis in axes):
                    raise UsageError(f"dynamic={axes!r} for {name!r} is not possible: it has {array.ndim} axes.")
            return found
        if self.dynamic is False:
            return [[] for _ in example]
        if self.dynamic is None:
            found = []
            for i, array in enumerate(example):
                others = [s[i] for s in self.seen if s[i].ndim == array.ndim]
                axes = [a for a in range(1, array.ndim) if any(o.shape[a] != array.shape[a] for o in others)]
                # A language model is called with longer and longer texts.
                grows = speaks and array.ndim == 2 and array.dtype.kind in "iub" and 1 not in axes
                found.append([*axes, 1] if grows else axes)
            return found
        wanted = NAMES if self.dynamic is True else self._names()
        return [[axis for name in wanted if (axis := _axis(name, array.ndim)) is not None] for array in example]

    def _missing(self, signature: Signature) -> list[str]:
        """Return what was asked for by name and is fixed."""
        if isinstance(self.dynamic, Mapping):
            ports = {port.name: port for port in signature.inputs}
            return [
                f"axis {axis} of {name!r}"
                for name, axes in self.dynamic.items()
                for axis in axes
                if ports[name].shape[axis] is not None
            ]
        return [
            name
            for name in self._names()
            if not any(
                (axis := _axis(name, len(port.shape))) is not None and port.shape[axis] is None
                for port in signature.inputs
            )
        ]


def _axis(name: str, count: int) -> int | None:
    """Return the axis that a name means for an input with so many axes."""
    if name == "batch":
        return 0 if count else None
    if name == "sequence":
        return 1 if count in (2, 3) else None
    if count not in (4, 5):
        return None
    return count - 2 if name == "height" else count - 1
