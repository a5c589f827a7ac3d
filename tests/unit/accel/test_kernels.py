"""The fused training operators against the plain ones they stand for."""

import ctypes
import os
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from boxwright.accel.kernels import NormSilu, StridedDepthwise, native, pack_patches
from boxwright.accel.kernels.compiler import VARIANTS, compile_library
from boxwright.core.cpu import cpu_flags

BF16_STEP = 2.0**-8


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if native.load_kernels() is None:
        pytest.fail("The kernels could not be built: this machine needs a C compiler (cc, gcc or clang).")


def _norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.03)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-1, 1)
        assert norm.running_mean is not None
        norm.running_mean.uniform_(-1, 1)
    return norm


def _images(channels: int, dtype: torch.dtype, batch: int = 3) -> Tensor:
    # An offset much larger than the spread is where careless sums lose their digits.
    images = torch.randn(batch, channels, 7, 9) + 30 * torch.randn(1, channels, 1, 1)
    return images.to(dtype).contiguous(memory_format=torch.channels_last)


def _backward(module: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().clone().requires_grad_()
    y = module(x)
    y.backward(dy)
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("channels", [8, 16, 24, 64])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_fused_norm_equals_the_two_modules_in_double_precision(channels: int, threads: int) -> None:
    torch.manual_seed(channels)
    norm = _norm(channels)
    plain = nn.Sequential(deepcopy(norm).double(), nn.SiLU())
    fused = NormSilu.of(norm)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(2):
            x = _images(channels, torch.float32)
            dy = torch.randn_like(x)
            y, dx = _backward(fused, x, dy)
            expected_y, expected_dx = _backward(plain, x.double(), dy.double())
            torch.testing.assert_close(y.double(), expected_y, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(dx.double(), expected_dx, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(before)
    for key, value in plain[0].state_dict().items():
        torch.testing.assert_close(fused.state_dict()[key].double(), value.double(), rtol=1e-5, atol=1e-6)
    for have, want in zip(fused.parameters(), plain.parameters(), strict=True):
        assert have.grad is not None
        assert want.grad is not None
        torch.testing.assert_close(have.grad.double(), want.grad, rtol=1e-4, atol=1e-4)


def test_the_fused_norm_in_bf16_is_the_exact_result_rounded() -> None:
    torch.manual_seed(0)
    norm = _norm(32)
    plain = nn.Sequential(deepcopy(norm).double(), nn.SiLU())
    x = torch.randn(3, 32, 7, 9).bfloat16().contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(x)
    y, dx = _backward(NormSilu.of(norm), x, dy)
    assert y.dtype == dx.dtype == torch.bfloat16
    expected_y, expected_dx = _backward(plain, x.double(), dy.double())
    torch.testing.assert_close(y.double(), expected_y, rtol=BF16_STEP, atol=1e-4)
    # dx passes through bfloat16 twice.
    torch.testing.assert_close(dx.double(), expected_dx, rtol=2 * BF16_STEP, atol=2 * BF16_STEP)


def test_the_same_inputs_give_the_same_bits() -> None:
    norm, x = _norm(16), _images(16, torch.bfloat16)
    dy = torch.randn_like(x)
    first, second = (_backward(NormSilu.of(deepcopy(norm)), x, dy) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("channels", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_values_saturate_and_nan_stays_nan(channels: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels)
    norm.weight.data.fill_(1e4)
    x = torch.randn(2, channels, 4, 4).to(dtype).contiguous(memory_format=torch.channels_last)
    y, dx = _backward(NormSilu.of(deepcopy(norm)), x, torch.ones_like(x))
    expected = F.silu(deepcopy(norm)(x.float()))
    torch.testing.assert_close(y.float(), expected, rtol=1e-4 if dtype == torch.float32 else BF16_STEP, atol=1e-3)
    assert dx.isfinite().all()
    x[0, 3, 1, 2] = float("nan")
    bad = NormSilu.of(deepcopy(norm))(x)
    assert bad[:, 3].isnan().all()
    assert bad[:, [c for c in range(channels) if c != 3]].isfinite().all()


@pytest.mark.parametrize(
    "x",
    [torch.randn(2, 8, 4, 4), torch.randn(2, 12, 4, 4).contiguous(memory_format=torch.channels_last)],
    ids=["channels first", "channels that 8 does not divide"],
)
def test_images_that_do_not_fit_the_kernel_run_plainly(x: Tensor) -> None:
    norm = _norm(x.shape[1])
    expected = F.silu(deepcopy(norm)(x))
    fused = NormSilu.of(norm)
    torch.testing.assert_close(fused(x), expected, rtol=0, atol=0)
    assert fused.num_batches_tracked == 1


def test_in_evaluation_mode_the_statistics_are_used_and_stay() -> None:
    norm = _norm(16).eval()
    fused, x = NormSilu.of(norm), _images(16, torch.float32)
    kept = deepcopy(norm.state_dict())
    torch.testing.assert_close(fused(x), F.silu(norm(x)), rtol=0, atol=0)
    assert not fused.training
    assert all(torch.equal(value, kept[key]) for key, value in fused.state_dict().items())


@pytest.mark.parametrize("kernel", [3, 5])
def test_a_strided_depthwise_convolution_has_better_gradients_than_bf16(kernel: int) -> None:
    torch.manual_seed(kernel)
    conv = nn.Conv2d(16, 16, kernel, stride=2, padding=kernel // 2, groups=16, bias=False)
    exact, plain, ours = deepcopy(conv).double(), deepcopy(conv), StridedDepthwise.of(deepcopy(conv))
    x = torch.randn(2, 16, 13, 12).bfloat16().contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        shape = ours(x).shape
        dy = torch.randn(shape).bfloat16()
        y, dx = _backward(ours, x, dy)
        plain_y, _ = _backward(plain, x, dy)
    ours.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        y, dx = _backward(ours, x, dy)
    _, exact_dx = _backward(exact, x.double(), dy.double())
    assert torch.equal(y, plain_y)
    torch.testing.assert_close(dx.double(), exact_dx, rtol=2 * BF16_STEP, atol=BF16_STEP)
    assert ours.weight.grad is not None
    assert plain.weight.grad is not None
    assert exact.weight.grad is not None
    error, plain_error = ((c.weight.grad - exact.weight.grad).abs().max() for c in (ours, plain))
    assert error <= plain_error + 1e-6
    assert error < 1e-4 * exact.weight.grad.abs().max() + 1e-3


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("channels", [8, 16, 24, 48])
@pytest.mark.parametrize("size_hw", [(1, 1), (2, 3), (13, 12), (32, 33)])
def test_gradients_of_a_strided_depthwise_convolution_are_exact_sums(
    size_hw: tuple[int, int], channels: int, threads: int
) -> None:
    torch.manual_seed(channels)
    conv = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels, bias=False)
    exact, ours = deepcopy(conv).double(), StridedDepthwise.of(conv)
    x = torch.randn(3, channels, *size_hw).bfloat16().contiguous(memory_format=torch.channels_last)
    dy = torch.randn(exact(x.double()).shape).bfloat16()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            _, dx = _backward(ours, x, dy)
            ours(x).backward(dy)  # the input needs no gradient
    finally:
        torch.set_num_threads(before)
    _, exact_dx = _backward(exact, x.double(), dy.double())
    torch.testing.assert_close(dx.double(), exact_dx, rtol=BF16_STEP, atol=1e-6)
    assert ours.weight.grad is not None
    assert exact.weight.grad is not None
    torch.testing.assert_close(ours.weight.grad.double(), 2 * exact.weight.grad, rtol=1e-5, atol=1e-4)


def test_a_strided_depthwise_convolution_in_fp32_is_the_plain_one() -> None:
    conv = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False)
    x = torch.randn(1, 8, 6, 6)
    assert torch.equal(StridedDepthwise.of(conv)(x), conv(x))


@pytest.fixture(scope="module")
def prebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of a platform wheel."""
    folder = tmp_path_factory.mktemp("prebuilt")
    compiler = shutil.which("cc") or ""
    for name, (target, _) in VARIANTS.items():
        compile_library(compiler, Path(native.__file__).parent, folder / f"{name}.so", target)
    return folder


@pytest.mark.parametrize("name", VARIANTS)
def test_each_library_of_a_wheel_gives_the_exact_result_rounded(
    prebuilt: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if not VARIANTS[name][1] <= cpu_flags():
        pytest.skip(f"this processor does not run {name}")
    kernels = ctypes.CDLL(str(prebuilt / f"{name}.so"))
    for user in ("norm_silu", "patches"):
        monkeypatch.setattr(f"boxwright.accel.kernels.{user}.load_kernels", lambda: kernels)
    torch.manual_seed(0)
    norm = _norm(32)
    plain = nn.Sequential(deepcopy(norm).double(), nn.SiLU())
    for dtype, step in ((torch.float32, 1e-5), (torch.bfloat16, BF16_STEP)):
        x = torch.randn(3, 32, 7, 9).to(dtype).contiguous(memory_format=torch.channels_last)
        dy = torch.randn_like(x)
        y, dx = _backward(NormSilu.of(deepcopy(norm)), x, dy)
        expected_y, expected_dx = _backward(plain, x.double(), dy.double())
        torch.testing.assert_close(y.double(), expected_y, rtol=step, atol=1e-4)
        torch.testing.assert_close(dx.double(), expected_dx, rtol=2 * step, atol=2 * step)
        pixels = torch.randint(0, 256, (2, 6, 34, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        assert torch.equal(pack_patches(pixels, dtype), pack_patches(pixels.contiguous(), dtype))


def test_the_fastest_library_that_the_processor_runs_is_chosen(tmp_path: Path) -> None:
    (v4_bf16, v4, v3) = VARIANTS
    for name in VARIANTS:
        (tmp_path / f"{name}.so").touch()

    def chosen(flags: frozenset[str]) -> str | None:
        found = native.find_prebuilt(tmp_path, flags)
        return found and found.stem

    assert chosen(VARIANTS[v4_bf16][1] | {"sse2"}) == v4_bf16
    assert chosen(VARIANTS[v4][1]) == v4
    assert chosen(VARIANTS[v3][1] | {"avx512f"}) == v3
    assert chosen(frozenset({"sse2"})) is None
    assert native.find_prebuilt(tmp_path / "none", VARIANTS[v4_bf16][1]) is None


def _load_elsewhere(prebuilt: Path, **env: str) -> tuple[bool, list[str]]:
    """Load the kernels in a process of its own; return whether there are any, and the lines of the log."""
    code = (
        "import pathlib, torch\n"
        "from boxwright.accel.kernels import native\n"
        "from boxwright.core import log\n"
        "log.configure()\n"
        f"native.PREBUILT = pathlib.Path({str(prebuilt)!r})\n"
        "print(native.load_kernels() is not None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip() == "True", done.stderr.splitlines()


def test_a_wheels_kernels_need_no_compiler_and_no_home(prebuilt: Path, tmp_path: Path) -> None:
    if native.find_prebuilt(prebuilt, cpu_flags()) is None:
        pytest.skip("this processor is older than x86-64-v3")
    (tmp_path / "file").touch()
    loaded = _load_elsewhere(prebuilt, PATH=str(tmp_path), BOXWRIGHT_CACHE=str(tmp_path / "file" / "cache"))
    assert loaded == (True, [])


def test_libraries_that_do_not_load_here_are_compiled_again_and_one_line_says_so(tmp_path: Path) -> None:
    # As on a system with another C library: what the library names is not there.
    source, libc = tmp_path / "empty.c", tmp_path / "libc.musl-x86_64.so.1"
    source.write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(libc), f"-Wl,-soname,{libc.name}"], check=True)
    for name in VARIANTS:
        link = [
            "cc",
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            str(source),
            str(libc),
            "-o",
            str(tmp_path / f"{name}.so"),
        ]
        subprocess.run(link, check=True)
    libc.unlink()
    if native.find_prebuilt(tmp_path, cpu_flags()) is None:
        pytest.skip("this processor is older than x86-64-v3")
    loaded, lines = _load_elsewhere(tmp_path)
    assert loaded
    assert len(lines) == 1
    assert "do not load here, so they are compiled: libc.musl-x86_64.so.1" in lines[0]


def test_without_a_place_to_keep_them_they_are_compiled_for_the_process_and_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # root may write to a read-only folder, but never below a file
    loaded, lines = _load_elsewhere(tmp_path / "none", BOXWRIGHT_CACHE=str(tmp_path / "file" / "cache"))
    assert loaded
    assert len(lines) == 1
    assert "can't be kept, so they are compiled for this process alone" in lines[0]


def test_without_a_compiler_the_plain_operators_run(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "from boxwright.accel.kernels import NormSilu, native\n"
        "assert native.load_kernels() is None\n"
        "x = torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)\n"
        "norm = torch.nn.BatchNorm2d(8)\n"
        "y = NormSilu.of(norm)(x)\n"
        "assert torch.allclose(y, torch.nn.functional.silu(torch.nn.BatchNorm2d(8)(x)))\n"
        "print('plain')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": str(tmp_path), "HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.returncode) == ("plain", 0), done.stderr
    assert not list(tmp_path.iterdir())
