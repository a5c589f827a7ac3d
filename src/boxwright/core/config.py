"""Settings as one frozen dataclass: from a YAML file, overridden by flags and `key value` words, checked by type.

One YAML file is one complete run: there are no includes, no inheritance and no groups.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from boxwright.core.errors import UsageError, suggest
from boxwright.core.yaml_file import dump, parse, read_file


class DataclassInstance(Protocol):
    """Any instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Config = TypeVar("Config", bound=DataclassInstance)

_KEY = re.compile(r"[A-Za-z_][\w-]*")
_SWITCHES = {"yes": True, "on": True, "no": False, "off": False}


def load_config(
    cls: type[Config], path: Path | None, words: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> Config:
    """Return the settings of a YAML file, or the defaults without one, with flags and words on top.

    Args:
        cls: the frozen dataclass that names the settings and their types.
        path: the YAML file.
        words: such as `max_epoch 300 lr=0.1`; see `parse_overrides`.
        flags: settings that come as values.

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
    types = get_type_hints(cls)
    values: dict[str, Any] = {}
    for raw, value in ({} if path is None else read_file(path)).items():
        key = str(raw).replace("-", "_")
        try:
            if key in values:
                raise UsageError(f"Key {key!r} is given twice. Keep one.")
            values[key] = _convert(value, _find_type(types, str(raw)), key)
        except UsageError as error:
            raise UsageError(f"Config file {str(path)!r}: {error}") from None
    for key, value in (flags or {}).items():
        values[key] = _convert(value, _find_type(types, key), key)
    for key, text in _split_words(words).items():
        if flags and key in flags:
            raise UsageError(f"Key {key!r} is given twice: {flags[key]!r} and {text!r}. Keep one.")
        values[key] = _convert_text(text, _find_type(types, key), key)
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        raise UsageError(
            f"No value for {', '.join(map(repr, missing))}, which {cls.__name__} needs. "
            f"Set it in the YAML file or on the command line: {missing[0]}=VALUE"
        )
    return cls(**values)


def read_settings(path: Path | None) -> dict[str, Any]:
    """Return the unchecked values of a YAML file by key; nothing without a file.

    Raises:
        UsageError: the file can't be read.
    """
    return {} if path is None else {str(key).replace("-", "_"): value for key, value in read_file(path).items()}


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings that command line words give, by key, each value read as YAML.

    `key value` pairs and `key=value` may be mixed; dashes in keys become underscores.

    Raises:
        UsageError: a word is not a key, a key has no value, or a key is given twice.

    Example:
        >>> parse_overrides(["max-epoch", "300", "lr=1e-3", "ema", "true"])
        {'max_epoch': 300, 'lr': 0.001, 'ema': True}
    """
    return {key: _parse_value(text) for key, text in _split_words(words).items()}


def to_dict(config: DataclassInstance) -> dict[str, Any]:
    """Return the settings as plain values: paths as text, tuples as lists."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config)}


def to_yaml(config: DataclassInstance) -> str:
    """Return the settings as YAML text, from which `load_config` makes an equal config."""
    return dump(to_dict(config))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _find_type(types: Mapping[str, Any], key: str) -> Any:
    name = key.replace("-", "_")
    if name not in types:
        raise UsageError(f"Unknown key {key!r}.{suggest(name, types)} Choose from: {', '.join(types)}.")
    return types[name]


def _split_words(words: Sequence[str]) -> dict[str, str]:
    """Return the text of each key."""
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        key, equals, text = word.partition("=")
        if not _KEY.fullmatch(key):
            raise UsageError(
                f"{word!r} is not the name of a setting. Write pairs such as `max_epoch 300` or `max_epoch=300`."
            )
        if not equals:
            text = next(rest, "")
            start, second_equals, _ = text.partition("=")
            # `output_dir lr=0.1` is a forgotten value far more often than a folder called "lr=0.1".
            if second_equals and _KEY.fullmatch(start):
                raise UsageError(
                    f"Key {key!r} has no value: {text!r} follows. If that is the value, write {key}={text}"
                )
        if not text.strip():
            raise UsageError(f"Key {key!r} has no value. Write {key}=VALUE; null is no value, '' the empty text.")
        key = key.replace("-", "_")
        if key in given:
            raise UsageError(f"Key {key!r} is given twice: {given[key]!r} and {text!r}. Keep one.")
        given[key] = text
    return given


def _parse_value(text: str) -> Any:
    try:
        value = parse(text)
    except yaml.YAMLError:
        return text  # such as `*.jpg`
    if value is None and text.strip().lower() not in ("null", "~"):
        return text  # YAML takes "#1" for a comment
    return None if value == "None" else value  # Python's null, not a file of that name


def _convert_text(text: str, annotation: Any, key: str) -> Any:
    value = _parse_value(text)
    try:
        return _convert(value, annotation, key)
    except UsageError:
        if value is None:
            raise
        # The shell removed the quotes: `name 12` and `names [1, 2]` mean text where text is wanted.
        readings: list[Any] = [text]
        with suppress(yaml.YAMLError):
            readings.insert(0, yaml.load(text, Loader=yaml.BaseLoader))
        for reading in readings:
            with suppress(UsageError):
                return _convert(reading, annotation, key)
        raise


def _convert(value: Any, annotation: Any, key: str) -> Any:
    """Return the value as the annotated type, or raise a UsageError that names key, value and type."""
    origin, members, inner = get_origin(annotation), _members(annotation), get_args(annotation)
    if len(members) > 1:
        for member in sorted(members, key=lambda member: member is float):  # `float | int` must keep 3 an int
            with suppress(UsageError):
                return _convert(value, member, key)
    elif origin is Literal:
        for choice in inner:
            if type(choice) is type(value) and choice == value:
                return choice
    elif origin is tuple:
        if isinstance(value, list | tuple):
            inner = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
            if len(inner) == len(value):
                return tuple(_convert(v, a, f"{key}[{i}]") for i, (v, a) in enumerate(zip(value, inner, strict=True)))
            value = list(value)
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
    else:
        raise TypeError(f"Setting {key!r} is annotated {annotation!r}, which config files can't hold.")
    choices = [str(c) for member in members if get_origin(member) is Literal for c in get_args(member)]
    near = suggest(value, choices) if isinstance(value, str) else ""
    raise UsageError(f"{key}={value!r} can't be used: it must be {_describe(annotation)}.{near}")


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _describe(annotation: Any) -> str:
    members, inner = _members(annotation), get_args(annotation)
    if len(members) > 1:
        return " or ".join(_describe(member) for member in members)
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(repr, inner))
    if get_origin(annotation) is tuple:
        if inner[-1] is Ellipsis:
            return f"a list of {_describe(inner[0])}"
        return f"a list [{', '.join(_describe(a) for a in inner)}]"
    return "null" if annotation is NoneType else str(annotation.__name__).lower()
