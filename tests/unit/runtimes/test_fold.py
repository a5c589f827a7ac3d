import pytest
import torch
from support.networks import lively_nano
from torch import Tensor, nn

from boxwright.runtimes.fold import fold_batch_norms
from boxwright.runtimes.fused import fuse_activations


class Net(nn.Module):
    """Two convolutions with a normalisation each; `path` says what else becomes of the first one's output."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.last, self.last_norm = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.path = path
        with torch.no_grad():
            for norm in (self.norm, self.last_norm):
                norm.running_mean.uniform_(-1, 1)
                norm.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made = self.conv(x)
        normed = self.norm(made)
        if self.path == "norm twice":
            normed = self.norm(normed)
        if self.path == "conv twice":
            normed = normed + self.conv(x * 2)
        if self.path == "added":
            normed = normed + made
        if self.path == "changed in place":
            made.mul_(2)
        out = self.last_norm(self.last(normed))
        return (out, made) if self.path == "given out" else (out,)


def test_a_chain_is_folded_and_gives_the_same() -> None:
    net, x = Net("chain"), torch.randn(2, 3, 5, 5)
    expected = net(x)[0]
    assert fold_batch_norms(net, [x]) == ["norm", "last_norm"]
    assert isinstance(net.norm, nn.Identity)
    torch.testing.assert_close(net(x)[0], expected)


@pytest.mark.parametrize("path", ["norm twice", "conv twice", "added", "changed in place", "given out"])
def test_an_output_that_goes_elsewhere_too_is_left_alone(path: str) -> None:
    net, x = Net(path), torch.randn(2, 3, 5, 5)
    expected = net(x)
    assert fold_batch_norms(net, [x]) == ["last_norm"]
    torch.testing.assert_close(net(x), expected)


class Activated(nn.Module):
    """A convolution, a normalisation, an activation; `path` says what else becomes of the tensor between them."""

    def __init__(self, path: str, inplace: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.SiLU(inplace=inplace)
        self.path = path
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm(self.conv(x))
        kept = made * 2 if self.path == "used before" else x.mean()
        out = self.act(made)
        return out + kept + out.mean() + (made if self.path == "used after" else 0)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("path", ["chain", "used before", "used after"])
def test_an_activation_is_fused_where_nothing_else_sees_what_it_takes(path: str, inplace: bool) -> None:
    net, x = Activated(path, inplace), torch.randn(2, 3, 5, 5)
    with torch.inference_mode():
        expected = net(x)
        # Behind an activation in place, the tensor is the activation's output for everybody.
        fused = 1 if path == "chain" or (path == "used after" and inplace) else 0
        assert fold_batch_norms(net, [x]) == ["norm"]
        assert fuse_activations(net, [x]) == fused
        torch.testing.assert_close(net(x), expected)


def test_norms_that_measure_every_batch_are_left_alone() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    assert fold_batch_norms(net, [torch.randn(2, 3, 5, 5)]) == []


def test_every_norm_of_a_detector_is_folded() -> None:
    net, x = lively_nano(), torch.rand(1, 3, 64, 64) * 255
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    with torch.inference_mode():
        expected = net(x)
        assert len(fold_batch_norms(net, [x])) == norms > 50
        for have, want in zip(net(x), expected, strict=True):
            torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in net.modules())
