"""What tests may do without elsewhere must be there where all of them have to run."""

import os
import shutil
from importlib.util import find_spec

import pytest

NEEDED = (
    "cloudpickle",
    "nncf",
    "onnx",
    "onnxruntime",
    "openvino",
    "pandas",
    "pyarrow",
    "pyspark",
    "ray",
    "tensorboard",
)


@pytest.mark.skipif(os.environ.get("CI", "").lower() not in {"1", "true"}, reason="only CI must have everything")
def test_ci_leaves_out_no_test_for_want_of_a_package() -> None:
    assert [name for name in NEEDED if find_spec(name) is None] == []
    assert shutil.which("java") is not None, "Spark needs Java"
