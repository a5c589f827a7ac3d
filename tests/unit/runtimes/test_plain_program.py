"""Programs are stored as plain data: what comes back computes the same, and what others put in is not run."""

import json
import operator
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import two_inputs
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError
from boxwright.runtimes.artifact import open_graph, read_artifact, write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.eager import EagerRuntime
from boxwright.runtimes.plain_program import PROGRAM, TENSORS, is_plain
from boxwright.runtimes.source import Source
from boxwright.runtimes.trust import CUSTOM_PROGRAM

pytestmark = pytest.mark.usefixtures("one_torch_thread")
PLAIN = Choice(runtime="eager", mode="plain")
SOURCE = Source.of(nn.Identity(), (torch.zeros(2, 3),))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.encoder(x)
        return output.flatten(1).softmax(1)


class Odds(nn.Module):
    """Regions, constants, tied weights, sizes in arithmetic, numbers of many types and an infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.steps = nn.Buffer(torch.arange(4))

    def forward(self, x: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            hidden = self.first(x)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = self.second(hidden)
        masked = hidden.masked_fill(hidden < 0, float("-inf")).amax(1, keepdim=True)
        rows = torch.full((x.shape[0] * 2 // 2, 1), 1.5, dtype=torch.float64)
        turned = torch.complex(x, hidden).abs().permute(0, 1)[:, 1:-1:2]
        return {"a": rounded.float(), "b": masked, "c": [rows, turned, self.steps + torch.tensor([1, 2, 3, 4])]}


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (two_inputs(), ((torch.rand(2, 3, 8, 8),), {"vector": torch.rand(2, 5)})),
        (Attention(), ((torch.rand(2, 5, 8),), {})),
        (Odds(), ((torch.rand(2, 4),), {})),
        (nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"), ((torch.rand(1, 3, 8, 8),), {})),
    ],
    ids=["two inputs", "attention", "odds", "reflect"],
)
def test_a_stored_program_computes_what_the_model_does(tmp_path: Path, model: nn.Module, example: Any) -> None:
    source = Source.of(model.eval(), *example)
    artifact = write_artifact(source, PLAIN, tmp_path / "art")
    assert {PROGRAM, TENSORS} <= set(artifact.files)
    given = [t.numpy() for t in source.example]
    outputs = open_graph(tmp_path / "art").run(given)
    for found, expected in zip(outputs, source.run(given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # PyTorch's transformer has a fast path of its own


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    layer = nn.Linear(64, 64, bias=False)
    write_artifact(Source.of(nn.Sequential(layer, layer), (torch.rand(2, 64),)), PLAIN, tmp_path / "art")
    assert (tmp_path / "art" / TENSORS).stat().st_size < 2 * 64 * 64 * 4


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_program_of_torchs_own_format_is_not_opened(tmp_path: Path) -> None:
    folder, mark = tmp_path / "art", tmp_path / "ran"
    folder.mkdir()
    torch.export.save(torch.export.export(nn.Linear(3, 3), (torch.zeros(2, 3),)), tmp_path / "p.pt2")
    torch.save(Evil(mark), tmp_path / "evil")
    with zipfile.ZipFile(tmp_path / "p.pt2") as good, zipfile.ZipFile(folder / "program.pt2", "w") as bad:
        for name in good.namelist():
            data = good.read(name)
            if name.endswith("weights_config.json"):
                values = json.loads(data)
                for entry in values["config"].values():
                    entry["use_pickle"] = True
                data = json.dumps(values).encode()
            elif "/data/weights/" in name:
                data = (tmp_path / "evil").read_bytes()
            bad.writestr(name, data)
    with pytest.raises(CheckpointError, match="older Boxwright"):
        EagerRuntime().load(folder, PLAIN, SOURCE.signature, Tuning())
    assert not mark.exists()


def _write(folder: Path, *nodes: dict[str, Any]) -> None:
    """Write a program that someone made by hand: one input, these nodes, and the last one is the output."""
    write_artifact(SOURCE, PLAIN, folder)
    values = {"format": 1, "graph": {"nodes": [{"input": "x"}, *nodes, {"output": {"tuple": [{"node": len(nodes)}]}}]}}
    (folder / PROGRAM).write_text(json.dumps(values))


def _call(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"call": name, "args": list(args), "kwargs": kwargs}


X = {"node": 0}


def test_a_program_made_by_hand_runs(tmp_path: Path) -> None:
    _write(tmp_path, _call("aten.add.Tensor", X, 1, alpha=2))
    (output,) = EagerRuntime().load(tmp_path, PLAIN, SOURCE.signature, Tuning()).run([np.zeros((2, 3), np.float32)])
    assert output.tolist() == [[2, 2, 2]] * 2


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (_call("aten.from_file.default", "/etc/passwd", False, 10), "may do more than compute"),
        (_call("aten.save.default", X, "stolen"), "may do more than compute"),
        (_call("aten._nested_view_from_buffer.default", X, X, X, X), "may do more than compute"),
        (_call("higher_order.call_torchbind", X), "may do more than compute"),
        (_call("os.system", "true"), "has no attribute"),
        (_call("import_module.__globals__", "os"), "is not an operator"),
        (_call("load_library", "evil.so"), "is not an operator"),
        (_call("aten.add.Tensor)", X, X), "is not the name of an operator"),
        (_call("aten.add.Tensor", X, **{"other=print(1)": X}), "are not names of arguments"),
        (_call("aten.add.Tensor", X, **{"lambda": X}), "are not names of arguments"),
        (_call("aten.to.dtype", X, {"dtype": "load"}), "'load' is not a dtype"),
        ({"tensor": "missing", "parameter": False}, "missing"),
        ({"graph": {"nodes": "x"}}, "can't be loaded"),
        ({}, "parameter"),
    ],
)  # fmt: skip
def test_hostile_and_broken_programs_are_refused(tmp_path: Path, node: dict[str, Any], reason: str) -> None:
    _write(tmp_path, node)
    with pytest.raises(CheckpointError, match=reason):
        EagerRuntime().load(tmp_path, PLAIN, SOURCE.signature, Tuning())


def test_texts_and_names_never_become_code(tmp_path: Path) -> None:
    text = "'); import os; os.mkdir('ran'); ('"
    nodes = ({"input": text}, _call("aten.div.Tensor_mode", X, X, rounding_mode=text))
    _write(tmp_path / "art", *nodes)
    graph = EagerRuntime().load(tmp_path / "art", PLAIN, SOURCE.signature, Tuning())
    with pytest.raises(RuntimeError, match="rounding_mode"):
        graph.run([np.ones((2, 3), np.float32)] * 2)
    assert not Path("ran").exists()


def test_a_program_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    write_artifact(SOURCE, PLAIN, tmp_path)
    (tmp_path / PROGRAM).write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"program\.json' can't be loaded"):
        EagerRuntime().load(tmp_path, PLAIN, SOURCE.signature, Tuning())


class CallsOther(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = torch.ops.boxwright_test.double(x)
        return output


@pytest.fixture(scope="module")
def _other_package() -> Any:
    """An operator of another package: nobody knows what it does."""
    library = torch.library.Library("boxwright_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("boxwright_test::double", lambda x: torch.empty_like(x), lib=library)
    yield
    library._destroy()


@pytest.mark.usefixtures("_other_package")
def test_operators_of_other_packages_need_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = write_artifact(Source.of(CallsOther(), (torch.ones(2, 3),)), PLAIN, tmp_path / "art")
    assert CUSTOM_PROGRAM in artifact.files
    assert PROGRAM not in artifact.files
    rows = [np.ones((2, 3), np.float32)]
    assert open_graph(tmp_path / "art").run(rows)[0].max() == 2
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another user"))
    with pytest.raises(CheckpointError, match=r"calls operators of other packages.*--trust"):
        open_graph(tmp_path / "art")
    assert open_graph(read_artifact(tmp_path / "art"), trust=True).run(rows)[0].max() == 2


def test_plain_operators_are_those_that_only_compute() -> None:
    aten = torch.ops.aten
    assert all(map(is_plain, (aten.conv2d.default, aten.conv2d.padding, operator.mul, torch.sym_max)))
    assert not any(map(is_plain, (aten.from_file.default, aten._cudnn_rnn.default, operator.attrgetter, eval)))
