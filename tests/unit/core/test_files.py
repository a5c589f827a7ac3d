import os
import socket
from pathlib import Path

import pytest

from boxwright.core.files import is_inside, read_bytes, require_file


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
