"""Settings as frozen dataclasses: read from one YAML file, overridden by words of the command line, checked by type.

One YAML file is one complete run: there are no includes and no inheritance.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boxwright.core.config.document import dump, read_file
from boxwright.core.config.values import Config, DataclassInstance, build, convert_group, to_dict
from boxwright.core.config.words import apply_word, parse_value, split_words
from boxwright.core.errors import UsageError

__all__ = ["load_config", "parse_overrides", "read_settings", "to_dict", "to_yaml"]


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
        values = read_file(path)
        try:
            given = convert_group(cls, values, "")
        except UsageError as error:
            raise UsageError(f"Config file {str(path)!r}: {error}") from None
    for key, text in split_words(overrides).items():
        apply_word(cls, given, key, text)
    return build(cls, given, "", None)


def read_settings(path: Path | None) -> dict[str, Any]:
    """Return what a YAML file says of each key, unchecked; nothing without a file.

    Raises:
        UsageError: the file can't be read.
    """
    return {} if path is None else {str(key).replace("-", "_"): value for key, value in read_file(path).items()}


def parse_overrides(tokens: Sequence[str]) -> dict[str, Any]:
    """Return the settings that command line words give, by key, each value read as YAML.

    `key value` pairs and `key=value` may be mixed; dashes in keys become underscores; a dot reaches into a group.

    Raises:
        UsageError: a word is no key, a key has no value, or a key is given twice.

    Example:
        >>> parse_overrides(["max-epoch", "300", "lr=1e-3", "optimizer.nesterov", "true"])
        {'max_epoch': 300, 'lr': 0.001, 'optimizer.nesterov': True}
    """
    return {key: parse_value(text) for key, text in split_words(tokens).items()}


def to_yaml(config: DataclassInstance) -> str:
    """Return the settings as YAML text, from which `load_config` makes an equal config."""
    return dump(to_dict(config))
