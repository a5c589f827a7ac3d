"""What every name of the catalogue promises: it can be loaded, or says which extra is missing."""

import tomllib

import pytest
from support.shared import ROOT

from boxwright.core.catalogue import CATALOGUE, find, load
from boxwright.core.errors import MissingDependencyError, UsageError

EVERY_NAME = [(kind, name) for kind, names in CATALOGUE.items() for name in names]


@pytest.mark.parametrize(("kind", "name"), EVERY_NAME)
def test_every_target_can_be_imported_and_called(kind: str, name: str) -> None:
    entry = find(kind, name)
    if entry.missing():
        with pytest.raises(MissingDependencyError, match=rf"pip install 'boxwright\[{entry.extra}\]'"):
            load(kind, name)
        return
    target = load(kind, name)
    assert callable(target)
    assert target.__name__ == entry.target.split(":")[1]


@pytest.mark.parametrize(("kind", "name"), EVERY_NAME)
def test_the_extra_that_is_named_exists_and_brings_the_packages(kind: str, name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    entry = find(kind, name)
    needed, wanted = {entry.extra} - {""}, set(entry.packages)
    while needed:
        for line in extras[needed.pop()]:
            if line.startswith("boxwright["):
                needed.update(line[len("boxwright[") : -1].split(","))
            wanted.discard(line.split(">")[0])
    assert not wanted


@pytest.mark.parametrize(("kind", "name"), EVERY_NAME)
def test_a_name_with_a_letter_too_many_is_answered_with_the_right_one(kind: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean '{name}'"):
        load(kind, f"{name}q")
