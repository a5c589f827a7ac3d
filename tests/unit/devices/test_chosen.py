"""The device a user names: parsed without torch, checked against what is there, found for "auto"."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from boxwright.core import catalogue
from boxwright.core.errors import UsageError
from boxwright.devices import chosen
from boxwright.devices.chosen import Chosen, check_device, find_device
from boxwright.devices.ways import WAYS

Pretend = Callable[..., None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Let the catalogue's devices be made-up ones, of which the system shows some files."""

    def install(shown: tuple[str, ...], present: dict[str, int]) -> None:
        def load(kind: str, name: str) -> Any:
            def make() -> Any:
                if name not in present:
                    raise UsageError(f"torch sees no {name}")
                return SimpleNamespace(count=lambda: present[name], numbered=name == "cuda", place=lambda n: n)

            return make

        monkeypatch.setattr(catalogue, "load", load)
        monkeypatch.setattr(chosen, "list_shown", lambda: shown)

    return install


@pytest.mark.parametrize(
    ("word", "name", "number"), [("cpu", "cpu", 0), ("cuda", "cuda", 0), ("cuda:3", "cuda", 3), ("hpu", "hpu", 0)]
)
def test_a_name_may_have_a_number(word: str, name: str, number: int) -> None:
    assert Chosen.parse(word) == Chosen(name, number)
    assert str(Chosen.parse(word)) == word
    assert check_device(word) == word


@pytest.mark.parametrize("word", ["cuda:", "cuda:x", "cuda:-1", "cpu:0", "auto:1"])
def test_another_number_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not possible"):
        check_device(word)


def test_a_typo_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="Did you mean 'cuda'"):
        check_device("cdua")


def test_auto_is_the_first_that_torch_can_use(pretend: Pretend) -> None:
    pretend(("cuda", "hpu"), {"hpu": 8})
    assert find_device("auto") == Chosen("hpu")
    pretend(("cuda", "hpu"), {"cuda": 1, "hpu": 8})
    assert find_device("auto") == Chosen("cuda")
    pretend(("cuda",), {})
    assert find_device("auto") == Chosen("cpu")


def test_a_number_that_is_not_there_is_refused(pretend: Pretend) -> None:
    pretend((), {"cuda": 2, "hpu": 8})
    assert Chosen("cuda", 1).open()[1] == 1
    with pytest.raises(UsageError, match="'cuda:2' is not here: there are 2, numbered from 0"):
        Chosen("cuda", 2).check()
    with pytest.raises(UsageError, match=r"each process has one\. Leave the number out"):
        Chosen("hpu", 1).check()


def test_every_way_is_for_a_device_and_a_runtime_of_the_catalogue() -> None:
    for device, ways in WAYS.items():
        assert device in catalogue.names("device")
        assert {way.runtime for way in ways.values()} <= set(catalogue.names("runtime"))
