import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boxwright.core.errors import UsageError
from boxwright.core.spec import Spec


def test_classes_and_output_rows_are_counted():
    spec = Spec(names=("cat", "dog"), size_hw=(640, 640))
    assert spec.num_classes == 2
    assert spec.num_anchors == 80 * 80 + 40 * 40 + 20 * 20


def test_height_and_width_may_differ():
    assert Spec(names=("cat",), size_hw=(32, 64)).num_anchors == 4 * 8 + 2 * 4 + 1 * 2


@pytest.mark.parametrize("size_hw", [(600, 640), (640, 630), (0, 640), (16, 16), (-32, 32)])
def test_a_size_that_does_not_fit_the_strides_is_refused(size_hw: tuple[int, int]):
    with pytest.raises(UsageError, match="must be multiples of 32"):
        Spec(names=("cat",), size_hw=size_hw)


def test_a_size_may_be_finer_where_the_strides_are():
    assert Spec(names=("cat",), size_hw=(48, 16), strides=(8, 16)).num_anchors == 6 * 2 + 3 * 1


def test_a_detector_without_classes_is_refused():
    with pytest.raises(UsageError, match="at least one class name"):
        Spec(names=(), size_hw=(32, 32))


def test_there_must_be_a_category_id_for_each_name():
    with pytest.raises(UsageError, match="2 class names but 1 category ids"):
        Spec(names=("cat", "dog"), size_hw=(32, 32), category_ids=(17,))


def test_a_spec_can_not_be_changed():
    spec = Spec(names=("cat",), size_hw=(32, 32))
    with pytest.raises(FrozenInstanceError):
        spec.model = "yolox_s"  # type: ignore[misc]


def test_only_names_and_size_are_needed_to_read_a_spec():
    assert Spec.from_dict({"names": ["cat"], "size_hw": [32, 64]}) == Spec(names=("cat",), size_hw=(32, 64))


def test_keys_of_later_versions_are_left_out():
    values = Spec(names=("cat",), size_hw=(32, 32)).to_dict()
    assert Spec.from_dict(values | {"colour": "red"}) == Spec.from_dict(values)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    names = draw(st.lists(st.text(max_size=8), min_size=1, max_size=5).map(tuple))
    ids = st.lists(st.integers(0, 999), min_size=len(names), max_size=len(names)).map(tuple)
    return Spec(
        names=names,
        size_hw=(draw(st.integers(1, 20)) * 64, draw(st.integers(1, 20)) * 64),
        model=draw(st.sampled_from(["", "yolox_s"])),
        preprocessing=draw(st.sampled_from(["bgr255", "legacy"])),
        output=draw(st.sampled_from(["raw", "scores", "decoded"])),
        strides=draw(st.sampled_from([(8, 16, 32), (8, 16, 32, 64)])),
        category_ids=draw(st.just(()) | ids),
        activation=draw(st.sampled_from(["silu", "lrelu"])),
    )


@settings(deadline=None)
@given(specs())
def test_a_spec_comes_back_equal_through_json(spec: Spec):
    assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size_hw": (320000, 320000)}, "at most 8192 pixels"),
        ({"strides": (0, 0, 0)}, "strides"),
        ({"strides": ()}, "strides"),
        ({"names": tuple(map(str, range(100_001)))}, "too many"),
    ],
)
def test_numbers_that_no_machine_can_run_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Spec(**{"names": ("a",), "size_hw": (64, 64)} | changes)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000, "[]", "null", "{}", "{", '{"names": "abc", "size_hw": [64, 64]}',
        '{"names": ["a"], "size_hw": 64}', '{"names": ["a"], "size_hw": [Infinity, 64]}',
        '{"names": ["a"], "size_hw": [NaN, 64]}', '{"names": ["a"], "size_hw": ["x", 64]}',
        '{"names": ["a"], "size_hw": [64, 64], "strides": [null]}',
        '{"names": ["a"], "size_hw": [64, 64], "output": []}',
    ],
    ids=lambda text: text[-30:],
)  # fmt: skip
def test_a_description_that_is_none_is_refused_in_one_kind_of_error(text: str) -> None:
    with pytest.raises(UsageError):
        Spec.from_json(text)
