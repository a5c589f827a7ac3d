"""Nested values as a flat list of leaves and a JSON template from which they are rebuilt."""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from boxwright.core.errors import UsageError

Template = dict[str, Any]
"""One of {"leaf": i}, {"list": []}, {"tuple": []}, {"record": name, "fields": {}}, {"dict": {}}, {"value": x}."""


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
    elif kind == "dict":
        parts = list(content.items())
    else:
        return []
    return [name for part, t in parts for name in leaf_names(t, part)]


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
        return {"dict": {key: _describe(part, leaves) for key, part in value.items()}}
    if value is None or isinstance(value, str | int | float | bool):
        return {"value": value}
    raise UsageError(
        f"A value of type {type(value).__name__!r} can't be an input or output of a converted model. "
        "Use arrays or tensors in lists, tuples or dictionaries with text keys."
    )
