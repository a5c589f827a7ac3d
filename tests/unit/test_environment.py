"""What tests may do without elsewhere must be there where all of them have to run."""

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
from packaging.requirements import Requirement
from support.shared import ROOT

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


def test_no_torch_is_installed_that_was_never_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = [Requirement(one) for names in extras.values() for one in names if Requirement(one).name == "torch"]
    assert found
    assert all(any(part.operator == "<" for part in one.specifier) for one in found)


def test_a_test_that_hangs_fails_in_due_time() -> None:
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < left_s <= float(os.environ["PYTEST_TIMEOUT"])


def test_ctrl_c_reaches_the_programs_of_tests_where_the_caller_ignores_it() -> None:
    show = "import signal; print(signal.getsignal(signal.SIGINT).__name__)"
    code = f"import conftest, subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}])"
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", code],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": "tests"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "default_int_handler\n", done.stderr
