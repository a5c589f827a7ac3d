"""Files that a launcher sends: brought once per machine, found by the workers, gone afterwards."""

import fcntl
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from boxwright.core.errors import UsageError
from boxwright.launchers.files import carried_file, check_files, receiving
from boxwright.launchers.folder import launch_folder, shared_folder


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_shared_folder_is_one_for_all_and_gone_with_the_last(own_folder: Path):
    with shared_folder("a") as first:
        (first / "file").touch()
        with shared_folder("a") as second, shared_folder("b") as other:
            assert first == second != other
            with launch_folder():  # which sweeps
                assert (second / "file").exists()
        assert (first / "file").exists()
    assert list(own_folder.iterdir()) == []


def test_a_shared_folder_whose_users_were_killed_is_swept(own_folder: Path):
    left = own_folder / "boxwright-launch-shared-x"
    left.mkdir()
    (left / "lock").touch()
    with shared_folder("y"):
        assert not left.exists()


def test_many_who_come_and_go_at_once_never_lose_the_folder(monkeypatch: pytest.MonkeyPatch):
    wrong: list[str] = []
    for name in ("unlink", "open", "mkdir", "rmdir", "listdir", "fstat"):
        monkeypatch.setattr(os, name, _with_pauses(getattr(os, name)))

    def use(number: int) -> None:
        for _ in range(75):
            time.sleep(random.random() * 0.008)  # so that the last one often leaves while the next one comes
            with shared_folder("a") as folder:
                own = folder / str(number)
                own.touch()
                time.sleep(random.random() * 0.002)
                if not own.exists():
                    wrong.append("it was removed under its user")

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _with_pauses(call: Callable[..., Any]) -> Callable[..., Any]:
    def paused(*args: Any, **kwargs: Any) -> Any:
        time.sleep(random.choice((0.0, 0.0005)))
        result = call(*args, **kwargs)
        time.sleep(random.choice((0.0, 0.0005)))
        return result

    return paused


def test_the_lock_of_a_folder_goes_last(monkeypatch: pytest.MonkeyPatch):
    gone: list[str] = []
    unlink = os.unlink

    def unlink_and_note(path: str | Path, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        gone.append(Path(path).name)

    with shared_folder("a") as folder:
        for name in "0123456789":
            (folder / name).touch()
        monkeypatch.setattr(os, "unlink", unlink_and_note)
    monkeypatch.undo()
    assert sorted(gone) == [*"0123456789", "lock"]
    assert gone[-1] == "lock"
    assert not folder.exists()


def test_a_folder_that_is_removed_while_a_process_enters_is_made_again(monkeypatch: pytest.MonkeyPatch):
    flock, removed = fcntl.flock, []

    def remove_first(fd: int, operation: int) -> None:
        """Let a sweeper remove the folder between the newcomer's opening of the lock and its locking."""
        if operation == fcntl.LOCK_SH and not removed:
            removed.append(Path(os.readlink(f"/proc/self/fd/{fd}")).parent)
            shutil.rmtree(removed[0])
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with shared_folder("a") as folder:
        assert removed == [folder]
        assert (folder / "lock").exists()
    assert not folder.exists()


def test_files_are_brought_once_per_machine(own_folder: Path):
    count: list[Path] = []
    both = threading.Barrier(2)

    def bring(folder: Path) -> None:
        count.append(folder)
        (folder / "data").write_text("all")

    def use() -> None:
        with receiving("k", bring) as folder:
            assert (folder / "data").read_text() == "all"
            both.wait(30)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(count) == 1
    assert list(own_folder.iterdir()) == []


def test_files_that_can_not_be_sent_are_refused(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "x").write_text("12345")
    (tmp_path / "a" / "x").touch()
    assert check_files([tmp_path / "x"]) == 5
    with pytest.raises(UsageError, match="is not a file"):
        check_files([tmp_path / "a"])
    with pytest.raises(UsageError, match="named 'x'"):
        check_files([tmp_path / "x", tmp_path / "a" / "x"])
    with pytest.raises(UsageError, match="No file 'x'"):
        carried_file("x")
