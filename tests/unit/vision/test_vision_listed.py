"""Readers of published sets, on tiny sets in the form that the archives unpack to."""

import bz2
import gzip
import hashlib
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from support.shared import ROOT

from boxwright.core.errors import DataError, UsageError
from boxwright.vision import datasets


def picture(path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 5, 3), value, np.uint8)).save(path)


def text(path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def food(root):
    for value, name in enumerate(("pie/1", "soup/2", "pie/3")):
        picture(root / "food-101" / "images" / f"{name}.jpg", value * 50)
    text(root / "food-101" / "meta" / "train.json", json.dumps({"soup": ["soup/2"], "pie": ["pie/3", "pie/1"]}))
    return datasets.Food101(root, download=True), ["pie", "soup"], [(50, 1), (100, 0), (0, 0)]


def textures(root):
    picture(root / "dtd" / "dtd" / "images" / "dotted" / "d.jpg", 10)
    picture(root / "dtd" / "dtd" / "images" / "banded" / "b.jpg", 20)
    text(root / "dtd" / "dtd" / "labels" / "val2.txt", "dotted/d.jpg\nbanded/b.jpg\n")
    return datasets.DTD(root, "val", partition=2), ["banded", "dotted"], [(10, 1), (20, 0)]


def aircraft(root):
    base = root / "fgvc-aircraft-2013b" / "data"
    picture(base / "images" / "007.jpg", 30)
    text(base / "families.txt", "Boeing 737\nA 320\n")
    text(base / "images_family_test.txt", "007 A 320\n")
    return datasets.FGVCAircraft(root, "test", "family"), ["Boeing 737", "A 320"], [(30, 1)]


def signs(root):
    base = root / "gtsrb"
    picture(base / "GTSRB" / "Final_Test" / "Images" / "0.ppm", 40)
    text(base / "GT-final_test.csv", "Filename;Width;ClassId\n0.ppm;5;17\n")
    return datasets.GTSRB(root, "test"), None, [(40, 17)]


def training_signs(root):
    picture(root / "gtsrb" / "GTSRB" / "Training" / "00001" / "0.ppm", 40)
    return datasets.GTSRB(root), None, [(40, 0)]


def scenes(root):
    picture(root / "SUN397" / "a" / "apse" / "indoor" / "sun_b.jpg", 60)
    picture(root / "SUN397" / "a" / "abbey" / "sun_a.jpg", 50)
    text(root / "SUN397" / "ClassName.txt", "/a/abbey\n/a/apse/indoor\n")
    return datasets.SUN397(root), ["abbey", "apse/indoor"], [(50, 0), (60, 1)]


def objects_101(root):
    base = root / "caltech101" / "101_ObjectCategories"
    for name in ("BACKGROUND_Google", "ant", "bass"):
        picture(base / name / "image_0001.jpg", 70)
    return datasets.Caltech101(root), ["ant", "bass"], [(70, 0), (70, 1)]


def objects_256(root):
    picture(root / "caltech256" / "256_ObjectCategories" / "001.ak47" / "001_0001.jpg", 80)
    return datasets.Caltech256(str(root)), ["001.ak47"], [(80, 0)]


def imagenette(root):
    picture(root / "imagenette2-160" / "val" / "n03888257" / "x.jpeg", 90)
    return datasets.Imagenette(root, "val", "160px"), [("parachute", "chute")], [(90, 0)]


def characters(root):
    for name, value in (("Greek/character02", 20), ("Greek/character01", 10), ("Braille/character01", 30)):
        picture(root / "omniglot-py" / "images_background" / name / "0001_01.png", value)
    names = ["Braille/character01", "Greek/character01", "Greek/character02"]
    return datasets.Omniglot(root, download=True), names, [(30, 0), (10, 1), (20, 2)]


def sentences(root):
    picture(root / "rendered-sst2" / "valid" / "negative" / "1.png", 100)
    picture(root / "rendered-sst2" / "valid" / "positive" / "1.png", 110)
    return datasets.RenderedSST2(root, "val"), ["negative", "positive"], [(100, 0), (110, 1)]


def land(root):
    picture(root / "eurosat" / "2750" / "Forest" / "1.jpg", 120)
    return datasets.EuroSAT(root, download=True), ["Forest"], [(120, 0)]


def countries(root):
    picture(root / "country211" / "test" / "AD" / "1.jpg", 130)
    return datasets.Country211(root, "test"), ["AD"], [(130, 0)]


def imagenet(root):
    picture(root / "val" / "n1" / "1.JPEG", 140)
    picture(root / "val" / "n2" / "2.JPEG", 150)
    torch.save(({"n1": ("tench", "fish"), "n2": ("goldfish",)}, []), root / "meta.bin")
    return datasets.ImageNet(root, "val"), [("tench", "fish"), ("goldfish",)], [(140, 0), (150, 1)]


SETS = [food, textures, aircraft, signs, training_signs, scenes, objects_101, objects_256, imagenette, sentences]
SETS += [land, countries, imagenet, characters]


@pytest.mark.parametrize("make", SETS, ids=lambda make: make.__name__)
def test_a_published_set_gives_its_images_classes_and_names(tmp_path, make) -> None:
    data, classes, expected = make(tmp_path)
    assert [(round(float(image.mean())), target) for image, target in (data[i] for i in range(len(data)))] == expected
    if classes is not None:
        assert data.classes == classes
        assert set(data.class_to_idx.values()) == set(range(len(classes)))


def test_imagenet_without_its_names_has_the_ids_as_names(tmp_path) -> None:
    imagenet(tmp_path)
    (tmp_path / "meta.bin").unlink()
    data = datasets.ImageNet(tmp_path, "val")
    assert data.classes == [("n1",), ("n2",)]
    assert data.wnid_to_idx == data.class_to_idx == {"n1": 0, "n2": 1}


DOWNLOADS = [
    datasets.Caltech101, datasets.Caltech256, datasets.Country211, datasets.DTD, datasets.EuroSAT,
    datasets.FGVCAircraft, datasets.Flowers102, datasets.Food101, datasets.GTSRB, datasets.Imagenette,
    datasets.KMNIST, datasets.Omniglot, datasets.QMNIST, datasets.RenderedSST2, datasets.SEMEION, datasets.STL10,
    datasets.SUN397, datasets.SVHN, datasets.USPS, datasets.VOCSegmentation,
]  # fmt: skip


@pytest.mark.parametrize("kind", DOWNLOADS, ids=lambda kind: kind.__name__)
def test_a_download_of_what_is_not_there_names_the_missing_file(tmp_path, kind) -> None:
    with pytest.raises(UsageError, match=str(tmp_path)):
        kind(tmp_path, download=True)
    with pytest.raises(DataError, match=str(tmp_path)):
        kind(tmp_path, download=False)


def test_lists_that_name_what_is_not_there_are_refused(tmp_path) -> None:
    food(tmp_path)
    text(tmp_path / "food-101" / "meta" / "train.json", json.dumps({"pie": ["../../../etc/passwd"]}))
    with pytest.raises(DataError, match="outside"):
        datasets.Food101(tmp_path)
    text(tmp_path / "food-101" / "meta" / "train.json", "[1]")
    with pytest.raises(DataError, match=r"train\.json"):
        datasets.Food101(tmp_path)
    aircraft(tmp_path)
    text(tmp_path / "fgvc-aircraft-2013b" / "data" / "images_family_test.txt", "007 Concorde\n")
    with pytest.raises(DataError, match="Concorde"):
        datasets.FGVCAircraft(tmp_path, "test", "family")
    with pytest.raises(UsageError, match="partition=11"):
        datasets.DTD(tmp_path, partition=11)


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def idx(array) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def test_emnist_reads_the_files_of_a_split(tmp_path) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    (raw / "emnist-letters-train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (raw / "emnist-letters-train-labels-idx1-ubyte").write_bytes(idx(np.array([26, 1], np.uint8)))
    data = datasets.EMNIST(tmp_path, "letters", download=True)
    assert np.array_equal(data[0][0], images[0])
    assert [data.classes[target] for _, target in (data[0], data[1])] == ["z", "a"]
    assert len(datasets.EMNIST.classes_split_dict["balanced"]) == 47
    with pytest.raises(UsageError, match="'capitals'"):
        datasets.EMNIST(tmp_path, "capitals")


def test_usps_and_semeion_are_read_from_text(tmp_path) -> None:
    line = "4 " + " ".join(f"{i + 1}:{-1 if i % 2 else 1}" for i in range(256))
    packed = bz2.compress((line + "\n").encode())
    (tmp_path / "usps.bz2").write_bytes(packed)

    tiny = type("TinyUSPS", (datasets.USPS,), {"split_list": {"train": ("usps.bz2", md5(packed))}})
    image, digit = tiny(tmp_path)[0]
    assert (image.shape, image[0, :2].tolist(), digit) == ((16, 16), [255, 0], 3)
    with pytest.raises(DataError, match="MD5"):
        datasets.USPS(tmp_path)

    row = " ".join(["1.0000"] * 2 + ["0.0000"] * 254 + ["0"] * 7 + ["1", "0", "0"])
    (tmp_path / "semeion.data").write_text(row + "\n")

    tiny = type("TinySEMEION", (datasets.SEMEION,), {"md5_checksum": md5((row + "\n").encode())})
    image, digit = tiny(tmp_path)[0]
    assert (image.shape, image[0, :3].tolist(), digit) == ((16, 16), [255, 255, 0], 7)


def test_stl10_reads_its_parts_and_folds(tmp_path) -> None:
    base = tmp_path / "stl10_binary"
    base.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (3, 96, 96, 3), np.uint8)
    parts = {
        "train_X.bin": images.transpose(0, 3, 2, 1).tobytes(), "train_y.bin": bytes((1, 10, 4)),
        "unlabeled_X.bin": images[:1].transpose(0, 3, 2, 1).tobytes(),
    }  # fmt: skip
    for name, content in parts.items():
        (base / name).write_bytes(content)
    (base / "fold_indices.txt").write_text("2 0\n1\n")
    (base / "class_names.txt").write_text("airplane\nbird\n")

    tiny = type("TinySTL10", (datasets.STL10,), {"files": {name: md5(part) for name, part in parts.items()}})
    data = tiny(tmp_path, download=True)
    assert np.array_equal(data[1][0], images[1])
    assert data.labels.tolist() == [0, 9, 3]
    assert data.classes == ["airplane", "bird"]
    assert tiny(tmp_path, folds=0).labels.tolist() == [3, 0]
    assert tiny(tmp_path, "train+unlabeled").labels.tolist() == [0, 9, 3, -1]
    with pytest.raises(UsageError, match="folds=10"):
        tiny(tmp_path, folds=10)


def test_matlab_files_are_read_with_scipy(tmp_path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 2), np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": images, "y": np.array([[10], [3]], np.uint8)})

    listed = {"test": ("test_32x32.mat", md5((tmp_path / "test_32x32.mat").read_bytes()))}
    data = type("TinySVHN", (datasets.SVHN,), {"split_list": listed})(tmp_path, "test")
    assert np.array_equal(data[1][0], images[..., 1])
    assert data.labels.tolist() == [0, 3]

    base = tmp_path / "flowers-102"
    picture(base / "jpg" / "image_00002.jpg", 60)
    savemat(base / "setid.mat", {"trnid": np.array([[2]]), "valid": np.array([[3]])})
    savemat(base / "imagelabels.mat", {"labels": np.array([[5, 77]])})
    flowers = datasets.Flowers102(tmp_path)
    assert (round(float(flowers[0][0].mean())), flowers[0][1]) == (60, 76)
    with pytest.raises(DataError, match="image 3"):
        datasets.Flowers102(tmp_path, "val")
    (base / "setid.mat").write_bytes(b"no MATLAB file")
    with pytest.raises(DataError, match=r"setid\.mat"):
        datasets.Flowers102(tmp_path)


def test_images_of_characters_have_one_channel(tmp_path) -> None:
    assert characters(tmp_path)[0][0][0].shape == (4, 5)
    with pytest.raises(DataError, match="images_evaluation"):
        datasets.Omniglot(tmp_path, background=False)


def test_a_set_of_torchvision_that_is_left_out_names_what_to_use_and_the_docs_name_it() -> None:
    with pytest.raises(AttributeError, match=r"'CelebA'.*ImageFolder"):
        _ = datasets.CelebA
    with pytest.raises(AttributeError, match=r"has no attribute 'CelebB'$"):
        _ = datasets.CelebB
    page = (ROOT / "docs" / "explanation" / "left-out.md").read_text()
    named = re.findall(r"`(\w+)`", page.partition("**Data sets of torchvision**")[2].partition(". ")[0])
    for name in named:
        with pytest.raises(AttributeError, match="left-out"):
            getattr(datasets, name)
    assert {"CelebA", "Kinetics", "StanfordCars"} < set(named)


def test_fake_data_is_the_same_in_every_run_and_ends() -> None:
    data = datasets.FakeData(size=3, image_size=(1, 4, 5), num_classes=2, transform=np.ndarray.tolist)
    state = torch.get_rng_state()
    assert data[1] == datasets.FakeData(2, (1, 4, 5), 2, np.ndarray.tolist)[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert data[2] == datasets.FakeData(1, (1, 4, 5), 2, np.ndarray.tolist, random_offset=2)[0]
    assert len(list(data)) == 3
    with pytest.raises(UsageError, match="num_classes=0"):
        datasets.FakeData(num_classes=0)
