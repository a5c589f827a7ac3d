"""ResNet-18 is torchvision's in names and shapes."""

import pytest
import torch
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.models import resnet18


def test_names_and_sizes_are_those_of_the_published_network() -> None:
    model = resnet18()
    state = model.state_dict()
    assert len(state) == 122
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    assert list(state)[:7] == [
        "conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked",
        "layer1.0.conv1.weight",
    ]  # fmt: skip
    assert tuple(state["conv1.weight"].shape) == (64, 3, 7, 7)
    assert tuple(state["layer2.0.downsample.0.weight"].shape) == (128, 64, 1, 1)
    assert tuple(state["layer4.1.bn2.running_var"].shape) == (512,)
    assert tuple(state["fc.weight"].shape) == (1000, 512)
    assert not any(key.startswith("layer1.0.downsample") for key in state)


def test_layers_can_be_exchanged_for_small_images() -> None:
    model = resnet18(pretrained=False, num_classes=10).eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    model.maxpool = nn.Identity()
    seen = []
    model.layer4.register_forward_hook(lambda _module, _inputs, output: seen.append(tuple(output.shape)))
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert seen == [(1, 512, 4, 4)]


def test_weights_that_would_be_downloaded_are_refused() -> None:
    for asked in ({"pretrained": True}, {"weights": "IMAGENET1K_V1"}):
        with pytest.raises(UsageError, match="nothing is downloaded"):
            resnet18(**asked)
    with pytest.raises(UsageError, match="num_classes=0"):
        resnet18(num_classes=0)


def test_it_computes_what_torchvision_computes_with_the_same_weights() -> None:
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    theirs = torchvision.models.resnet18(num_classes=7).eval()
    ours = resnet18(num_classes=7).eval()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=0)
