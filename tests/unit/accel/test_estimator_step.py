"""Steps, losses and inputs of a batch."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from boxwright.accel.estimator.blueprint import LossStep, make_loss, name_losses, own_loss_step, run_step
from boxwright.core.batches import BatchForm, count_samples
from boxwright.core.errors import UsageError

IMAGE = torch.zeros(3, 8, 9)
ONE, TWO = torch.tensor(1.0), torch.tensor(2.0)


@pytest.mark.parametrize(
    ("losses", "total", "names"),
    [
        (ONE, 1.0, {"loss"}),
        (torch.tensor([1.0]), 1.0, {"loss"}),
        ({"box": ONE, "class": TWO}, 3.0, {"loss", "box", "class"}),
        ({"total_loss": TWO, "box": ONE}, 2.0, {"loss", "total_loss", "box"}),
        ({"loss": TWO, "box": ONE}, 2.0, {"loss", "box"}),
    ],
)
def test_the_loss_that_is_minimised_is_found(losses: Any, total: float, names: set[str]) -> None:
    named = name_losses(losses)
    assert named["loss"].item() == total
    assert named["loss"].ndim == 0
    assert set(named) == names


@pytest.mark.parametrize("losses", [torch.zeros(2), {"box": 1.0}, "loss", {"box": torch.zeros(3)}])
def test_what_is_no_loss_is_refused(losses: Any) -> None:
    with pytest.raises(UsageError, match="Losses must be"):
        name_losses(losses)


def test_a_step_must_return_a_pair_or_three() -> None:
    with pytest.raises(UsageError, match=r"returned a Tensor of shape \(2,\)"):
        run_step(lambda model, batch: torch.zeros(2), nn.Identity(), torch.zeros(2))


def test_targets_are_the_third_value_or_the_last_of_the_batch() -> None:
    batch = (torch.zeros(5, 2), torch.ones(5))
    result = run_step(lambda model, batch: (ONE, "outputs"), nn.Identity(), batch)
    assert torch.equal(result.targets, batch[1])
    assert (result.outputs, result.samples) == ("outputs", 5)
    assert run_step(lambda model, batch: (None, 1, "targets"), nn.Identity(), batch).targets == "targets"


class Answers(nn.Module):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *batch: Any, **named: Any) -> Any:
        return self.answer


OUTPUTS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("answer", "losses", "outputs"),
    [
        (ONE, ONE, None),
        (OUTPUTS, None, OUTPUTS),
        ({"box": ONE}, {"box": ONE}, None),
        ({"loss": ONE, "logits": OUTPUTS}, {"loss": ONE}, {"logits": OUTPUTS}),
        ((ONE, OUTPUTS), ONE, OUTPUTS),
        (({"box": ONE}, OUTPUTS), {"box": ONE}, OUTPUTS),
        ((OUTPUTS, OUTPUTS), None, (OUTPUTS, OUTPUTS)),
    ],
)
@pytest.mark.parametrize("batch", [(OUTPUTS, OUTPUTS), {"x": OUTPUTS}, OUTPUTS])
def test_losses_and_outputs_of_a_model_that_owns_its_loss_are_told_apart(
    answer: Any, losses: Any, outputs: Any, batch: Any
) -> None:
    found = own_loss_step(Answers(answer), batch)
    assert repr(found) == repr((losses, outputs))


class OneInput(nn.Module):
    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return x * scale


@pytest.mark.parametrize("batch", [ONE, (ONE,), [ONE, torch.tensor(7.0)], {"x": ONE}])
def test_a_target_in_the_batch_is_no_input_of_a_prediction(batch: Any) -> None:
    (args, kwargs), _ = BatchForm(OneInput()).split(batch)
    assert OneInput()(*args, **kwargs).item() == 2.0


def test_a_loss_is_a_module_a_class_a_function_or_a_creator() -> None:
    module = nn.MSELoss()
    assert make_loss(module, {}) is module
    assert isinstance(make_loss(nn.L1Loss, {}), nn.L1Loss)
    assert make_loss(nn.functional.mse_loss, {}) is nn.functional.mse_loss
    made = make_loss(lambda config: nn.SmoothL1Loss(beta=config["beta"]), {"beta": 0.5})
    assert isinstance(made, nn.SmoothL1Loss)
    assert made.beta == 0.5
    for wrong, message in ((3, "loss=3 can't be used"), (lambda config: 3, "creator returned a int")):
        with pytest.raises(UsageError, match=message):
            make_loss(wrong, {})


def test_a_batch_without_a_target_is_refused_by_a_loss() -> None:
    with pytest.raises(UsageError, match="last element is the target"):
        LossStep(nn.MSELoss())(nn.Identity(), torch.zeros(2))


@pytest.mark.parametrize("batch", [(ONE, TWO), {"x": ONE, "label": TWO}])
def test_a_loss_compares_with_the_part_of_a_batch_that_forward_does_not_take(batch: Any) -> None:
    loss, outputs, target = LossStep(nn.functional.l1_loss)(OneInput(), batch)
    assert (loss.item(), outputs.item(), target.item()) == (0.0, 2.0, 2.0)


class ImagesAndTargets(nn.Module):
    def forward(self, images: Any, targets: Any) -> Any: ...


def test_lists_of_images_and_targets_stay_together_for_a_model_that_needs_both() -> None:
    batch = ([IMAGE, IMAGE], [{"boxes": torch.zeros(0, 4)}] * 2)
    assert BatchForm(ImagesAndTargets()).split(batch) == ((batch, {}), None)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ((torch.zeros(3, 2), torch.zeros(3)), 3),
        ({"ids": ["a", "b"], "x": torch.zeros(2, 5)}, 2),
        ((["a", "b", "c"],), 3),
        ([torch.tensor(1.0), torch.zeros(4)], 4),
        # A list of images and one of targets, as detectors want them; a lone image of 3 channels with 3 boxes too.
        (((IMAGE, IMAGE), ({"boxes": torch.zeros(3, 4)}, {"boxes": torch.zeros(0, 4)})), 2),
        (([IMAGE], [{"boxes": torch.zeros(3, 4)}]), 1),
        (([IMAGE, IMAGE], [torch.tensor(1), torch.tensor(0)]), 2),
        (((IMAGE, IMAGE),), 2),
        (([IMAGE, IMAGE], torch.zeros(7, 5)), 2),
        # Inputs in a pair of their own, as torch's own collation nests them.
        ([[torch.zeros(4, 1), torch.zeros(4, 2)], torch.zeros(4)], 4),
        (((torch.zeros(4, 1), torch.zeros(4, 2)), torch.zeros(4)), 4),
        ([[torch.zeros(4, 1), torch.zeros(4, 2)], [torch.zeros(4), torch.zeros(4)]], 4),
        ((((torch.zeros(4, 1), torch.zeros(4, 2)), torch.zeros(4)),), 4),
        (Pair(torch.zeros(4, 1), torch.zeros(4)), 4),
        ((Pair(torch.zeros(4, 1), torch.zeros(4)),), 4),
        ([], 0),
    ],
)
def test_samples_of_a_batch_are_counted(batch: Any, samples: int) -> None:
    assert count_samples(batch) == samples
