"""`Source`: a torch model with an example of its call; every conversion starts from one."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.batches import parameters_of
from boxwright.core.errors import ConversionError, UsageError, suggest
from boxwright.core.signature import Array, Port, Signature, port_names, refuse_bfloat16
from boxwright.core.structure import Template, flatten, leaf_names, rebuild

PREFIX = "model."
"""Where a flat model holds the user's."""


Axes = Sequence[Collection[int]]
"""The axes of each flat input that may have any size, beside the batch."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Inputs of other sizes than the example's.

    Attributes:
        inputs: the flat inputs.
        needed: whether a conversion must take them; if not, it may fail on them, but not return anything else.
    """

    inputs: tuple[Array, ...]
    needed: bool = True


def check_names(keep_float: Iterable[str], known: Collection[str]) -> None:
    """Check that the modules to keep in float exist.

    Raises:
        UsageError: one does not.
    """
    for name in keep_float:
        if name not in known:
            raise UsageError(f"keep_float names {name!r}, which is not a module of the model.{suggest(name, known)}")


class FlatModule(nn.Module):
    """A model that takes flat tensors and returns a tuple of tensors."""

    def __init__(self, model: nn.Module, call: Template) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the model's output tensors, flat."""
        args, kwargs = rebuild(self.call, tensors)
        return tuple(flatten(self.model(*args, **kwargs))[0])


@dataclass(frozen=True, slots=True)
class Source:
    """A model in evaluation mode, an example of its flat inputs, and the signature found by running it.

    Attributes:
        model: the model.
        example: its flat inputs.
        signature: its inputs and outputs; None in a shape stands for an axis of any size.
        variants: inputs of other sizes along the free axes, for a comparison with what a conversion gives.
        notes: what could not be done as asked.
    """

    model: nn.Module
    example: tuple[Tensor, ...]
    signature: Signature
    variants: tuple[Variant, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        free_batch: bool = True,
        axes: Axes | None = None,
        seen: Sequence[Sequence[Array]] = (),
    ) -> "Source":
        """Return the source for a model and an example call, which is run to see what comes out.

        The model itself is never changed; conversions work on the copy that `flat` returns.

        Args:
            model: any module.
            args: positional inputs of one call; numpy arrays become tensors.
            kwargs: keyword inputs of that call.
            free_batch: let the first axis have any size, if the outputs follow it.
            axes: other axes of each input that may have any size, if the model takes others; see `dynamic.find_axes`.
            seen: flat inputs of other sizes, from the user's data.

        Raises:
            UsageError: an input or output is of a kind that no converted model supports.
            ConversionError: the model fails on the example.
        """
        leaves, call = flatten((tuple(args), _without_cache(model, args, dict(kwargs or {}))))
        if not leaves:
            raise UsageError("The example call holds no tensor. Give one tensor or array for each input of the model.")
        for leaf in leaves:
            refuse_bfloat16(leaf)
        example = tuple(torch.as_tensor(leaf).detach().clone() for leaf in leaves)
        outputs, result = run_model(model, call, example)
        parameters, defaults = _parameters(model, args, kwargs or {})
        names = _input_names(call, parameters)
        ports = [Port(name=n, dtype=_dtype(t), shape=tuple(t.shape)) for n, t in zip(names, example, strict=True)]
        results = [
            Port(name=name, dtype=_dtype(tensor), shape=tuple(tensor.shape))
            for name, tensor in zip(port_names(leaf_names(result, "output"), names), outputs, strict=True)
        ]
        fixed = Signature(
            inputs=tuple(ports),
            outputs=tuple(results),
            call=call,
            result=result,
            parameters=tuple(parameters),
            defaults=defaults,
        )
        return free_axes(cls(model, example, fixed), free_batch=free_batch, axes=axes, seen=seen)

    def relaxed(self) -> Iterator["Source"]:
        """Yield the source, and then those with fewer free axes that a runtime may be able to convert instead."""
        yield self
        free = self.signature.free_batch
        if free and any(None in port.shape[1:] for port in self.signature.inputs):
            yield free_axes(self._fixed())
        if any(None in port.shape for port in self.signature.inputs):
            yield self._fixed()

    def _fixed(self) -> "Source":
        inputs = tuple(
            replace(p, shape=tuple(t.shape)) for p, t in zip(self.signature.inputs, self.example, strict=True)
        )
        outputs, _ = run_model(self.model, self.signature.call, self.example)
        results = tuple(replace(p, shape=tuple(t.shape)) for p, t in zip(self.signature.outputs, outputs, strict=True))
        return Source(self.model, self.example, replace(self.signature, inputs=inputs, outputs=results))

    def fitting(self, samples: Sequence[tuple[Array, ...]]) -> list[tuple[Array, ...]]:
        """Return the samples of shapes that the signature takes: of a batch that is too large, its first rows."""
        rows = None if self.signature.free_batch or not self.example[0].ndim else self.example[0].shape[0]
        cut = [s if rows is None else tuple(a[:rows] if a.ndim else a for a in s) for s in samples]
        ports = self.signature.inputs
        return [s for s in cut if all(p.accepts_shape(a.shape) for p, a in zip(ports, s, strict=True))]

    @property
    def free(self) -> tuple[tuple[int, ...], ...]:
        """The free axes of each input."""
        return tuple(tuple(i for i, n in enumerate(p.shape) if n is None) for p in self.signature.inputs)

    def roomy(self) -> tuple[Tensor, ...]:
        """Return the example with at least two entries along the free axes: exporters take one of size 1 for fixed."""
        example = list(self.example)
        for i, axes in enumerate(self.free):
            for axis in axes:
                if example[i].shape[axis] == 1:
                    example[i] = torch.cat((example[i], example[i]), axis)
        return tuple(example)

    def flat(self) -> FlatModule:
        """Return a copy of the model with a flat call, in evaluation mode; the caller may change it."""
        flat = FlatModule(copy_model(self.model), self.signature.call).eval()
        for part in flat.modules():
            if hasattr(
                part, "_jit_is_scripting"
            ):  # Lightning's switch: torch.jit reads `trainer`, which raises without
                vars(part)["_jit_is_scripting"] = True
            if isinstance(part, nn.TransformerEncoderLayer):
                # Its fast path is one operator that reads its layers' weights, even after they were replaced.
                part.activation_relu_or_gelu = 0
        return flat

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the model's own outputs for flat inputs: what every converted form is compared with."""
        outputs, _ = run_model(self.model, self.signature.call, tuple(torch.as_tensor(a) for a in inputs))
        return tuple((t.float() if t.is_floating_point() else t).cpu().numpy() for t in outputs)


def run_model(model: nn.Module, call: Template, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Template]:
    """Return the outputs and their template, with the model in evaluation mode during the call."""
    args, kwargs = rebuild(call, inputs)
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.inference_mode():
            leaves, result = flatten(model.eval()(*args, **kwargs))
    except UsageError:
        raise
    except Exception as error:  # a user's model may raise anything
        shapes = [tuple(t.shape) for t in inputs]
        raise ConversionError(f"The model fails on inputs of the shapes {shapes!r}: {error!r}") from error
    finally:
        for module, mode in modes:
            module.training = mode
    return tuple(leaves), result


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model; a Lightning module is copied without its trainer."""
    trainer = vars(model).get("_trainer")
    memo = {} if trainer is None else {id(trainer): None}
    return deepcopy(model, memo)


def _without_cache(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword inputs, with `use_cache=False` for a language model: its cache is not an array."""
    known = [p.name for p in parameters_of(model.forward) or ()]
    if "use_cache" in known[len(args) :] and "use_cache" not in kwargs and "past_key_values" not in kwargs:
        return kwargs | {"use_cache": False}
    return kwargs


def _parameters(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[str], dict[str, Template]]:
    """Return the names of `forward`'s positional parameters, and the plain defaults of those not given."""
    known = parameters_of(model.forward) or []
    names = [p.name for p in known if p.kind is p.POSITIONAL_OR_KEYWORD]
    given = {*names[: len(args)], *kwargs}
    defaults = {
        p.name: {"value": p.default}
        for p in known
        if p.name not in given and (p.default is None or isinstance(p.default, str | int | float | bool))
    }
    return names, defaults


def _input_names(call: Template, known: Sequence[str]) -> list[str]:
    positional, keyword = call["tuple"]
    names: list[str] = []
    for i, part in enumerate(positional["tuple"]):
        names += leaf_names(part, known[i] if i < len(known) else f"input_{i}")
    return port_names(names + leaf_names(keyword, "input"))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def free_axes(
    source: Source, *, free_batch: bool = True, axes: Axes | None = None, seen: Sequence[Sequence[Array]] = ()
) -> Source:
    """Return a source of fixed shapes with those axes free along which the model takes other sizes too.

    The model is run on inputs of other sizes, which become the variants: those of the user's data where they differ,
    else the example's with its entries repeated.
    """
    variants: list[Variant] = []
    shapes: list[tuple[Port, ...]] = [source.signature.inputs, source.signature.outputs]
    example = source.example

    def learn(inputs: Sequence[Tensor], *, needed: bool = True) -> bool:
        """Run the model on a variant, and keep it with the axes that it shows to be free."""
        try:
            outputs, result = run_model(source.model, source.signature.call, tuple(inputs))
        except ConversionError:
            return False
        if result != source.signature.result or [t.ndim for t in outputs] != [len(p.shape) for p in shapes[1]]:
            return False
        for place, tensors in enumerate((inputs, outputs)):
            shapes[place] = tuple(
                replace(p, shape=tuple(n if n == m else None for n, m in zip(p.shape, t.shape, strict=True)))
                for p, t in zip(shapes[place], tensors, strict=True)
            )
        variants.append(Variant(tuple(t.numpy() for t in inputs), needed))
        return True

    notes: list[str] = []
    for group in _groups(example, axes or ()):
        name = " and ".join(f"axis {axis} of {source.signature.inputs[i].name!r}" for i, axis in group)
        others = [[torch.as_tensor(a) for a in arrays] for arrays in seen if _differs(arrays, example, group)]
        tried = [*others[:1], _resized(example, group, 2.0), _resized(example, group, 0.5)]
        if not any(learn(inputs) for inputs in tried):
            notes.append(f"the model takes no other size along {name}")
            continue
        learn(_resized(example, group, 1), needed=False)
    rows = {t.shape[0] for t in example if t.ndim}
    if free_batch and len(rows) == 1 and all(t.ndim for t in example) and _follows_batch(source):
        learn([torch.cat((t, t[:1])) for t in example])
    inputs, outputs = shapes
    signature = replace(source.signature, inputs=inputs, outputs=outputs)
    return replace(source, signature=signature, variants=tuple(variants), notes=tuple(notes))


def _groups(example: Sequence[Tensor], axes: Axes) -> list[list[tuple[int, int]]]:
    """Return the (input, axis) pairs that have one size together: the same axis and the same size."""
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, (tensor, wanted) in enumerate(zip(example, axes, strict=False)):
        for axis in wanted:
            groups.setdefault((axis, tensor.shape[axis]), []).append((i, axis))
    return list(groups.values())


def _differs(arrays: Sequence[Array], example: Sequence[Tensor], group: Sequence[tuple[int, int]]) -> bool:
    return all(arrays[i].shape[axis] != example[i].shape[axis] for i, axis in group)


def _resized(example: Sequence[Tensor], group: Sequence[tuple[int, int]], by: float) -> list[Tensor]:
    """Return the example with other sizes along some axes: times a factor, or for the integer 1 with one entry more."""
    tensors = list(example)
    for i, axis in group:
        size = tensors[i].shape[axis]
        wanted = size + 1 if by == 1 else max(1, round(size * by))
        index = torch.arange(wanted) % size
        tensors[i] = tensors[i].index_select(axis, index)
    return tensors


def _follows_batch(source: Source) -> bool:
    """Return whether all outputs have one more row for one more row of the inputs, and else the same shapes."""
    rows = source.example[0].shape[0]
    before = source.signature.outputs
    try:
        after, _ = run_model(source.model, source.signature.call, tuple(torch.cat((t, t[:1])) for t in source.example))
    except ConversionError:
        return False
    return len(before) == len(after) and all(
        len(a.shape) == b.ndim
        and b.ndim > 0
        and (a.shape[0], b.shape[0]) == (rows, rows + 1)
        and a.shape[1:] == b.shape[1:]
        for a, b in zip(before, after, strict=True)
    )
