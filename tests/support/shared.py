"""Where tests find real weights and data: the folder `BOXWRIGHT_TEST_DATA`, by default `shared` beside the checkout."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def shared_root() -> Path:
    return Path(os.environ.get("BOXWRIGHT_TEST_DATA", ROOT.parent / "shared")).resolve()


def shared_path(relative: str) -> Path:
    """Return a path of the test data; skip the test where there is none, fail it in CI."""
    path = shared_root() / relative
    if not path.exists():
        reason = f"needs {relative!r} of the test data (looked in {shared_root()}; set BOXWRIGHT_TEST_DATA)"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"CI must have the test data: {reason}")
        pytest.skip(reason)
    return path
