from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from boxwright.core.errors import UsageError
from boxwright.tasks.run_folders import new_run_folder


def test_every_run_gets_the_next_number(tmp_path: Path) -> None:
    base = tmp_path / "runs" / "predict"
    assert [new_run_folder(base).name for _ in range(3)] == ["exp", "exp2", "exp3"]
    (base / "exp2").rmdir()
    assert new_run_folder(base) == base / "exp2"


def test_runs_that_start_at_once_get_different_folders(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(new_run_folder, [tmp_path] * 32))
    assert len(set(folders)) == 32


def test_a_base_that_can_be_no_folder_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone" / "away")
    for base in (tmp_path / "file", tmp_path / "file" / "deeper", tmp_path / "dangling"):
        with pytest.raises(UsageError, match=r"(exists|directory)\. Name another folder with --out"):
            new_run_folder(base)
