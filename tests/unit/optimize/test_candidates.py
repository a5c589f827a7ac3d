import pytest
import torch
from support.pretend_device import PretendDevice

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.devices.chosen import Chosen
from boxwright.devices.ways import WAYS
from boxwright.optimize.candidates import METHODS, find_method, matches
from boxwright.optimize.config import SearchConfig

KNOWN = [
    "original",
    "fp32_channels_last",
    "fp32_ipex",
    "bf16",
    "bf16_channels_last",
    "bf16_ipex",
    "int8",
    "static_int8",
    "static_int8_ipex",
    "jit_fp32",
    "jit_bf16",
    "jit_fp32_ipex",
    "jit_fp32_ipex_channels_last",
    "jit_int8",
    "openvino_fp32",
    "openvino_bf16",
    "openvino_fp16",
    "openvino_int8",
    "onnxruntime_fp32",
    "onnxruntime_int8_qlinear",
    "onnxruntime_int8_integer",
]


@pytest.mark.parametrize("name", KNOWN)
def test_every_name_that_users_know_is_there(name: str) -> None:
    method = METHODS[find_method(name)]
    assert (method.choice is None) == (name == "original")


def test_no_two_methods_are_the_same() -> None:
    choices = [m.choice for m in METHODS.values()]
    assert len(set(choices)) == len(choices)


def test_names_say_what_the_choices_are() -> None:
    for name, method in METHODS.items():
        words = name.split("_")
        if method.choice is None:
            continue
        assert ("channels" in words) == method.choice.channels_last
        assert ("ipex" in words) == (method.choice.runtime == "ipex")
        assert ("int8" in words) == (method.choice.precision is Precision.INT8)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="Did you mean 'openvino_int8'"):
        SearchConfig(includes=["openvino_int9"])
    with pytest.raises(UsageError, match="Did you mean 'bf16'"):
        SearchConfig(excludes=["bf61"])


def test_includes_do_not_change_later_calls() -> None:
    before = SearchConfig().methods
    assert SearchConfig(includes=["jit_int8"]).methods == ("original", "jit_int8")
    assert "bf16" not in SearchConfig(excludes=["bf16"]).methods
    assert SearchConfig().methods == before
    with pytest.raises(TypeError):
        METHODS["new"] = METHODS["bf16"]  # type: ignore[index]


def test_the_default_search_is_part_of_all() -> None:
    usual, everything = SearchConfig().methods, SearchConfig(search_mode="all").methods
    assert everything == tuple(name for name, method in METHODS.items() if method.device in ("", "cpu"))
    assert set(usual) < set(everything)


def test_a_device_has_its_own_methods_beside_the_original(pretended: PretendDevice) -> None:
    chosen = SearchConfig(device=pretended.name).methods
    assert chosen == ("original", *WAYS[pretended.name])
    assert SearchConfig(device=pretended.name, precision="int8").methods == ("original", "tensorrt_int8")
    assert SearchConfig(device="cuda:1", includes=["bf16"]).methods == ("original", "bf16")
    assert SearchConfig(device="cuda:1").place == Chosen("cuda", 1)


def test_methods_of_another_device_can_be_named() -> None:
    assert SearchConfig(includes=["cuda_graph_fp16", "fp32"]).methods == ("original", "fp32", "cuda_graph_fp16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(UsageError, match="torch sees no CUDA device here"):
        SearchConfig(device="cuda")


def test_excludes_and_filters_work_together() -> None:
    chosen = SearchConfig(accelerator="openvino", precision=["int8", "bf16"], excludes=["openvino_bf16"]).methods
    assert set(chosen) >= {"original", "openvino_int8"}
    assert "openvino_bf16" not in chosen
    assert all(matches(name, accelerator="openvino") for name in chosen if name != "original")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"search_mode": "some"}, "search_mode 'some'"),
        ({"excludes": ["original"]}, "every other method is compared with it"),
        ({"accelerator": "openvin"}, "Did you mean 'openvino'"),
        ({"precision": "int9"}, "Unknown precision 'int9'"),
        ({"includes": ["bf16"], "precision": "int8"}, "No method is left to try"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(words: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SearchConfig(**words)  # type: ignore[arg-type]
