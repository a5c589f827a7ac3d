"""Small networks of timm, transformers and segmentation-models-pytorch, with random weights: nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from support.thirdparty import offer
from torch import Tensor, nn

Call = dict[str, Tensor]


@dataclass(frozen=True)
class Network:
    """A network, and two calls of different shapes.

    Attributes:
        package: what it needs.
        build: makes it.
        calls: two calls by name; only the sizes differ.
        outputs: the outputs that a loss is made of; none for the one there is.
    """

    package: str
    build: Callable[[], nn.Module]
    calls: tuple[Call, Call]
    outputs: tuple[str, ...] = ()

    def make(self) -> nn.Module:
        """Return the network in evaluation mode, with the same weights every time."""
        offer()
        torch.manual_seed(0)
        return self.build().eval()

    def loss(self, model: Any, call: Call) -> Tensor:
        """Return a number to train with."""
        found = model(**call)
        if isinstance(found, Tensor):
            return (found - 0.5).square().mean()
        return sum(((found[name] - 0.5).square().mean() for name in self.outputs or (0,)), torch.zeros(()))


def images(batch: int, height: int, width: int | None = None, name: str = "x") -> Call:
    return {name: torch.rand(batch, 3, height, width or height, generator=torch.Generator().manual_seed(batch))}


def tokens(batch: int, length: int, *, mask: bool = True) -> Call:
    ids = torch.randint(0, 99, (batch, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids} | ({"attention_mask": torch.ones_like(ids)} if mask else {})


def timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, num_classes=5, **settings)
        return model

    return build


def hugging_face(name: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**settings))
        return model

    return build


def detr() -> nn.Module:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = DetrConfig(
        backbone_config=backbone,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=5,
        num_labels=3,
    )
    return DetrForObjectDetection(config)


def rt_detr() -> nn.Module:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[8, 16, 16],
        decoder_in_channels=[16, 16, 16],
        d_model=16,
        encoder_hidden_dim=16,
        encoder_ffn_dim=16,
        encoder_attention_heads=2,
        encoder_layers=1,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=16,
        num_queries=5,
        num_denoising=0,
        num_labels=3,
    )
    return RTDetrForObjectDetection(config)


def unet() -> nn.Module:
    import segmentation_models_pytorch as smp

    model: nn.Module = smp.Unet(
        "tu-resnet10t", encoder_weights=None, encoder_depth=3, decoder_channels=(16, 8, 8), classes=2
    )
    return model


class PackedLstm(nn.Module):
    """Reads texts of different lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(99, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        found: Tensor = self.head(hidden[-1])
        return found


class Generator(nn.Module):
    """The half of a GAN that is deployed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16 * 16), nn.Unflatten(1, (16, 4, 4)), nn.ReLU(),
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
            nn.Conv2d(8, 3, 3, padding=1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, noise: Tensor) -> Tensor:
        made: Tensor = self.layers(noise)
        return made


_TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
_OLDER = {"tokens": torch.randint(0, 99, (2, 6)), "lengths": torch.tensor([6, 4])}
_LONGER = {"tokens": torch.randint(0, 99, (3, 9)), "lengths": torch.tensor([9, 2, 5])}

NETWORKS = {
    "timm resnet18": Network("timm", timm("resnet18"), (images(2, 32), images(3, 48, 40))),
    "timm mobilenetv3": Network("timm", timm("mobilenetv3_small_050"), (images(2, 32), images(3, 48, 40))),
    "timm efficientnet_b0": Network("timm", timm("efficientnet_b0"), (images(2, 32), images(3, 48, 40))),
    "timm convnext": Network(
        "timm", timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 16)), (images(2, 32), images(3, 64, 96))
    ),
    "timm vit": Network(
        "timm",
        timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2),
        (images(2, 32), images(3, 32)),
    ),
    "timm swin": Network(
        "timm",
        timm("swin_tiny_patch4_window7_224", img_size=32, embed_dim=8, depths=(1, 1), num_heads=(2, 2), window_size=4),
        (images(2, 32), images(3, 32)),
    ),
    "transformers BERT": Network(
        "transformers",
        hugging_face("BertForSequenceClassification", "BertConfig", vocab_size=99, num_labels=3, **_TEXT),
        (tokens(2, 7), tokens(3, 12)),
    ),
    "transformers ViT": Network(
        "transformers",
        hugging_face("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, num_labels=3, **_TEXT),
        (images(2, 32, name="pixel_values"), images(3, 32, name="pixel_values")),
    ),
    "transformers DETR": Network(
        "transformers",
        detr,
        (images(2, 64, name="pixel_values"), images(3, 64, 96, name="pixel_values")),
        ("logits", "pred_boxes"),
    ),
    "transformers RT-DETR": Network(
        "transformers",
        rt_detr,
        (images(2, 64, name="pixel_values"), images(3, 64, name="pixel_values")),
        ("logits", "pred_boxes"),
    ),
    "transformers Llama": Network(
        "transformers",
        hugging_face("LlamaForCausalLM", "LlamaConfig", vocab_size=99, num_key_value_heads=2, **_TEXT),
        (tokens(2, 7), tokens(3, 12)),
    ),
    "smp Unet": Network("segmentation_models_pytorch", unet, (images(2, 32), images(3, 64, 96))),
    "LSTM, packed": Network("torch", PackedLstm, (_OLDER, _LONGER)),
    "GAN": Network("torch", Generator, ({"noise": torch.rand(2, 8)}, {"noise": torch.rand(3, 8)})),
}
