import copy
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision import transforms as T


def double(value):
    return value * 2


def increase(value):
    return value + 1


def test_steps_run_one_after_the_other():
    assert T.Compose([double, increase])(3) == 7
    assert T.Compose([])(3) == 3
    assert T.Lambda(double)(3) == 6


def test_random_apply_runs_all_steps_or_none():
    torch.manual_seed(0)
    seen = Counter(T.RandomApply([double, increase], p=0.3)(3) for _ in range(300))
    assert set(seen) == {3, 7}
    assert 60 < seen[7] < 120


def test_random_apply_takes_a_module_list():
    step = T.RandomApply(nn.ModuleList([T.RandomHorizontalFlip(1.0)]), p=1.0)
    assert step(np.array([[1, 2]], np.uint8)).tolist() == [[2, 1]]
    assert len(list(step.modules())) == 3


def test_random_choice_follows_the_weights():
    torch.manual_seed(0)
    seen = Counter(T.RandomChoice([double, increase], p=[3, 1])(10) for _ in range(400))
    assert 250 < seen[20] < 350
    even = Counter(T.RandomChoice([double, increase])(10) for _ in range(400))
    assert 150 < even[20] < 250


def test_random_order_runs_every_step_in_changing_order():
    torch.manual_seed(0)
    assert {T.RandomOrder([double, increase])(3) for _ in range(50)} == {7, 8}


def test_one_seed_decides_everything_random(photo):
    steps = T.Compose(
        [
            T.RandomChoice([T.RandomCrop(60), T.RandomResizedCrop(60)]),
            T.RandomOrder([T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomHorizontalFlip(), T.RandomRotation(20)]),
            T.RandomApply([T.GaussianBlur(5)]),
            T.RandomPerspective(),
            T.RandomAffine(5, (0.1, 0.1), (0.9, 1.1), 5),
            T.ToTensor(),
            T.RandomErasing(value="random"),
        ]
    )
    torch.manual_seed(11)
    first = [steps(photo) for _ in range(5)]
    torch.manual_seed(11)
    again = [steps(photo) for _ in range(5)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])


def test_no_transform_changes_its_input(photo):
    before = photo.copy()
    torch.manual_seed(0)
    steps = [
        T.Resize(50), T.CenterCrop(200), T.RandomCrop(50, 4), T.RandomResizedCrop(50), T.Pad(3), T.RandomRotation(40),
        T.RandomHorizontalFlip(1), T.RandomVerticalFlip(1), T.RandomAffine(9), T.RandomPerspective(p=1),
        T.ColorJitter(0.5, 0.5, 0.5, 0.5), T.Grayscale(), T.RandomGrayscale(1), T.GaussianBlur(3), T.RandomInvert(1),
        T.RandomPosterize(2, 1), T.RandomSolarize(9, 1), T.RandomAdjustSharpness(2, 1), T.RandomAutocontrast(1),
        T.RandomEqualize(1), T.FiveCrop(20), T.TenCrop(20), T.ToTensor(), T.PILToTensor(), T.ToPILImage(),
    ]  # fmt: skip
    for step in steps:
        step(photo)
        assert np.array_equal(photo, before), step


def test_transforms_are_shown_with_their_arguments_and_can_be_sent_to_workers(photo):
    steps = T.Compose([T.Resize(50), T.RandomApply([T.RandomHorizontalFlip(1.0)], p=0.5), T.ToTensor()])
    assert "Resize(size=50, interpolation=bilinear" in repr(steps)
    assert "p=0.5" in repr(steps)
    for twin in (pickle.loads(pickle.dumps(steps)), copy.deepcopy(steps)):
        torch.manual_seed(0)
        expected = steps(photo)
        torch.manual_seed(0)
        assert torch.equal(twin(photo), expected)


def test_modules_can_be_chained_in_a_sequential(photo):
    assert nn.Sequential(T.Resize(50), T.CenterCrop(40))(photo).shape == (40, 40, 3)


def test_every_public_name_exists():
    assert all(hasattr(T, name) for name in T.__all__)


def test_every_transform_shows_its_arguments():
    assert repr(T.RandomPosterize(3)) == "RandomPosterize(bits=3, p=0.5)"
    assert repr(T.RandomCrop(4, padding=1)) == "RandomCrop(size=(4, 4), padding=1)"
    assert repr(T.Normalize([0.5], [0.25])) == "Normalize(mean=[0.5], std=[0.25])"
    assert repr(T.ToTensor()) == "ToTensor()"


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (T.ToTensor(), "pic"), (T.PILToTensor(), "pic"), (T.ToPILImage(), "pic"), (T.Resize(20), "img"),
        (T.RandomInvert(), "img"), (T.RandomAffine(9), "img"), (T.RandomApply([T.Resize(20)]), "img"),
    ],
)  # fmt: skip
def test_the_image_may_be_named_as_in_torchvision(photo, step, name):
    assert step(**{name: photo}) is not None


def test_a_subclass_may_have_its_own_constructor_and_attributes(photo):
    class CropTwice(T.RandomCrop):
        times: int

        def __init__(self, size):
            super().__init__(size)
            self.times = 2

        def forward(self, img):
            return super().forward(super().forward(img))

    assert CropTwice(20)(photo).shape == (20, 20, 3)


def test_neither_pillow_nor_torchvision_is_imported_before_it_is_needed():
    code = (
        "import sys, boxwright.vision.transforms, boxwright.vision.datasets\n"
        "sys.exit(' '.join(name for name in ('PIL', 'torchvision') if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Lambda(3),
        lambda: T.RandomApply(double),
        lambda: T.RandomApply([double], p=2),
        lambda: T.RandomChoice([]),
        lambda: T.RandomChoice([double], p=[0.5, 0.5]),
        lambda: T.RandomChoice([double], p=[0.0]),
        lambda: T.RandomOrder({double}),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(UsageError):
        make()
