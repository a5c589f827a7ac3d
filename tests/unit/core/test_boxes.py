import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from boxwright.core.boxes import (
    FloatArray,
    area_xyxy,
    clip_xyxy,
    cxcywh_to_xyxy,
    xywh_to_xyxy,
    xyxy_to_cxcywh,
    xyxy_to_xywh,
)

# Multiples of 1/4 add, subtract and halve without rounding, so that comparisons can be exact.
quarters = st.integers(-4000, 4000).map(lambda n: n / 4)
boxes = arrays(np.float64, st.tuples(st.integers(0, 6), st.just(4)), elements=quarters)


def box(*values: float) -> FloatArray:
    return np.array([values], np.float32)


def test_one_box_in_all_three_forms():
    assert cxcywh_to_xyxy(box(20, 30, 10, 20)).tolist() == [[15, 20, 25, 40]]
    assert xyxy_to_cxcywh(box(15, 20, 25, 40)).tolist() == [[20, 30, 10, 20]]
    assert xyxy_to_xywh(box(15, 20, 25, 40)).tolist() == [[15, 20, 10, 20]]
    assert xywh_to_xyxy(box(15, 20, 10, 20)).tolist() == [[15, 20, 25, 40]]


@settings(deadline=None)
@given(boxes)
def test_forms_convert_there_and_back(given_boxes: FloatArray):
    np.testing.assert_array_equal(cxcywh_to_xyxy(xyxy_to_cxcywh(given_boxes)), given_boxes)
    np.testing.assert_array_equal(xywh_to_xyxy(xyxy_to_xywh(given_boxes)), given_boxes)


@pytest.mark.parametrize("convert", [cxcywh_to_xyxy, xyxy_to_cxcywh, xyxy_to_xywh, xywh_to_xyxy])
@pytest.mark.parametrize("shape", [(4,), (0, 4), (2, 3, 4)])
def test_conversion_keeps_shape_and_type(convert, shape: tuple[int, ...]):
    converted = convert(np.ones(shape, np.float32))
    assert (converted.shape, converted.dtype) == (shape, np.float32)


def test_boxes_are_cut_to_the_image():
    clipped = clip_xyxy(box(-5, -6, 700, 500), (480, 640))
    assert clipped.tolist() == [[0, 0, 640, 480]]
    assert clipped.dtype == np.float32
    assert clip_xyxy(box(1, 2, 3, 4), (480, 640)).tolist() == [[1, 2, 3, 4]]


def test_cutting_leaves_the_given_boxes_alone():
    given_boxes = box(-5, -6, 700, 500)
    clip_xyxy(given_boxes, (480, 640))
    assert given_boxes.tolist() == [[-5, -6, 700, 500]]


def test_a_box_with_a_negative_side_has_no_area():
    corners = np.array([[0, 0, 2, 3], [2, 3, 0, 0], [0, 3, 2, 0], [1, 1, 1, 5]], np.float32)
    assert area_xyxy(corners).tolist() == [6, 0, 0, 0]
