import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from boxwright.core.cpu import Core
from boxwright.core.errors import UsageError
from boxwright.launchers.payload import pack, unpack


def load_by_path(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def call_elsewhere(data: bytes) -> str:
    """Unpack a function in a fresh interpreter, call it, and return what it printed."""
    code = "import sys, pickle; pickle.loads(sys.stdin.buffer.read())()"
    return subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True).stdout.decode()


def test_closures_travel_as_code():
    words = ["far", "away"]

    assert call_elsewhere(pack(lambda: print(*words), "The job")) == "far away\n"


def test_what_can_be_imported_is_named():
    assert len(pack(Core, "The class")) < 100
    assert unpack(pack(Core, "The class")) is Core


def test_a_file_that_was_loaded_by_its_path_travels_as_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "experiment.py"
    file.write_text("LEARNING_RATE = 0.5\n\ndef show():\n    print('rate', LEARNING_RATE)\n")
    monkeypatch.setitem(sys.modules, "experiment", ModuleType("put back afterwards"))
    module = load_by_path(file, "experiment")

    data = pack(module.show, "The job")

    assert call_elsewhere(data) == "rate 0.5\n"
    assert "experiment" not in cloudpickle.list_registry_pickle_by_value()


def test_a_file_with_the_name_of_an_importable_module_is_not_mistaken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "this.py"  # the standard library has one
    file.write_text("def show():\n    print('mine')\n")
    monkeypatch.setitem(sys.modules, "this", ModuleType("put back afterwards"))
    module = load_by_path(file, "this")

    assert call_elsewhere(pack(module.show, "The job")) == "mine\n"


def test_what_cannot_be_pickled_is_refused_with_its_name():
    with pytest.raises(UsageError, match=r"The job can't be sent .*lock"):
        pack([threading.Lock()], "The job")


@pytest.mark.parametrize(
    "base", ["collections.abc.Mapping", "abc.ABC", "io.StringIO", "torch.utils.data.IterableDataset"]
)
def test_a_class_of_a_file_may_derive_from_what_every_interpreter_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
):
    package = base.rpartition(".")[0]
    file = tmp_path / "experiment.py"
    file.write_text(
        f"import {package}\n\n"
        f"class Mine({base}):\n"
        "    def __getitem__(self, key): return key\n"
        "    def __iter__(self): return iter('ab')\n"
        "    def __len__(self): return 2\n\n"
        "def show():\n    print(*Mine())\n"
    )
    monkeypatch.setitem(sys.modules, "experiment", ModuleType("put back afterwards"))
    module = load_by_path(file, "experiment")

    assert call_elsewhere(pack(module.show, "The job")) == "a b\n"
