import errno
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
from support.disk import small_files

from boxwright.core.files import (
    GrowingFile,
    is_inside,
    is_private,
    naming,
    read_bytes,
    require_file,
    whole_file,
    write_whole,
    writing,
)
from boxwright.core.signals import sigterm_raises


@pytest.fixture
def special(tmp_path: Path) -> dict[str, Path]:
    """A FIFO, a socket, a device and links to them, none of which can be read as a file."""
    paths = {kind: tmp_path / kind for kind in ("FIFO", "socket", "device", "link to a FIFO")}
    os.mkfifo(paths["FIFO"])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(paths["socket"]))
    paths["device"].symlink_to("/dev/zero")
    paths["link to a FIFO"].symlink_to("FIFO")
    return paths


def test_what_is_no_file_is_named_before_it_is_opened(special: dict[str, Path]) -> None:
    for kind, path in special.items():
        with pytest.raises(OSError, match=f"it is a {kind.split()[-1]}.*not a regular file"):
            read_bytes(path)


def test_files_links_and_folders_pass(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").symlink_to("a")
    assert (require_file(tmp_path / "a"), read_bytes(tmp_path / "b")) == (5, b"12345")
    require_file(tmp_path)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes"):
        read_bytes(tmp_path / "sparse", max_bytes=1 << 30)


def test_names_decide_what_is_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert all(is_inside(path, ".") for path in ("a/b", tmp_path / "a", "a/..", "."))
    assert not any(is_inside(path, ".") for path in ("../a", "a/../../b", "/etc/passwd", f"{tmp_path}s"))
    assert is_inside("/etc/passwd", tmp_path, "/")


def test_a_full_disk_is_reported_with_the_path_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_whole(path, "old")
    with small_files(1000), pytest.raises(OSError, match=r"report\.json") as caught:
        write_whole(path, "x" * 5000)
    assert caught.value.filename == str(path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text() == "old"


def test_an_error_names_the_file_and_not_its_draft(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"/new\.txt'") as caught, whole_file(tmp_path / "new.txt") as draft:
        draft.mkdir()
    assert ".tmp" not in str(caught.value)
    assert "None" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("basic_ios::clear: iostream error"),
        shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]),
        OSError(errno.ENOSPC, "No space left on device", "/draft/model.bin"),
    ],
    ids=["OpenVINO", "copytree", "a file inside"],
)
def test_a_full_disk_is_the_same_error_whoever_finds_it(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(OSError, match=r"No space left on device: .*/model\.xml'"), writing(tmp_path / "model.xml"):
        raise error


def test_other_errors_of_a_writer_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shape"), writing(tmp_path / "model.xml"):
        raise RuntimeError("shape")


def test_an_error_that_names_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"), naming(tmp_path / "mine"):
        (tmp_path / "gone").read_bytes()


def test_a_growing_file_holds_whole_pieces_when_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    file = GrowingFile(path)
    with small_files(1000):
        for _ in range(3):
            file.add("x" * 299 + "\n")
            assert path.read_text().endswith("x\n")
        with pytest.raises(OSError, match=r"lines\.jsonl") as caught:
            file.add("y" * 299 + "\n")
    assert caught.value.errno == errno.EFBIG
    file.add("later\n")
    file.close()
    assert path.read_text() == ("x" * 299 + "\n") * 3 + "later\n"


def test_sigterm_becomes_an_exception_and_only_inside_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, sigterm_raises():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_only_what_nobody_else_can_write_to_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    assert not is_private(path)
    path.touch(mode=0o644)
    assert is_private(path)
    for mode in (0o664, 0o646):
        path.chmod(mode)
        assert not is_private(path)
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert not is_private(path)
