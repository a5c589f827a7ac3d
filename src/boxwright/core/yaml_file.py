"""YAML with the numbers and booleans of version 1.2: 1e-3 is a number; yes, 012 and 1:30 are text."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from boxwright.core.errors import UsageError

_MOST_VALUES = 200_000


def dump(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML text."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def parse(text: str, *, plain: bool = False) -> Any:
    """Return the value of a YAML text.

    Args:
        text: YAML.
        plain: leave every scalar as it is written: `no`, `012`, `1e3` and `null` are text. Merges (`<<`) are known.

    Raises:
        yaml.YAMLError: it is not YAML, is nested too deeply, or its aliases expand to too many values.
    """
    try:
        return yaml.load(text, Loader=_PlainLoader if plain else _Loader)
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply") from error


def read_file(path: Path) -> Mapping[Any, Any]:
    """Return the settings of a file, as plain values.

    Raises:
        UsageError: it can't be read, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = parse(text)
    except FileNotFoundError:
        raise UsageError(f"Config file {str(path)!r} does not exist. Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Config file {str(path)!r} can't be read as text: {error}.") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"Config file {str(path)!r} is not valid YAML: line {line}: {error.problem}.") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"Config file {str(path)!r} is not valid YAML: line {line}: {error.reason}.") from None
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise UsageError(f"Config file {str(path)!r} must hold lines of `key: value`, not {type(values).__name__}.")
    return values


class _Strict(yaml.SafeLoader):
    """Refuses repeated keys, and aliases that expand to too many values: ten lines can mean 9^10."""

    def get_single_node(self) -> yaml.Node | None:
        """Return the document's root."""
        root = super().get_single_node()
        if root is not None:
            _count(root, {})
        return root

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; a repeated key is an error."""
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise _broken(f"key {key.value!r} is given twice", key)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return a value; an unreadable one is an error with a line number."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError) as error:  # `!!int x`, `!!timestamp x`, a number of 5,000 digits
            raise _broken("unreadable value", node) from error


class _Loader(_Strict):
    """Knows the numbers and booleans of version 1.2."""


class _PlainLoader(_Strict):
    """Knows no numbers, booleans or nulls."""


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node has when all aliases are replaced."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in known:
        if not known[id(node)]:
            raise _broken("an alias inside of what it names", node)
        return known[id(node)]
    known[id(node)] = 0  # not known yet
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    total = 1 + sum(_count(part, known) for part in parts)
    if total > _MOST_VALUES:
        raise _broken(f"more than {_MOST_VALUES:,} values, counting what its aliases repeat", node)
    known[id(node)] = total
    return total


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either version of YAML would read as something other than text."""

    def represent_flat_list(self, values: list[Any]) -> yaml.Node:
        """Return a list of numbers on one line, any other list on several."""
        in_one_line = all(isinstance(value, int | float) for value in values)
        return self.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=in_one_line)

    def represent_text(self, value: str) -> yaml.Node:
        """Return text in the quotes that it needs."""
        # Only double quotes keep all line breaks, such as U+0085.
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


def _broken(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.yaml_implicit_resolvers, _PlainLoader.yaml_implicit_resolvers = {}, {}
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])
_Dumper.add_representer(list, _Dumper.represent_flat_list)
_Dumper.add_representer(str, _Dumper.represent_text)
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", list("-+0123456789")),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
):
    for _dialect in (_Loader, _Dumper):
        _dialect.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
