import sys

import pytest

from boxwright.core import catalogue
from boxwright.core.catalogue import CATALOGUE, Entry, find, load, names
from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.packages import require

FAKES = {
    "here": Entry(target="collections:OrderedDict"),
    "away": Entry(target="nowhere:Thing", packages=("json", "no_such_package"), extra="train"),
}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "fake", FAKES)


@pytest.mark.parametrize("kind", CATALOGUE)
def test_every_entry_says_where_it_lives_and_which_extra_brings_it(kind: str):
    assert names(kind) == tuple(CATALOGUE[kind])
    for name in names(kind):
        entry = find(kind, name)
        module, colon, attribute = entry.target.partition(":")
        assert module.startswith("boxwright.")
        assert colon
        assert attribute.isidentifier()
        assert bool(entry.packages) == bool(entry.extra)


def test_all_sizes_of_the_model_are_listed():
    sizes = {"yolox_nano", "yolox_tiny", "yolox_s", "yolox_m", "yolox_l", "yolox_x"}
    assert sizes <= set(names("model"))


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"Did you mean 'yolox_tiny'\? Choose from: yolox"):
        find("model", "yolox_tny")
    with pytest.raises(UsageError, match="Unknown model 'resnet'"):
        load("model", "resnet")


@pytest.mark.usefixtures("fakes")
def test_a_name_gives_what_it_stands_for():
    assert load("fake", "here") is sys.modules["collections"].OrderedDict


@pytest.mark.usefixtures("fakes")
def test_a_missing_package_is_answered_with_the_pip_command():
    with pytest.raises(MissingDependencyError, match=r"'away' needs no_such_package.*'boxwright\[train\]'"):
        load("fake", "away")


def test_only_packages_that_are_not_installed_are_missing():
    assert FAKES["away"].missing() == ("no_such_package",)
    assert FAKES["here"].missing() == ()


def test_a_blocked_package_counts_as_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch" in catalogue.find("model", "yolox_s").missing()


def test_several_missing_packages_are_named_together() -> None:
    with pytest.raises(MissingDependencyError, match=r"A demo needs no_such_one and no_such_two, which are not"):
        require("no_such_one", "json", "no_such_two", extra="train", by="A demo")
