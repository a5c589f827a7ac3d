"""Settings as frozen dataclasses: read from one YAML file, overridden by words of the command line, checked by type.

One YAML file is one complete run: there are no includes and no inheritance.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from boxwright.core.errors import UsageError, suggest


class DataclassInstance(Protocol):
    """Any instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Config = TypeVar("Config", bound=DataclassInstance)

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")
_SWITCHES = {"yes": True, "on": True, "no": False, "off": False}


def load_config(cls: type[Config], path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Return the settings of a YAML file, or the defaults without one, with `overrides` on top.

    Args:
        cls: the frozen dataclass that names the settings and their types.
        path: the YAML file.
        overrides: words such as `max_epoch 300 optimizer.lr=0.1`; see `parse_overrides`.

    Raises:
        UsageError: the file can't be read, or a key or value does not fit `cls`.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, slots=True, kw_only=True)
        ... class Run:
        ...     lr: float
        ...     epochs: int = 10
        >>> load_config(Run, None, ["lr=1e-3", "epochs", "3"])
        Run(lr=0.001, epochs=3)
    """
    given: dict[str, Any] = {}
    if path is not None:
        values = _read(path)
        try:
            given = _convert_group(cls, values, "")
        except UsageError as error:
            raise UsageError(f"Config file {str(path)!r}: {error}") from None
    for key, text in _split(overrides).items():
        _apply(cls, given, key, text)
    return _build(cls, given, "", None)


def parse_overrides(tokens: Sequence[str]) -> dict[str, Any]:
    """Return the settings that command line words give, by key, each value read as YAML.

    `key value` pairs and `key=value` may be mixed; dashes in keys become underscores; a dot reaches into a group.

    Raises:
        UsageError: a word is no key, a key has no value, or a key is given twice.

    Example:
        >>> parse_overrides(["max-epoch", "300", "lr=1e-3", "optimizer.nesterov", "true"])
        {'max_epoch': 300, 'lr': 0.001, 'optimizer.nesterov': True}
    """
    return {key: _parse(text) for key, text in _split(tokens).items()}


def to_dict(config: DataclassInstance) -> dict[str, Any]:
    """Return the settings as plain values: paths and enums as text, tuples as lists, groups as dicts."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config) if field.init}


def to_yaml(config: DataclassInstance) -> str:
    """Return the settings as YAML text, from which `load_config` makes an equal config."""
    return yaml.dump(to_dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


# ---- words of the command line ----


def _split(tokens: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    words = iter(tokens)
    for word in words:
        key, equals, text = word.partition("=")
        if not _KEY.fullmatch(key):
            raise UsageError(
                f"{word!r} is not the name of a setting. Write pairs such as `max_epoch 300` or `max_epoch=300`."
            )
        if not equals:
            text = next(words, "")
            start, second_equals, _ = text.partition("=")
            # `output_dir lr=0.1` is a forgotten value far more often than a folder called "lr=0.1".
            if second_equals and _KEY.fullmatch(start):
                raise UsageError(
                    f"Key {key!r} has no value: {text!r} follows. If that is the value, write {key}={text}"
                )
        if not text.strip():
            raise UsageError(f"Key {key!r} has no value. Write {key}=VALUE; null is no value, '' the empty text.")
        key = key.replace("-", "_")
        for other in given:
            if key == other:
                raise UsageError(f"Key {key!r} is given twice: {given[key]!r} and {text!r}. Keep one.")
            if key.startswith(other + ".") or other.startswith(key + "."):
                raise UsageError(f"Keys {other!r} and {key!r} are both given, but one holds the other. Keep one.")
        given[key] = text
    return given


def _parse(text: str) -> Any:
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text  # such as `*.jpg`
    if value is None and text.strip().lower() not in ("null", "~"):
        return text  # YAML takes "#1" for a comment
    return None if value == "None" else value  # Python's word for null: nobody means a file of that name


def _convert_text(text: str, annotation: Any, key: str) -> Any:
    value = _parse(text)
    try:
        return _convert(value, annotation, key)
    except UsageError:
        if value is None:
            raise
        # The shell ate the quotes: `name 12` and `names [1, 2]` mean text where text is wanted.
        readings: list[Any] = [text]
        with suppress(yaml.YAMLError):
            readings.insert(0, yaml.load(text, Loader=yaml.BaseLoader))
        for reading in readings:
            with suppress(UsageError):
                return _convert(reading, annotation, key)
        raise


def _apply(cls: type[DataclassInstance], given: dict[str, Any], key: str, text: str) -> None:
    """Put one override into the tree of settings, making the groups on its way."""
    *groups, last = key.split(".")
    group, prefix = cls, ""
    for name in groups:
        inner = _group(_hints(group).get(name))
        if inner is None:
            raise _unknown(group, prefix, key)
        if not isinstance(given.get(name), dict):
            given[name] = {}
        given, group, prefix = given[name], inner, f"{prefix}{name}."
    hints = _hints(group)
    if last not in hints:
        raise _unknown(group, prefix, key)
    if _group(hints[last]) is not None and isinstance(_parse(text), Mapping):
        raise UsageError(f"Key {key!r} is a group of settings. Give them one by one: {key}.NAME=VALUE")
    given[last] = _convert_text(text, hints[last], key)


# ---- values and types ----


def _hints(cls: type[DataclassInstance]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def _group(annotation: Any) -> type[DataclassInstance] | None:
    """Return the dataclass behind an annotation, also behind `Group | None`."""
    for member in _members(annotation):
        if isinstance(member, type) and is_dataclass(member):
            return member
    return None


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _convert_group(cls: type[DataclassInstance], values: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
    """Return the values with their final types; groups stay dicts, so that overrides can still reach into them."""
    hints = _hints(cls)
    converted: dict[str, Any] = {}
    for raw, value in values.items():
        name = str(raw).replace("-", "_")
        key = prefix + name
        if name not in hints:
            raise _unknown(cls, prefix, prefix + str(raw))
        if name in converted:
            raise UsageError(f"Key {key!r} is given twice. Keep one.")
        group = _group(hints[name])
        if group is not None and isinstance(value, Mapping):
            converted[name] = _convert_group(group, value, key + ".")
        else:
            converted[name] = _convert(value, hints[name], key)
    return converted


def _build(cls: type[Config], given: Mapping[str, Any], prefix: str, base: Any) -> Config:
    """Return an instance from converted values; what is not given comes from `base`, then from the defaults."""
    hints = _hints(cls)
    values: dict[str, Any] = {}
    missing = []
    for field in fields(cls):
        name = field.name
        if name not in hints:
            continue
        default = getattr(base, name) if base is not None else _default(field)
        group = _group(hints[name])
        if name not in given:
            values[name] = default
        elif group is not None and isinstance(given[name], dict):
            inner_base = default if isinstance(default, group) else None
            values[name] = _build(group, given[name], f"{prefix}{name}.", inner_base)
        else:
            values[name] = given[name]
        if values[name] is MISSING:
            missing.append(prefix + name)
    if missing:
        keys = ", ".join(repr(key) for key in missing)
        raise UsageError(
            f"No value for {keys}, which {cls.__name__} needs. "
            f"Set it in the YAML file or on the command line: {missing[0]}=VALUE"
        )
    return cls(**values)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _convert(value: Any, annotation: Any, key: str) -> Any:
    """Return the value as the annotated type, or raise a UsageError that names key, value and type."""
    origin, members = get_origin(annotation), _members(annotation)
    if len(members) > 1:
        return _convert_union(value, annotation, members, key)
    if origin is Literal:
        for choice in get_args(annotation):
            if type(choice) is type(value) and choice == value:
                return choice
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return _convert_tuple(value, annotation, key)
    elif annotation is NoneType:
        if value is None:
            return None
    elif annotation is bool:
        switch = _SWITCHES.get(value.lower()) if isinstance(value, str) else value
        if isinstance(switch, bool):
            return switch
    elif annotation in (int, float, str):
        if type(value) is annotation or (annotation is float and type(value) is int):
            return annotation(value)
    elif annotation is Path:
        if isinstance(value, str | Path):
            return Path(value)
    elif isinstance(annotation, type) and issubclass(annotation, StrEnum):
        if type(value) in (str, int) or isinstance(value, annotation):
            # An enum that knows more spellings than its values, as Precision does, says so with `parse`.
            with suppress(ValueError):
                return getattr(annotation, "parse", annotation)(str(value))
    elif isinstance(annotation, type) and is_dataclass(annotation):
        if isinstance(value, Mapping):
            return _build(annotation, _convert_group(annotation, value, key + "."), key + ".", None)
    else:
        raise TypeError(f"Setting {key!r} is annotated {annotation!r}, which config files can't hold.")
    raise _wrong(key, value, annotation)


def _convert_union(value: Any, annotation: Any, members: Sequence[Any], key: str) -> Any:
    # `float | int` must keep 3 an int.
    for member in sorted(members, key=lambda member: member is float):
        try:
            return _convert(value, member, key)
        except UsageError:
            if isinstance(value, Mapping) and _group(member) is not None:
                raise
    raise _wrong(key, value, annotation)


def _convert_tuple(values: Sequence[Any], annotation: Any, key: str) -> tuple[Any, ...]:
    inner = get_args(annotation)
    if len(inner) == 2 and inner[1] is Ellipsis:
        inner = (inner[0],) * len(values)
    if len(inner) != len(values):
        raise _wrong(key, list(values), annotation)
    return tuple(_convert(v, a, f"{key}[{i}]") for i, (v, a) in enumerate(zip(values, inner, strict=True)))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path | StrEnum) else value


# ---- what the user is told ----


def _unknown(cls: type[DataclassInstance], prefix: str, key: str) -> UsageError:
    known = [prefix + name for name in _hints(cls)]
    return UsageError(f"Unknown key {key!r}.{suggest(key.replace('-', '_'), known)} Choose from: {', '.join(known)}.")


def _wrong(key: str, value: Any, annotation: Any) -> UsageError:
    choices = [str(choice) for member in _members(annotation) for choice in _choices(member)]
    near = suggest(value, choices) if isinstance(value, str) else ""
    return UsageError(f"{key}={value!r} can't be used: it must be {_describe(annotation)}.{near}")


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    is_enum = isinstance(annotation, type) and issubclass(annotation, StrEnum)
    return [choice.value for choice in annotation] if is_enum else []


def _describe(annotation: Any) -> str:
    members, choices, inner = _members(annotation), _choices(annotation), get_args(annotation)
    if len(members) > 1:
        return " or ".join(_describe(member) for member in members)
    if choices:
        return "one of " + ", ".join(repr(choice) for choice in choices)
    if get_origin(annotation) is tuple:
        if inner[-1] is Ellipsis:
            return f"a list of {_describe(inner[0])}"
        return f"a list [{', '.join(_describe(a) for a in inner)}]"
    if is_dataclass(annotation) and isinstance(annotation, type):
        return f"a group of settings ({', '.join(_hints(annotation))})"
    return "null" if annotation is NoneType else str(annotation.__name__).lower()


# ---- YAML ----


def _read(path: Path) -> Mapping[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.load(text, Loader=_Loader)
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


class _Loader(yaml.SafeLoader):
    """YAML with the numbers and booleans of version 1.2: 1e-3 is a number; yes, 012 and 1:30 are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise _broken(f"key {key.value!r} is given twice", key)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError) as error:  # `!!int x`, `!!timestamp x`, a number of 5,000 digits
            raise _broken("unreadable value", node) from error


class _Dumper(yaml.SafeDumper):
    """YAML that quotes whatever either version would take for something other than text."""

    def represent_flat_list(self, values: list[Any]) -> yaml.Node:
        in_one_line = all(isinstance(value, int | float) for value in values)
        return self.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=in_one_line)

    def represent_text(self, value: str) -> yaml.Node:
        # Only in double quotes do all line breaks, such as U+0085, come back as they were.
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


def _broken(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.yaml_implicit_resolvers = {}
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
