import numpy as np
import pytest

from boxwright.data.batch import pad_targets


def boxes(*sides: float) -> np.ndarray:
    return np.array([(i, 50, 50, side, side) for i, side in enumerate(sides)], np.float32).reshape(-1, 5)


@pytest.mark.parametrize(("counts", "width"), [((0, 0), 8), ((3, 8), 8), ((9, 1), 16), ((121,), 128)])
def test_targets_are_padded_to_what_the_batch_needs_in_steps_of_8(counts: tuple[int, ...], width: int) -> None:
    padded, dropped = pad_targets([boxes(*range(1, n + 1)) for n in counts], None)
    assert padded.shape == (len(counts), width, 5)
    assert dropped == 0
    for row, count in zip(padded, counts, strict=True):
        assert np.array_equal(row[:count], boxes(*range(1, count + 1)))
        assert not row[count:].any()


def test_a_fixed_width_keeps_the_largest_boxes_in_their_order() -> None:
    padded, dropped = pad_targets([boxes(5, 1, 9, 7), boxes(2)], 2)
    assert padded[0, :, 0].tolist() == [2, 3]
    assert padded[1, 0].tolist() == boxes(2)[0].tolist()
    assert dropped == 2


def test_a_fixed_width_stays_when_there_are_fewer_boxes() -> None:
    assert pad_targets([boxes()], 120)[0].shape == (1, 120, 5)


def test_no_image_gives_an_empty_batch() -> None:
    assert pad_targets([], None)[0].shape == (0, 8, 5)
