import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from boxwright.launchers.folder import launch_folder


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make_left_over(temp: Path, *, lock: bool = True) -> Path:
    folder = temp / "boxwright-launch-left"
    folder.mkdir()
    (folder / "job").write_text("x")
    if lock:
        (folder / "lock").touch()
    return folder


def test_the_folder_is_private_and_gone_afterwards():
    with launch_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "job").write_text("x")

    assert not folder.exists()


def test_it_is_gone_after_an_error_too():
    with pytest.raises(ZeroDivisionError), launch_folder() as folder:
        _ = 1 / 0

    assert not folder.exists()


def test_what_a_killed_launch_left_is_removed(temp: Path):
    left = make_left_over(temp)

    with launch_folder():
        assert not left.exists()


def test_folders_in_use_are_left_alone(temp: Path):
    with launch_folder() as first, launch_folder():
        assert first.exists()

    used = make_left_over(temp)
    with (used / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with launch_folder():
            assert used.exists()


def test_a_folder_without_a_lock_is_removed_only_when_it_is_old(temp: Path):
    left = make_left_over(temp, lock=False)
    with launch_folder():
        assert left.exists()

    os.utime(left, (0, 0))
    with launch_folder():
        assert not left.exists()


def test_other_folders_are_left_alone(temp: Path):
    other = temp / "boxwright-runs"
    other.mkdir()
    os.utime(other, (0, 0))

    with launch_folder():
        assert other.exists()
