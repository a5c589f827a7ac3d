"""Values as the types that a dataclass names for them, and what the user is told where they don't fit."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from boxwright.core.errors import UsageError, suggest


class DataclassInstance(Protocol):
    """Any instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Config = TypeVar("Config", bound=DataclassInstance)

_SWITCHES = {"yes": True, "on": True, "no": False, "off": False}


def to_dict(config: DataclassInstance) -> dict[str, Any]:
    """Return the settings as plain values: paths and enums as text, tuples as lists, groups as dicts."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config) if field.init}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path | StrEnum) else value


def hints_of(cls: type[DataclassInstance]) -> dict[str, Any]:
    """Return the types of the settings by their names."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def group_of(annotation: Any) -> type[DataclassInstance] | None:
    """Return the dataclass behind an annotation, also behind `Group | None`."""
    for member in members_of(annotation):
        if isinstance(member, type) and is_dataclass(member):
            return member
    return None


def members_of(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def convert_group(cls: type[DataclassInstance], values: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
    """Return the values with their final types; groups stay dicts, so that overrides can still reach into them."""
    hints = hints_of(cls)
    converted: dict[str, Any] = {}
    for raw, value in values.items():
        name = str(raw).replace("-", "_")
        key = prefix + name
        if name not in hints:
            raise unknown_key(cls, prefix, prefix + str(raw))
        if name in converted:
            raise UsageError(f"Key {key!r} is given twice. Keep one.")
        group = group_of(hints[name])
        if group is not None and isinstance(value, Mapping):
            converted[name] = convert_group(group, value, key + ".")
        else:
            converted[name] = convert(value, hints[name], key)
    return converted


def build(cls: type[Config], given: Mapping[str, Any], prefix: str, base: Any) -> Config:
    """Return an instance from converted values; what is not given comes from `base`, then from the defaults."""
    hints = hints_of(cls)
    values: dict[str, Any] = {}
    missing = []
    for field in fields(cls):
        name = field.name
        if name not in hints:
            continue
        default = getattr(base, name) if base is not None else _default(field)
        group = group_of(hints[name])
        if name not in given:
            values[name] = default
        elif group is not None and isinstance(given[name], dict):
            inner_base = default if isinstance(default, group) else None
            values[name] = build(group, given[name], f"{prefix}{name}.", inner_base)
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


def convert(value: Any, annotation: Any, key: str) -> Any:
    """Return the value as the annotated type, or raise a UsageError that names key, value and type."""
    origin, members = get_origin(annotation), members_of(annotation)
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
            return build(annotation, convert_group(annotation, value, key + "."), key + ".", None)
    else:
        raise TypeError(f"Setting {key!r} is annotated {annotation!r}, which config files can't hold.")
    raise _wrong(key, value, annotation)


def _convert_union(value: Any, annotation: Any, members: Sequence[Any], key: str) -> Any:
    # `float | int` must keep 3 an int.
    for member in sorted(members, key=lambda member: member is float):
        try:
            return convert(value, member, key)
        except UsageError:
            if isinstance(value, Mapping) and group_of(member) is not None:
                raise
    raise _wrong(key, value, annotation)


def _convert_tuple(values: Sequence[Any], annotation: Any, key: str) -> tuple[Any, ...]:
    inner = get_args(annotation)
    if len(inner) == 2 and inner[1] is Ellipsis:
        inner = (inner[0],) * len(values)
    if len(inner) != len(values):
        raise _wrong(key, list(values), annotation)
    return tuple(convert(v, a, f"{key}[{i}]") for i, (v, a) in enumerate(zip(values, inner, strict=True)))


# ---- what the user is told ----


def unknown_key(cls: type[DataclassInstance], prefix: str, key: str) -> UsageError:
    """Return the error for a key that nobody knows, with the nearest one."""
    known = [prefix + name for name in hints_of(cls)]
    return UsageError(f"Unknown key {key!r}.{suggest(key.replace('-', '_'), known)} Choose from: {', '.join(known)}.")


def _wrong(key: str, value: Any, annotation: Any) -> UsageError:
    choices = [str(choice) for member in members_of(annotation) for choice in _choices(member)]
    near = suggest(value, choices) if isinstance(value, str) else ""
    return UsageError(f"{key}={value!r} can't be used: it must be {_describe(annotation)}.{near}")


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    is_enum = isinstance(annotation, type) and issubclass(annotation, StrEnum)
    return [choice.value for choice in annotation] if is_enum else []


def _describe(annotation: Any) -> str:
    members, choices, inner = members_of(annotation), _choices(annotation), get_args(annotation)
    if len(members) > 1:
        return " or ".join(_describe(member) for member in members)
    if choices:
        return "one of " + ", ".join(repr(choice) for choice in choices)
    if get_origin(annotation) is tuple:
        if inner[-1] is Ellipsis:
            return f"a list of {_describe(inner[0])}"
        return f"a list [{', '.join(_describe(a) for a in inner)}]"
    if is_dataclass(annotation) and isinstance(annotation, type):
        return f"a group of settings ({', '.join(hints_of(annotation))})"
    return "null" if annotation is NoneType else str(annotation.__name__).lower()
