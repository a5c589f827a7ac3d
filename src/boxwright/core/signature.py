"""`Signature`: the inputs and outputs of any model, as flat arrays."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import UsageError
from boxwright.core.structure import Template, call_parts, flatten, leaf_names, place_leaves, rebuild

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or output: `shape` holds None where any size is accepted (the batch)."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def accepts_shape(self, shape: Sequence[int]) -> bool:
        """Return whether a shape fits."""
        return len(shape) == len(self.shape) and all(
            want in (None, have) for want, have in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The inputs and outputs of a model.

    Attributes:
        inputs: the input arrays, in the order of `flatten_call`.
        outputs: the output arrays.
        call: the template of (args, kwargs).
        result: the template of what the model returns.
        parameters: the names that positional inputs go by, in their order.
        defaults: the templates of parameters that the example left out.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    call: Template
    result: Template
    parameters: tuple[str, ...] = ()
    defaults: Mapping[str, Template] = field(default_factory=dict)

    def flatten_call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Array]:
        """Return the flat arrays of a call, in the types that the model was converted with.

        An input may be given by position or by name. Constants of the example, and parameters that it left out, may be
        left out, or given with the same value.

        Raises:
            UsageError: the call differs in structure from the converted one, or a shape does not fit.

        Example:
            >>> port = Port(name="x", dtype="float32", shape=(None,))
            >>> call = {"tuple": [{"tuple": [{"leaf": 0}]}, {"dict": {}}]}
            >>> signature = Signature(inputs=(port,), outputs=(), call=call, result={"tuple": []}, parameters=("x",))
            >>> signature.flatten_call((), {"x": [1.0]})
            Traceback (most recent call last):
            boxwright.core.errors.UsageError: Input 'x' takes an array or tensor, not a list.
            >>> signature.flatten_call((), {"x": np.ones(2)})
            [array([1., 1.], dtype=float32)]
        """
        return self.check([np.asarray(leaf) for leaf in self.find_leaves(args, kwargs)])

    def find_leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the inputs of a call in the signature's order, whatever their shapes; see `flatten_call`."""
        leaves, template = flatten((tuple(args), dict(kwargs or {})))
        return leaves if template == self.call else self._match(args, kwargs or {})

    def _match(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        expected, given = self._by_name(*call_parts(self.call)), self._by_name(args, kwargs)
        leaves: list[Any] = [None] * len(self.inputs)
        for name, template in expected.items():
            if name in given:
                place_leaves(template, given.pop(name), leaves, _describe(name))
            elif leaf_names(template, ""):
                raise UsageError(
                    f"{_describe(name)} is missing. The model was converted for: {', '.join(map(str, expected))}."
                )
        for name, value in given.items():
            default = self.defaults.get(str(name))
            if default is None or flatten(value) != ([], default):
                known = ", ".join(map(str, expected))
                raise UsageError(
                    f"{_describe(name)} was not part of the example that the model was converted with: it takes "
                    f"{known}. Leave it out, or convert the model with an example that has it."
                )
        return leaves

    def _by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str | int, Any]:
        names = [*self.parameters[: len(args)], *range(len(self.parameters), len(args))]
        for name in set(names) & set(kwargs):
            raise UsageError(f"{_describe(name)} is given twice: by position and by name.")
        return dict(zip(names, args, strict=True)) | dict(kwargs)

    def names(self) -> list[str]:
        """Return the names of the example's inputs and constants, as far as they have one."""
        return [name for name in self._by_name(*call_parts(self.call)) if isinstance(name, str)]

    def constants(self) -> list[str]:
        """Return the names of what is the same in every call."""
        parts = self._by_name(*call_parts(self.call))
        return [name for name, part in parts.items() if isinstance(name, str) and not leaf_names(part, "")]

    def check(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the inputs converted to the signature's types; raises as `check_shapes`."""
        self.check_shapes(arrays)
        return [a.astype(p.dtype, copy=False) for p, a in zip(self.inputs, arrays, strict=True)]

    def check_shapes(self, arrays: Sequence[Array]) -> None:
        """Check that inputs fit.

        Raises:
            UsageError: the number of inputs or a shape does not fit.
        """
        if len(arrays) != len(self.inputs):
            raise UsageError(f"The model takes {len(self.inputs)} inputs, not {len(arrays)}.")
        for port, array in zip(self.inputs, arrays, strict=True):
            if not port.accepts_shape(array.shape):
                raise UsageError(
                    f"Input {port.name!r} takes the shape {port.shape!r} (None: any size), not {array.shape!r}."
                )

    def build_result(self, arrays: Sequence[Any]) -> Any:
        """Return flat outputs in the structure that the model returns."""
        return rebuild(self.result, arrays)

    @property
    def free_batch(self) -> bool:
        """Whether the first axis of every input may have any size."""
        return all(p.shape and p.shape[0] is None for p in self.inputs)

    def to_dict(self) -> dict[str, Any]:
        """Return the signature as plain JSON values."""
        return {
            "inputs": [asdict(p) | {"shape": list(p.shape)} for p in self.inputs],
            "outputs": [asdict(p) | {"shape": list(p.shape)} for p in self.outputs],
            "call": self.call,
            "result": self.result,
            "parameters": list(self.parameters),
            "defaults": dict(self.defaults),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Signature":
        """Return the signature that `to_dict` described.

        Raises:
            ValueError: it is not a signature; KeyError, TypeError and AttributeError mean the same.
        """
        inputs, outputs = (
            tuple(
                Port(
                    name=str(v["name"]),
                    dtype=str(v["dtype"]),
                    shape=tuple(None if size is None else int(size) for size in v["shape"]),
                )
                for v in values[key]
            )
            for key in ("inputs", "outputs")
        )
        for port in inputs:
            if np.dtype(port.dtype).kind not in "biufc" or any(size is not None and size < 0 for size in port.shape):
                raise ValueError(f"{port!r} is not an input")
        signature = cls(
            inputs=inputs,
            outputs=outputs,
            call=values["call"],
            result=values["result"],
            parameters=tuple(map(str, values.get("parameters", ()))),
            defaults=dict(values.get("defaults", {})),
        )
        # A call and a result that can't be built would fail at the first request.
        rebuild(signature.call, inputs)
        rebuild(signature.result, outputs)
        return signature


def port_names(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Return the names as unique identifiers that every file format takes.

    Example:
        >>> port_names(["a b", "x", "x"])
        ['a_b', 'x', 'x_1']
    """
    used = set(taken)
    result: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name) or "value"
        unique, count = plain, 0
        while unique in used:
            count += 1
            unique = f"{plain}_{count}"
        used.add(unique)
        result.append(unique)
    return result


def _describe(name: str | int) -> str:
    return f"Input {name!r}" if isinstance(name, str) else f"The input at position {name}"


def refuse_bfloat16(value: Any) -> None:
    """Refuse a tensor that can't become an array.

    Raises:
        UsageError: it is bfloat16.
    """
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        raise UsageError(
            "An input is bfloat16, which converted models do not take: numpy has no such numbers. Give float32 inputs, "
            "and the model in float32 (model.float()); the bf16 methods compute in bfloat16 inside."
        )
