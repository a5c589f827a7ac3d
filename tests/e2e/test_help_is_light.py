"""Help must not wait for large packages: none of them may be imported."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "cv2", "numpy", "onnxruntime", "lightning", "safetensors", "hotcoco", "yaml"}
PROGRAM = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr))
from boxwright.cli import main
main()
"""


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["predict", "--help"], ["eval", "--help"]])
def test_help_imports_no_large_package(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: boxwright")
    loaded = set(json.loads(done.stderr))
    assert "boxwright" in loaded
    assert loaded & HEAVY == set()
