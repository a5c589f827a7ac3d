"""Readers of published sets, on tiny files with their own checksums."""

import gzip
import hashlib
import lzma
import pickle

import numpy as np
import pytest
import torch

from boxwright.core.errors import DataError, UsageError
from boxwright.vision.datasets import CIFAR10, CIFAR100, MNIST, QMNIST, FashionMNIST


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path.name, hashlib.md5(data).hexdigest()


def idx(array):
    header = bytes((0, 0, 8, array.ndim)) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    return header + array.tobytes()


@pytest.fixture
def tiny_cifar(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 3072), np.uint8)
    folder = tmp_path / "cifar-10-batches-py"
    batches = [
        write(
            folder / f"data_batch_{part}", pickle.dumps({"data": images[part * 2 : part * 2 + 2], "labels": [part, 1]})
        )
        for part in (0, 1)
    ]
    tests = [write(folder / "test_batch", pickle.dumps({"data": images[:1], "labels": [0]}))]
    names = write(folder / "batches.meta", pickle.dumps({"label_names": ["cat", "dog"]}))

    class TinyCIFAR(CIFAR10):
        train_list = batches
        test_list = tests
        meta = names

    return TinyCIFAR, images


def test_cifar_gives_rgb_images_and_class_numbers(tmp_path, tiny_cifar):
    kind, images = tiny_cifar
    data = kind(tmp_path)
    image, target = data[2]
    assert len(data) == 4
    assert np.array_equal(image, images[2].reshape(3, 32, 32).transpose(1, 2, 0))
    assert target == 1
    assert data.targets == [0, 1, 1, 1]
    assert data.class_to_idx == {"cat": 0, "dog": 1}
    assert len(kind(tmp_path, train=False)) == 1


def test_changing_a_sample_leaves_the_set_alone(tmp_path, tiny_cifar):
    data = tiny_cifar[0](tmp_path)
    before = data.data.copy()
    data[0][0][:] = 0
    assert np.array_equal(data.data, before)


def test_cifar_uses_its_transforms(tmp_path, tiny_cifar):
    data = tiny_cifar[0](tmp_path, transform=lambda image: image.shape, target_transform=str)
    assert data[0] == ((32, 32, 3), "0")


def test_a_changed_file_is_refused_before_it_is_unpickled(tmp_path, tiny_cifar):
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "harm").encode() + b"'\ntR.")
    with pytest.raises(DataError, match=r"data_batch_1.*MD5"):
        tiny_cifar[0](tmp_path)
    assert not (tmp_path / "harm").exists()


def test_the_published_checksums_are_asked_for(tmp_path, tiny_cifar):
    with pytest.raises(DataError, match="c99cafc152244af753f735de768cd75f"):
        CIFAR10(tmp_path)
    with pytest.raises(DataError, match="cifar-100-python"):
        CIFAR100(tmp_path)


@pytest.fixture
def tiny_mnist(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (3, 28, 28), np.uint8)
    labels = np.array([5, 0, 9], np.uint8)
    folder = tmp_path / "MNIST" / "raw"
    parts = [
        write(folder / name, gzip.compress(idx(array)))
        for name, array in [
            ("train-images-idx3-ubyte.gz", images),
            ("train-labels-idx1-ubyte.gz", labels),
            ("t10k-images-idx3-ubyte.gz", images[:1]),
            ("t10k-labels-idx1-ubyte.gz", labels[:1]),
        ]
    ]

    class TinyMNIST(MNIST):
        resources = parts

    return TinyMNIST, images, folder


def test_mnist_gives_grey_images_and_digits(tmp_path, tiny_mnist):
    kind, images, _ = tiny_mnist
    data = kind(tmp_path)
    image, digit = data[0]
    assert np.array_equal(image, images[0])
    assert digit == 5
    assert data.targets.dtype == torch.int64
    assert data.targets.tolist() == [5, 0, 9]
    assert data.data.shape == (3, 28, 28)
    assert data.class_to_idx["9 - nine"] == 9
    assert len(kind(tmp_path, train=False)) == 1


def test_mnist_reads_unpacked_files_too(tmp_path, tiny_mnist):
    kind, images, folder = tiny_mnist
    for path in list(folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert np.array_equal(kind(tmp_path)[2][0], images[2])
    short = folder / "train-images-idx3-ubyte"
    short.write_bytes(short.read_bytes()[:-1])
    with pytest.raises(DataError, match="not a complete IDX file"):
        kind(tmp_path)


def test_a_changed_or_missing_mnist_file_is_named(tmp_path, tiny_mnist):
    kind, _, folder = tiny_mnist
    with pytest.raises(DataError, match="f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        MNIST(tmp_path)
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="train-labels"):
        kind(tmp_path)
    with pytest.raises(DataError, match="FashionMNIST"):
        FashionMNIST(tmp_path)


def numbers(array):
    header = bytes((0, 0, 12, array.ndim)) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    return header + array.astype(">i4").tobytes()


def test_qmnist_has_its_parts_and_all_numbers_of_an_image(tmp_path):
    images = np.random.default_rng(2).integers(0, 256, (10_001, 28, 28), np.uint8)
    rows = np.zeros((10_001, 8), np.int64)
    rows[:, 0], rows[:, 2] = np.arange(10_001) % 10, np.arange(10_001) + 70_000
    folder = tmp_path / "QMNIST" / "raw"
    parts = []
    for start, ending, pack, count in (
        ("qmnist-train", "gz", gzip.compress, 2), ("qmnist-test", "gz", gzip.compress, 10_001),
        ("xnist", "xz", lzma.compress, 3),
    ):  # fmt: skip
        parts.append(write(folder / f"{start}-images-idx3-ubyte.{ending}", pack(idx(images[:count]))))
        parts.append(write(folder / f"{start}-labels-idx2-int.{ending}", pack(numbers(rows[:count]))))
    kind = type("TinyQMNIST", (QMNIST,), {"resources": parts})
    sizes = {what: len(kind(tmp_path, what)) for what in QMNIST.subsets}
    assert sizes == {"train": 2, "test": 10_001, "test10k": 10_000, "test50k": 1, "nist": 3}
    last = kind(tmp_path, "test50k", compat=False)
    assert np.array_equal(last[0][0], images[-1])
    assert last[0][1].tolist() == rows[-1].tolist()
    assert kind(tmp_path, train=False)[7][1] == 7
    with pytest.raises(UsageError, match="Unknown what 'all'"):
        kind(tmp_path, "all")
    with pytest.raises(DataError, match="ed72d4157d28c017586c42bc6afe6370"):
        QMNIST(tmp_path)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (CIFAR10, "cifar-10-batches-py"),
        (CIFAR100, "cifar-100-python"),
        (MNIST, "MNIST/raw"),
        (FashionMNIST, "FashionMNIST/raw"),
    ],
)
def test_downloading_is_refused_and_the_place_of_the_files_told(tmp_path, kind, place):
    with pytest.raises(UsageError, match=place):
        kind(tmp_path, download=True)
