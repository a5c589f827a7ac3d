"""`Source`: a torch model with an example of its call; every conversion starts from one."""

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.errors import ConversionError, UsageError, suggest
from boxwright.core.signature import Array, Port, Signature, port_names, refuse_bfloat16
from boxwright.core.structure import Template, flatten, leaf_names, rebuild

PREFIX = "model."
"""Where a flat model holds the user's."""


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
    """A model in evaluation mode, an example of its flat inputs, and the signature found by running it."""

    model: nn.Module
    example: tuple[Tensor, ...]
    signature: Signature

    @classmethod
    def of(
        cls, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, free_batch: bool = True
    ) -> "Source":
        """Return the source for a model and an example call, which is run to see what comes out.

        The model itself is never changed; conversions work on the copy that `flat` returns.

        Args:
            model: any module.
            args: positional inputs of one call; numpy arrays become tensors.
            kwargs: keyword inputs of that call.
            free_batch: let the first axis have any size, if the outputs follow it.

        Raises:
            UsageError: an input or output is of a kind that no converted model supports.
            ConversionError: the model fails on the example.
        """
        leaves, call = flatten((tuple(args), dict(kwargs or {})))
        if not leaves:
            raise UsageError("The example call holds no tensor. Give one tensor or array for each input of the model.")
        for leaf in leaves:
            refuse_bfloat16(leaf)
        example = tuple(torch.as_tensor(leaf).detach().clone() for leaf in leaves)
        outputs, result = _run(model, call, example)
        sizes = {t.shape[0] for t in example if t.ndim}
        more = (
            _run_bigger(model, call, example)
            if free_batch and len(sizes) == 1 and all(t.ndim for t in example)
            else None
        )
        free = more is not None
        inputs = tuple(
            Port(name=name, dtype=_dtype(t), shape=(None, *t.shape[1:]) if free else tuple(t.shape))
            for name, t in zip(_input_names(model, call), example, strict=True)
        )
        names = port_names(leaf_names(result, "output"), [p.name for p in inputs])
        ports = []
        for i, (name, tensor) in enumerate(zip(names, outputs, strict=True)):
            shape: tuple[int | None, ...] = tuple(tensor.shape)
            if more is not None:
                shape = tuple(a if a == b else None for a, b in zip(tensor.shape, more[i].shape, strict=True))
            ports.append(Port(name=name, dtype=_dtype(tensor), shape=shape))
        return cls(model, example, Signature(inputs=inputs, outputs=tuple(ports), call=call, result=result))

    def flat(self) -> FlatModule:
        """Return a copy of the model with a flat call, in evaluation mode; the caller may change it."""
        flat = FlatModule(deepcopy(self.model), self.signature.call).eval()
        for part in flat.modules():
            if isinstance(part, nn.TransformerEncoderLayer):
                # Its fast path is one operator that reads its layers' weights, even after they were replaced.
                part.activation_relu_or_gelu = 0
        return flat

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the model's own outputs for flat inputs: what every converted form is compared with."""
        outputs, _ = _run(self.model, self.signature.call, tuple(torch.as_tensor(a) for a in inputs))
        return tuple((t.float() if t.is_floating_point() else t).cpu().numpy() for t in outputs)


def _run(model: nn.Module, call: Template, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Template]:
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


def _run_bigger(model: nn.Module, call: Template, example: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Return the outputs for one more row in the batch, or None if the model does not follow."""
    rows = example[0].shape[0]
    try:
        before, _ = _run(model, call, example)
        after, _ = _run(model, call, tuple(torch.cat((t, t[:1])) for t in example))
    except ConversionError:
        return None
    follows = len(before) == len(after) and all(
        a.ndim == b.ndim and a.ndim > 0 and (a.shape[0], b.shape[0]) == (rows, rows + 1) and a.shape[1:] == b.shape[1:]
        for a, b in zip(before, after, strict=True)
    )
    return after if follows else None


def _input_names(model: nn.Module, call: Template) -> list[str]:
    positional, keyword = call["tuple"]
    try:
        parameters = [p for p in inspect.signature(model.forward).parameters.values() if p.kind < p.VAR_POSITIONAL]
        known = [p.name for p in parameters]
    except (TypeError, ValueError):
        known = []
    names: list[str] = []
    for i, part in enumerate(positional["tuple"]):
        names += leaf_names(part, known[i] if i < len(known) else f"input_{i}")
    return port_names(names + leaf_names(keyword, "input"))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
