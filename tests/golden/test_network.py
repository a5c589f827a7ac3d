"""The network has the official keys and shapes and computes what the official one computes."""

import json
import math

import numpy as np
import pytest
import torch
from support.shared import shared_path

from boxwright.detector.sizes import SIZES
from boxwright.detector.weights import load_weights, read_state
from boxwright.detector.yolox import Yolox, build


@pytest.mark.parametrize("name", SIZES)
def test_keys_dtypes_and_shapes_are_the_official_ones(name: str) -> None:
    lines = shared_path(f"golden/state_dict_keys/{name}.txt").read_text().splitlines()
    with torch.device("meta"):
        state = build(name).state_dict()
    ours = [f"{k}\t{str(v.dtype).removeprefix('torch.')}\t{tuple(v.shape)}" for k, v in state.items()]
    assert ours == lines


def fill_by_formula(model: Yolox) -> None:
    state = model.state_dict()
    for j, key in enumerate(sorted(state)):
        tensor = state[key]
        if key.endswith("num_batches_tracked"):
            continue
        base = np.sin(0.37 * np.arange(tensor.numel(), dtype=np.float64) + 0.11 * (j % 97))
        if key.endswith(("running_var", ".bn.weight")):
            values = 1 + 0.1 * base
        elif key.endswith(("running_mean", ".bn.bias")):
            values = 0.05 * base
        elif key.endswith("bias"):
            values = 0.1 * base - (1 if "cls_preds" in key or "obj_preds" in key else 0)
        else:
            values = base * math.sqrt(2 / (tensor.numel() / tensor.shape[0]))
        tensor.copy_(torch.from_numpy(values.reshape(tensor.shape)))


@pytest.mark.parametrize("name", ["yolox_nano", "yolox_tiny", "yolox_s", "yolox_m", "yolox_l", "yolox_x"])
def test_forward_with_weights_from_a_formula_equals_the_reference(name: str) -> None:
    reference = json.loads(shared_path("golden/reference_numbers.json").read_text())["formula_forward"][name]
    model = build(name).eval()
    fill_by_formula(model)
    pixels = np.sin(0.013 * np.arange(3 * 128 * 128, dtype=np.float64)) * 100 + 100
    images = torch.from_numpy(pixels.reshape(1, 3, 128, 128)).float()
    with torch.inference_mode():
        out = model(images).join(sigmoid=True).double()
    assert sum(p.numel() for p in model.parameters()) == reference["params"]
    assert list(out.shape) == reference["shape"]
    assert out.sum().item() == pytest.approx(reference["sum"], rel=1e-6)
    assert out.abs().sum().item() == pytest.approx(reference["abs_sum"], rel=1e-6)
    assert out.std().item() == pytest.approx(reference["std"], rel=1e-5)
    for row, key in ((0, "first"), (out.shape[1] // 2, "mid"), (-1, "last")):
        assert out[0, row, :8].tolist() == pytest.approx(reference[key], abs=1e-5), key


def test_official_weights_give_the_official_outputs() -> None:
    golden = np.load(shared_path("golden/yolox_nano_forward.npz"))
    state, _ = read_state(shared_path("weights/yolox_nano/yolox_nano.pth"))
    model = build("yolox_nano").eval()
    assert load_weights(model, state).left_out == ()
    images = torch.from_numpy(golden["images_bgr_u8"]).permute(0, 3, 1, 2).float()
    with torch.inference_mode():
        out = model(images).join(sigmoid=True).numpy()
    assert len(out) == 8
    assert np.abs(out - golden["raw"]).max() < 1e-3


def test_forward_returns_raw_outputs_in_training_mode_too() -> None:
    model = build("yolox_nano", num_classes=3)
    for mode in (True, False):
        raw = model.train(mode)(torch.zeros(2, 3, 64, 96))
        assert [tuple(t.shape) for t in raw] == [(2, 126, 4), (2, 126, 1), (2, 126, 3)]
        assert raw.objectness.max() < 0, "logits, not probabilities"
