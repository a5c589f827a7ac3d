"""Nested values as a flat list of leaves and a JSON template from which they are rebuilt."""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from boxwright.core.errors import UsageError

Template = dict[str, Any]
"""One of {"leaf": i}, {"list": []}, {"tuple": []}, {"record": name, "fields": {}}, {"dict": {}}, {"output": {}} for a
mapping whose values are attributes too, {"value": x}."""


class Output(dict[str, Any]):
    """A dictionary whose values are attributes too, and reached by position, as Hugging Face's `ModelOutput`.

    Example:
        >>> output = Output(logits=1, hidden=2)
        >>> output.logits, output["hidden"], output[0], output.to_tuple()
        (1, 2, 1, (1, 2))
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"The output has no {name!r}. It has: {', '.join(self)}.")

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values."""
        return tuple(self.values())


def flatten(value: Any) -> tuple[list[Any], Template]:
    """Return the leaves of a nested value (everything with a shape), and the template of what is around them.

    Lists, tuples, named tuples and mappings with text keys may be nested; None, text and plain numbers are part of
    the template.

    Raises:
        UsageError: something in there is neither an array nor one of these.

    Example:
        >>> import numpy as np
        >>> leaves, template = flatten({"a": np.zeros(2), "b": [np.ones(1), None]})
        >>> len(leaves), rebuild(template, ["x", "y"])
        (2, {'a': 'x', 'b': ['y', None]})
    """
    leaves: list[Any] = []
    return leaves, _describe(value, leaves)


def rebuild(template: Template, leaves: Sequence[Any]) -> Any:
    """Return the nested value that a template describes, with these leaves in it."""
    ((kind, content), *rest) = template.items()
    if kind == "leaf":
        return leaves[content]
    if kind == "list":
        return [rebuild(t, leaves) for t in content]
    if kind == "tuple":
        return tuple(rebuild(t, leaves) for t in content)
    if kind == "record":
        fields: dict[str, Template] = rest[0][1]
        return namedtuple(content, list(fields))(*(rebuild(t, leaves) for t in fields.values()))
    if kind == "dict":
        return {key: rebuild(t, leaves) for key, t in content.items()}
    if kind == "output":
        return Output({key: rebuild(t, leaves) for key, t in content.items()})
    return content


def leaf_names(template: Template, prefix: str) -> list[str]:
    """Return one readable, unique name for each leaf, by the keys and fields on the way to it."""
    ((kind, content), *rest) = template.items()
    if kind == "leaf":
        return [prefix]
    if kind in ("list", "tuple"):
        parts = [(f"{prefix}_{i}", t) for i, t in enumerate(content)]
    elif kind == "record":
        parts = list(rest[0][1].items())
    elif kind in ("dict", "output"):
        parts = list(content.items())
    else:
        return []
    return [name for part, t in parts for name in leaf_names(t, part)]


def call_parts(call: Template) -> tuple[list[Template], dict[str, Template]]:
    """Return the templates of positional and keyword inputs of a call's template."""
    positional, keyword = call["tuple"]
    return positional["tuple"], keyword["dict"]


def place_leaves(template: Template, value: Any, leaves: list[Any], what: str) -> None:
    """Put the leaves of a value where its template has them; keys of mappings may come in any order.

    Raises:
        UsageError: the value differs in structure from the template; `what` names it.
    """
    ((kind, content), *rest) = template.items()
    if kind == "leaf":
        if not (hasattr(value, "shape") and hasattr(value, "dtype")) and type(value) not in (bool, int, float):
            raise UsageError(f"{what} takes an array or tensor, not a {type(value).__name__}.")
        leaves[content] = value
        return
    if kind == "value":
        if type(value) is not type(content) or value != content:
            raise UsageError(
                f"{what} is the constant {content!r} of the converted model, not {value!r}. Leave it out, or convert "
                "the model with an example that has the other value."
            )
        return
    fields = list(rest[0][1].values()) if kind == "record" else content
    parts: dict[Any, Template] = dict(enumerate(fields)) if isinstance(fields, list) else fields
    given = dict(value) if isinstance(value, Mapping) else dict(enumerate(value)) if _is_list(value) else {}
    if (kind in ("dict", "output")) != isinstance(value, Mapping) or set(given) != set(parts):
        wanted = "a dictionary with" if kind in ("dict", "output") else "a list or tuple with the places"
        raise UsageError(
            f"{what} must be {wanted} {', '.join(map(repr, parts))}, as in the example; this {type(value).__name__} "
            f"has {', '.join(map(repr, given)) or 'none'}."
        )
    for key, part in parts.items():
        place_leaves(part, given[key], leaves, f"{what}[{key!r}]")


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _describe(value: Any, leaves: list[Any]) -> Template:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        leaves.append(value)
        return {"leaf": len(leaves) - 1}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = {name: _describe(part, leaves) for name, part in zip(value._fields, value, strict=True)}
        return {"record": type(value).__name__, "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_describe(part, leaves) for part in value]}
    if isinstance(value, list):
        return {"list": [_describe(part, leaves) for part in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        kind = "output" if value and all(getattr(value, key, None) is part for key, part in value.items()) else "dict"
        return {kind: {key: _describe(part, leaves) for key, part in value.items()}}
    if value is None or isinstance(value, str | int | float | bool):
        return {"value": value}
    raise UsageError(
        f"A value of type {type(value).__name__!r} can't be an input or output of a converted model. "
        "Use arrays or tensors in lists, tuples or dictionaries with text keys."
    )
