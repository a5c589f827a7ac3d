"""The networks are torchvision's in names and shapes."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision import models
from boxwright.vision.models import Backbone, remove_top, vision

# parameters, entries of the state dict, and some of its keys with their shapes
NETWORKS = {
    "resnet18": (11_689_512, 122, {"layer2.0.downsample.0.weight": (128, 64, 1, 1), "fc.weight": (1000, 512)}),
    "resnet34": (21_797_672, 218, {"layer3.5.conv2.weight": (256, 256, 3, 3), "fc.bias": (1000,)}),
    "resnet50": (
        25_557_032, 320, {"layer1.0.downsample.0.weight": (256, 64, 1, 1), "layer4.2.conv3.weight": (2048, 512, 1, 1)}
    ),
    "mobilenet_v2": (
        3_504_872, 314,
        {"features.0.0.weight": (32, 3, 3, 3), "features.1.conv.0.0.weight": (32, 1, 3, 3),
         "features.17.conv.2.weight": (320, 960, 1, 1), "classifier.1.weight": (1000, 1280)},
    ),
    "mobilenet_v3_large": (
        5_483_032, 312,
        {"features.4.block.1.0.weight": (72, 1, 5, 5), "features.4.block.2.fc1.weight": (24, 72, 1, 1),
         "features.16.0.weight": (960, 160, 1, 1), "classifier.3.weight": (1000, 1280)},
    ),
    "mobilenet_v3_small": (
        2_542_856, 244,
        {"features.1.block.1.fc2.bias": (16,), "features.12.1.running_var": (576,), "classifier.0.weight": (1024, 576)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_names_and_sizes_are_those_of_the_published_networks(name: str) -> None:
    parameters, entries, shapes = NETWORKS[name]
    with torch.device("meta"):
        model = getattr(models, name)()
    state = model.state_dict()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(state) == entries
    assert {key: tuple(state[key].shape) for key in shapes} == shapes


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_learn_and_give_logits(name: str) -> None:
    torch.manual_seed(0)
    model = getattr(models, name)(num_classes=3)
    logits = model(torch.rand(2, 3, 40, 64))
    assert logits.shape == (2, 3)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_layers_can_be_exchanged_for_small_images() -> None:
    model = models.resnet18(pretrained=False, num_classes=10).eval()
    model.conv1 = nn.Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    model.maxpool = nn.Identity()
    seen = []
    model.layer4.register_forward_hook(lambda _module, _inputs, output: seen.append(tuple(output.shape)))
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert seen == [(1, 512, 4, 4)]


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_that_would_be_downloaded_are_refused(name: str) -> None:
    for asked in ({"pretrained": True}, {"weights": "IMAGENET1K_V1"}):
        with pytest.raises(UsageError, match="nothing is downloaded"):
            getattr(models, name)(**asked)
    with pytest.raises(UsageError, match="num_classes=0"):
        getattr(models, name)(num_classes=0)


@pytest.mark.parametrize(("name", "features"), [("resnet18", 512), ("resnet50", 2048), ("mobilenet_v2", 1280)])
def test_bigdl_nanos_form_leaves_out_the_last_layers(name: str, features: int) -> None:
    backbone = getattr(vision, name)(pretrained=False, include_top=False, freeze=True)
    assert isinstance(backbone, Backbone)
    assert backbone.get_output_size() == features
    assert backbone.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, features)
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    top = getattr(vision, name)(include_top=True, freeze=True)
    trained = {key for key, parameter in top.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(key.startswith(("fc.", "classifier.")) for key in trained)


def test_a_network_without_a_known_last_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="get_output_size"):
        remove_top(nn.Sequential(nn.Linear(2, 2)))


def test_importing_the_networks_does_not_import_lightning() -> None:
    script = "import sys; import boxwright.vision.models; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
    with pytest.raises(AttributeError):
        _ = models.no_such_network


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders and loggers
def test_an_image_classifier_is_trained_and_tested_by_the_trainer(tmp_path) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    from boxwright import Trainer
    from boxwright.vision.models import ImageClassifier

    class Net(ImageClassifier):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.003)

    torch.manual_seed(0)
    targets = torch.arange(32) % 2
    images = torch.rand(32, 3, 8, 8) * 0.1 + targets[:, None, None, None] - 0.5
    loader = DataLoader(TensorDataset(images, targets), batch_size=16)
    net = Net(Backbone(nn.Flatten(), 192), num_classes=2)
    trainer = Trainer(max_epochs=15, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False, default_root_dir=tmp_path)  # fmt: skip
    trainer.fit(net, loader, loader)
    assert trainer.callback_metrics["val_acc"] == 1.0
    assert trainer.test(net, loader, verbose=False)[0]["test_acc"] == 1.0
    assert len(trainer.predict(net, loader)) == 2
