"""The public names are what `__all__` says, and asking for the package brings in nothing heavy."""

import subprocess
import sys

import pytest

import boxwright


@pytest.mark.parametrize("name", boxwright.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(boxwright, name) is not None
    assert name in dir(boxwright)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Predictr'"):
        boxwright.Predictr  # noqa: B018


def test_importing_the_package_imports_neither_torch_nor_opencv() -> None:
    code = "import sys, boxwright; print(sorted({'torch', 'cv2', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
