from pathlib import Path

import pytest
import torch
from support.models import two_inputs

from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.types import Precision
from boxwright.runtimes import ipex_
from boxwright.runtimes.base import Choice
from boxwright.runtimes.ipex_ import IpexRuntime, TraceableLayer, load_extension, name_layers
from boxwright.runtimes.program import export_program, prepare
from boxwright.runtimes.quantized import QuantizedLayer, Range
from boxwright.runtimes.source import Source

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def _source() -> Source:
    return Source.of(two_inputs(), (torch.randn(2, 3, 8, 8),), {"vector": torch.randn(2, 5)})


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, "torch is not installed, intel-extension-for-pytorch is not installed"),
        ({"torch": "2.8.0+cpu"}, "torch 2.8.0\\+cpu, intel-extension-for-pytorch is not installed"),
        (
            {"torch": "2.13.0", "intel-extension-for-pytorch": "2.8.0"},
            "torch 2.13.0, intel-extension-for-pytorch 2.8.0",
        ),
        ({"torch": "2.80.1", "intel-extension-for-pytorch": "2.8.0"}, "torch 2.80.1"),
    ],
)
def test_other_versions_are_answered_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(ipex_, "installed_version", lambda name: versions.get(name, ""))
    monkeypatch.setattr(ipex_, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    with pytest.raises(MissingDependencyError, match=rf"{said}.*pip install 'boxwright\[ipex\]'"):
        load_extension()


def test_a_choice_that_is_not_offered_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'16'.*: 32, bf16, int8"):
        IpexRuntime().convert(_source(), Choice(runtime="ipex", precision=Precision.FP16), tmp_path, None)


def test_a_program_gets_modules_for_its_layers_and_computes_the_same() -> None:
    source = _source()
    module, _ = prepare(source, Choice(runtime="ipex"))
    program = export_program(source, module).module()
    expected = program(*source.example)
    name_layers(program, torch.float32)
    layers = [part for part in program.modules() if isinstance(part, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 3
    assert not any("conv2d" in str(node.target) for node in program.graph.nodes)
    for have, want in zip(program(*source.example), expected, strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_the_layer_for_traces_computes_what_the_other_does() -> None:
    torch.manual_seed(0)
    for layer, x in (
        (torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)),
        (torch.nn.Linear(6, 4), torch.randn(2, 5, 6)),
    ):
        rounded = QuantizedLayer(layer, Range(-3.0, 3.0))
        # A value between two steps may fall to either side.
        torch.testing.assert_close(TraceableLayer(rounded)(x), rounded(x), rtol=0, atol=0.03)
