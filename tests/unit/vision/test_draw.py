import numpy as np
import pytest

from boxwright.core.types import Detections
from boxwright.vision.draw import class_colour, contact_sheet, draw_dashed, draw_detections


def _found(*boxes: tuple[float, ...], scores: list[float] | None = None, size: int = 200) -> Detections:
    return Detections(
        boxes_xyxy=np.array(boxes, np.float32).reshape(-1, 4),
        scores=np.array(scores or [0.9] * len(boxes), np.float32),
        class_ids=np.arange(len(boxes)),
        names=("cat", "dog", "Wörter"),
        size_hw=(size, size),
    )


def _near(pixel: np.ndarray, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(pixel.astype(int) - colour).max() < 40)  # smoothed lines mix with what is below


def test_a_box_is_drawn_in_the_colour_of_its_class_and_the_image_stays_as_it_was() -> None:
    image = np.zeros((200, 200, 3), np.uint8)
    image.flags.writeable = False
    picture = draw_detections(image, _found((50, 100, 150, 180)))
    assert not image.any()
    assert picture.shape == image.shape
    assert _near(picture[180, 100], class_colour(0))
    assert _near(picture[140, 150], class_colour(0))
    assert not picture[140, 100].any()
    assert not picture[190:].any()


def test_boxes_are_scaled_to_a_picture_of_another_size() -> None:
    picture = draw_detections(np.zeros((100, 50, 3), np.uint8), _found((50, 100, 150, 180)))
    assert _near(picture[90, 25], class_colour(0))
    assert _near(picture[70, 38], class_colour(0)) or _near(picture[70, 37], class_colour(0))
    assert not picture[95:].any()


def test_without_detections_the_picture_is_the_image() -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    picture = draw_detections(image, _found())
    np.testing.assert_array_equal(picture, image)
    assert not np.shares_memory(picture, image)


def test_the_better_of_two_boxes_lies_on_top() -> None:
    image = np.zeros((200, 200, 3), np.uint8)
    box = (50.0, 100.0, 150.0, 180.0)
    for scores, above in (([0.9, 0.5], 0), ([0.5, 0.9], 1)):
        picture = draw_detections(image, _found(box, box, scores=scores))
        assert _near(picture[180, 100], class_colour(above))


@pytest.mark.parametrize("box", [(0, 0, 200, 200), (195, 0, 200, 5), (0, 195, 5, 200), (100, 100, 100, 100)])
def test_a_box_at_the_edge_keeps_its_label_inside(box: tuple[float, ...]) -> None:
    picture = draw_detections(np.zeros((200, 200, 3), np.uint8), _found(box))
    label = (picture == class_colour(0)).all(axis=2)
    # A filled label covers far more than the outline of a box of a few pixels.
    assert label.sum() > 150


def test_the_smallest_image_can_be_drawn_on() -> None:
    assert draw_detections(np.zeros((1, 1, 3), np.uint8), _found((0, 0, 1, 1), size=1)).shape == (1, 1, 3)


def test_neighbouring_classes_have_colours_that_are_easily_told_apart() -> None:
    colours = np.array([class_colour(i) for i in range(80)], int)
    assert ((colours >= 0) & (colours <= 255)).all()
    assert np.abs(np.diff(colours, axis=0)).sum(axis=1).min() > 100


def test_dashes_are_seen_on_any_ground_and_leave_gaps() -> None:
    image = np.full((100, 100, 3), 100, np.uint8)
    picture = draw_dashed(image, np.array([[40.0, 60.0, 160.0, 400.0]]), (200, 200))
    assert (image == 100).all()
    for line in (picture[30, 20:80], picture[99, 20:80], picture[30:, 20], picture[30:, 80]):
        assert set(np.unique(line)) == {0, 100, 255}
    assert (picture[40:90, 30:70] == 100).all()
    assert (picture[:, 90:] == 100).all()


def test_a_contact_sheet_has_each_image_at_the_top_left_of_its_cell() -> None:
    images = [np.full((2, 3, 3), shade, np.uint8) for shade in (1, 2, 3)]
    sheet = contact_sheet(images, (4, 5), fill=9)
    assert sheet[..., 0].tolist() == [
        [1, 1, 1, 9, 9, 2, 2, 2, 9, 9],
        [1, 1, 1, 9, 9, 2, 2, 2, 9, 9],
        *[[9] * 10] * 2,
        [3, 3, 3, 9, 9, 9, 9, 9, 9, 9],
        [3, 3, 3, 9, 9, 9, 9, 9, 9, 9],
        *[[9] * 10] * 2,
    ]
