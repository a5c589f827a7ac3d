import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from boxwright.core.errors import DataError, UsageError
from boxwright.vision import transforms as T
from boxwright.vision.datasets import DatasetFolder, ImageFolder


@pytest.fixture
def root(tmp_path, photo):
    for name, files in {"dog": ["b.png", "a.JPG"], "cat": ["deep/c.png", "notes.txt"]}.items():
        for file in files:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("no image") if file.endswith("txt") else Image.fromarray(photo).save(path)
    (tmp_path / "readme.txt").write_text("not a class")
    return tmp_path


def test_folders_are_classes_and_files_are_samples_in_sorted_order(root):
    data = ImageFolder(root)
    assert data.classes == ["cat", "dog"]
    assert data.class_to_idx == {"cat": 0, "dog": 1}
    assert [path[len(str(root)) + 1 :] for path, _ in data.samples] == ["cat/deep/c.png", "dog/a.JPG", "dog/b.png"]
    assert data.targets == [0, 1, 1]
    assert data.imgs is data.samples
    assert len(data) == 3


def test_a_sample_is_an_rgb_array_and_its_class_number(root, photo):
    image, target = ImageFolder(root)[0]
    assert np.array_equal(image, photo)
    assert target == 0


def test_both_transforms_are_used_and_may_be_set_later(root):
    data = ImageFolder(root, T.ToTensor(), lambda number: f"class {number}")
    image, target = data[2]
    assert image.shape == (3, 120, 160)
    assert target == "class 1"
    data.transform = T.Compose([T.Resize((8, 8)), T.ToTensor()])
    assert data[2][0].shape == (3, 8, 8)


def test_own_loaders_and_rules_decide_what_a_sample_is(root):
    texts = DatasetFolder(root, lambda path: Path(path).read_text(), extensions=(".txt",), allow_empty=True)
    assert texts[0] == ("no image", 0)
    chosen = ImageFolder(root, is_valid_file=lambda path: path.endswith(("a.JPG", "c.png")))
    assert len(chosen) == 2


def test_a_subclass_may_choose_its_own_classes(root):
    class Dogs(ImageFolder):
        def find_classes(self, directory):
            return ["dog"], {"dog": 7}

    assert Dogs(root).targets == [7, 7]


def test_links_to_folders_are_followed(root, tmp_path_factory, photo):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    Image.fromarray(photo).save(elsewhere / "d.png")
    (root / "dog" / "more").symlink_to(elsewhere)
    assert len(ImageFolder(root)) == 4


def test_min_side_shrinks_large_jpegs_only(root):
    data = ImageFolder(root, min_side=60)
    assert data[1][0].shape == (60, 80, 3)
    assert data[2][0].shape == (120, 160, 3)
    assert len(pickle.loads(pickle.dumps(data))) == 3
    with pytest.raises(UsageError, match="default loader"):
        ImageFolder(root, loader=Image.open, min_side=60)
    with pytest.raises(UsageError, match="at least 1"):
        ImageFolder(root, min_side=0)


def test_a_class_without_files_is_named_unless_allowed(root):
    (root / "bird").mkdir()
    with pytest.raises(DataError, match=r"'bird'.*\.jpg"):
        ImageFolder(root)
    assert ImageFolder(root, allow_empty=True).classes == ["bird", "cat", "dog"]


def test_a_folder_without_classes_or_no_folder_at_all_is_named(tmp_path):
    with pytest.raises(DataError, match="no class folders"):
        ImageFolder(tmp_path)
    with pytest.raises(DataError, match="nowhere"):
        ImageFolder(tmp_path / "nowhere")


def test_endings_and_a_rule_exclude_each_other(root):
    with pytest.raises(UsageError, match="exactly one"):
        DatasetFolder(root, open)
    with pytest.raises(UsageError, match="exactly one"):
        DatasetFolder(root, open, extensions=(".txt",), is_valid_file=bool)


def test_a_damaged_image_is_named_when_it_is_asked_for(root):
    (root / "dog" / "b.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.png"):
        ImageFolder(root)[2]


def test_worker_processes_make_batches_in_order(root):
    steps = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5], [0.5])])
    data = ImageFolder(root, steps)
    torch.manual_seed(0)
    batches = list(DataLoader(data, batch_size=3, num_workers=2))
    assert batches[0][0].shape == (3, 3, 16, 16)
    assert batches[0][1].tolist() == [0, 1, 1]
