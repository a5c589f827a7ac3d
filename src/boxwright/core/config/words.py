"""Words of the command line: `max_epoch 300 optimizer.lr=0.1` onto a tree of settings."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml

from boxwright.core.config.document import Loader
from boxwright.core.config.values import DataclassInstance, convert, group_of, hints_of, unknown_key
from boxwright.core.errors import UsageError

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


def split_words(tokens: Sequence[str]) -> dict[str, str]:
    """Return the text of each key.

    Raises:
        UsageError: a word is no key, a key has no value, or a key is given twice.
    """
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


def parse_value(text: str) -> Any:
    """Return a word as the YAML value that it spells."""
    try:
        value = yaml.load(text, Loader=Loader)
    except yaml.YAMLError:
        return text  # such as `*.jpg`
    if value is None and text.strip().lower() not in ("null", "~"):
        return text  # YAML takes "#1" for a comment
    return None if value == "None" else value  # Python's word for null: nobody means a file of that name


def _convert_text(text: str, annotation: Any, key: str) -> Any:
    value = parse_value(text)
    try:
        return convert(value, annotation, key)
    except UsageError:
        if value is None:
            raise
        # The shell ate the quotes: `name 12` and `names [1, 2]` mean text where text is wanted.
        readings: list[Any] = [text]
        with suppress(yaml.YAMLError):
            readings.insert(0, yaml.load(text, Loader=yaml.BaseLoader))
        for reading in readings:
            with suppress(UsageError):
                return convert(reading, annotation, key)
        raise


def apply_word(cls: type[DataclassInstance], given: dict[str, Any], key: str, text: str) -> None:
    """Put one override into the tree of settings, making the groups on its way."""
    *groups, last = key.split(".")
    group, prefix = cls, ""
    for name in groups:
        inner = group_of(hints_of(group).get(name))
        if inner is None:
            raise unknown_key(group, prefix, key)
        if not isinstance(given.get(name), dict):
            given[name] = {}
        given, group, prefix = given[name], inner, f"{prefix}{name}."
    hints = hints_of(group)
    if last not in hints:
        raise unknown_key(group, prefix, key)
    if group_of(hints[last]) is not None and isinstance(parse_value(text), Mapping):
        raise UsageError(f"Key {key!r} is a group of settings. Give them one by one: {key}.NAME=VALUE")
    given[last] = _convert_text(text, hints[last], key)
