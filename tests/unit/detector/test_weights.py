import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.shared import shared_path

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import Spec
from boxwright.detector.sizes import SIZES
from boxwright.detector.weights import check_finite, identify, load_weights, read_state, save_weights
from boxwright.detector.yolox import Yolox, build

SPEC = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 96), category_ids=(3, 7, 9), preprocessing="legacy")


@pytest.fixture(scope="module")
def nano() -> Yolox:
    torch.manual_seed(0)
    return build("yolox_nano", 3)


def test_own_files_bring_back_weights_and_spec(nano: Yolox, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "model.safetensors"
    save_weights(path, nano, SPEC)
    state, spec = read_state(path)
    assert spec == SPEC
    assert state.keys() == nano.state_dict().keys()
    assert all(torch.equal(state[k], v) for k, v in nano.state_dict().items())
    assert os.listdir(path.parent) == ["model.safetensors"], "no draft stays behind"


def test_a_failed_save_leaves_the_old_file_whole(nano: Yolox, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(path, nano, SPEC)
    before = path.read_bytes()
    broken = build("yolox_nano", 3)
    broken.register_buffer("alias", broken.head.stems[0].conv.weight)  # shared memory: safetensors refuses it
    with pytest.raises(RuntimeError, match="share memory"):
        save_weights(path, broken, SPEC)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"model": s, "start_epoch": 3}, lambda s: {"state_dict": s}])
def test_pth_files_load_bare_and_wrapped(nano: Yolox, tmp_path: Path, wrap: object) -> None:
    torch.save(wrap(nano.state_dict()), tmp_path / "m.pth")  # type: ignore[operator]
    state, spec = read_state(tmp_path / "m.pth")
    assert spec is None
    assert len(state) == 642


def test_the_prefix_of_distributed_training_is_taken_off(nano: Yolox, tmp_path: Path) -> None:
    torch.save({f"module.{k}": v for k, v in nano.state_dict().items()}, tmp_path / "m.pth")
    assert identify(read_state(tmp_path / "m.pth")[0]) == ("yolox_nano", 3)


@pytest.mark.parametrize("name", SIZES)
def test_every_size_is_recognised_by_its_tensors(name: str) -> None:
    with torch.device("meta"):
        state = build(name, 7).state_dict()
    assert identify(state) == (name, 7)


def test_the_official_checkpoint_is_recognised() -> None:
    state, _ = read_state(shared_path("weights/yolox_nano/yolox_nano.pth"))
    assert identify(state) == ("yolox_nano", 80)


def test_another_class_count_loads_all_but_the_predictions_and_says_so(nano: Yolox) -> None:
    model = build("yolox_nano", 5)
    before = model.head.cls_preds[0].weight.clone()
    report = load_weights(model, nano.state_dict(), new_head=True)
    assert report.loaded == 642 - 6
    assert sorted(report.left_out) == sorted(f"head.cls_preds.{i}.{p}" for i in range(3) for p in ("weight", "bias"))
    assert "the checkpoint has 3 classes, this model 5" in report.sentence()
    assert torch.equal(model.head.cls_preds[0].weight, before)
    assert torch.equal(model.head.reg_preds[0].weight, nano.head.reg_preds[0].weight)


def test_another_class_count_is_refused_unless_the_model_is_trained(nano: Yolox) -> None:
    model = build("yolox_nano", 5)
    before = model.head.reg_preds[0].weight.clone()
    with pytest.raises(CheckpointError, match="for 3 classes, and this model has 5"):
        load_weights(model, nano.state_dict())
    assert torch.equal(model.head.reg_preds[0].weight, before)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused_with_their_name(nano: Yolox, value: float) -> None:
    state = {key: tensor.clone() for key, tensor in nano.state_dict().items()}
    check_finite(state | {"half": torch.full((9, 9), 60000.0).half()}, Path("m.pth"))
    state["head.stems.1.bn.weight"][3] = value
    with pytest.raises(CheckpointError, match=r"m\.pth' are damaged: 'head\.stems\.1\.bn\.weight'"):
        check_finite(state, Path("m.pth"))


@pytest.mark.parametrize("kind", ["sparse", "meta", "complex"])
def test_tensors_that_are_not_plain_numbers_are_refused(tmp_path: Path, kind: str) -> None:
    plain = torch.ones(4, 4)
    odd = {
        "sparse": plain.to_sparse,
        "meta": lambda: plain.to("meta"),
        "complex": lambda: plain.to(torch.complex64),
    }[kind]()
    torch.save({"model": {"w": odd}}, tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match=r"m\.pth'"):
        read_state(tmp_path / "m.pth")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{}", '{"names": ["a"], "size_hw": [1e999, 64]}'], ids=lambda t: t[-9:]
)
def test_a_description_that_can_not_be_used_is_a_model_error(tmp_path: Path, text: str) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "m.safetensors", metadata={"boxwright": text})
    with pytest.raises(CheckpointError, match=r"description inside .*m\.safetensors"):
        read_state(tmp_path / "m.safetensors")


def test_a_checkpoint_of_another_model_is_refused_with_its_first_key_and_changes_nothing(nano: Yolox) -> None:
    model = build("yolox_tiny", 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"'backbone\.backbone\.stem\.conv\.conv\.weight' has shape \(16, 12"):
        load_weights(model, nano.state_dict())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_tensors_of_no_known_model_are_refused_with_the_nearest(nano: Yolox) -> None:
    state = dict(nano.state_dict())
    del state["head.stems.1.bn.weight"]
    with pytest.raises(CheckpointError, match=r"yolox_nano, but 1 key.*'head\.stems\.1\.bn\.weight' is missing"):
        identify(state)
    with pytest.raises(CheckpointError, match="fits no model"):
        identify({"fc.weight": torch.zeros(3, 3)})


@pytest.mark.parametrize("name", ["m.pth", "m.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"\x80\x02\x95"])
def test_broken_files_get_a_clear_error(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        read_state(tmp_path / name)


@pytest.mark.parametrize("name", ["m.pth", "m.safetensors"])
def test_a_torn_file_gets_a_clear_error(nano: Yolox, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".pth":
        torch.save(nano.state_dict(), path)
    else:
        save_weights(path, nano, SPEC)
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(CheckpointError, match=name):
        read_state(path)


def test_a_missing_file_gets_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no model file"):
        read_state(tmp_path / "none.pth")


class Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch executed",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Payload()}, tmp_path / "evil.pth")
    with pytest.raises(CheckpointError, match=r"'posix\.system'.*plain tensors") as caught:
        read_state(tmp_path / "evil.pth")
    assert "weights_only" not in str(caught.value)
    assert "trust" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match="holds no tensors"):
        read_state(tmp_path / "m.pth")


@pytest.mark.parametrize("act", ["silu", "relu", "lrelu"])
def test_the_activation_is_a_choice(act: str) -> None:
    names = {type(m).__name__.lower() for m in build("yolox_nano", 2, act).modules() if not list(m.children())}
    wanted = {"silu": "silu", "relu": "relu", "lrelu": "leakyrelu"}
    assert names & set(wanted.values()) == {wanted[act]}


def test_bad_choices_are_refused() -> None:
    with pytest.raises(UsageError, match="Did you mean 'relu'"):
        build("yolox_nano", 2, "relo")
    with pytest.raises(UsageError, match="at least one class"):
        build("yolox_nano", 0)
