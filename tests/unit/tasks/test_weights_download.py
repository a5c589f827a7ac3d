"""Files fetched from a server that is slow, cuts off, lies about lengths and redirects."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mirror import Mirror, make_certificate, serve_files

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.tasks.weights.download import check_url, fetch

DATA = os.urandom(200_000)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serve_files() as mirror:
        mirror.files["/a.bin"] = DATA
        yield mirror


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "a.part"


def test_a_file_in_small_pieces_arrives_whole_and_is_counted(mirror: Mirror, part: Path) -> None:
    mirror.piece = 10_000
    counts: list[tuple[int, int]] = []
    fetch(f"{mirror.address}/a.bin", part, progress=lambda _, done, total: counts.append((done, total)))
    assert part.read_bytes() == DATA
    assert counts[-1] == (len(DATA), len(DATA))


def test_a_connection_that_is_cut_off_is_resumed_where_it_ended(mirror: Mirror, part: Path) -> None:
    mirror.cut_after = [50_000, 30_000]
    fetch(f"{mirror.address}/a.bin", part)
    assert part.read_bytes() == DATA
    assert [asked for _, asked in mirror.seen] == ["", "bytes=50000-", "bytes=80000-"]


def test_a_later_call_resumes(mirror: Mirror, part: Path) -> None:
    mirror.cut_after = [1000] * 5
    with pytest.raises(CheckpointError, match=r"cut off 5 times.*5,000 bytes.*The same command resumes"):
        fetch(f"{mirror.address}/a.bin", part)
    fetch(f"{mirror.address}/a.bin", part)
    assert part.read_bytes() == DATA
    assert mirror.seen[-1][1] == "bytes=5000-"


def test_no_resuming_is_promised_where_the_server_does_not_name_its_version(mirror: Mirror, part: Path) -> None:
    mirror.cut_after, mirror.etag = [1000] * 5, ""
    with pytest.raises(CheckpointError, match=r"cut off 5 times.*closed\. Check the network"):
        fetch(f"{mirror.address}/a.bin", part)
    fetch(f"{mirror.address}/a.bin", part)
    assert part.read_bytes() == DATA


def test_a_server_without_ranges_sends_the_file_again(mirror: Mirror, part: Path) -> None:
    mirror.cut_after, mirror.ranges = [50_000], False
    fetch(f"{mirror.address}/a.bin", part)
    assert part.read_bytes() == DATA


def test_a_file_that_has_changed_meanwhile_is_fetched_from_its_beginning(mirror: Mirror, part: Path) -> None:
    mirror.cut_after = [1000] * 5
    with pytest.raises(CheckpointError):
        fetch(f"{mirror.address}/a.bin", part)
    mirror.files["/a.bin"], mirror.etag = DATA[::-1], '"two"'
    fetch(f"{mirror.address}/a.bin", part)
    assert part.read_bytes() == DATA[::-1]


def test_a_part_longer_than_the_file_is_fetched_from_its_beginning(mirror: Mirror, part: Path) -> None:
    mirror.cut_after = [1000] * 5
    with pytest.raises(CheckpointError):
        fetch(f"{mirror.address}/a.bin", part)
    part.write_bytes(DATA + DATA)
    fetch(f"{mirror.address}/a.bin", part)
    assert part.read_bytes() == DATA


def test_another_mirror_does_not_continue_the_first_ones_part(mirror: Mirror, part: Path) -> None:
    mirror.cut_after = [1000] * 5
    with pytest.raises(CheckpointError):
        fetch(f"{mirror.address}/a.bin", part)
    mirror.files["/b.bin"] = DATA[::-1]
    fetch(f"{mirror.address}/b.bin", part)
    assert part.read_bytes() == DATA[::-1]


def test_a_server_that_sends_nothing_is_given_up(mirror: Mirror, part: Path) -> None:
    mirror.stall = True
    with pytest.raises(CheckpointError, match=r"sent nothing for 0\.2 s"):
        fetch(f"{mirror.address}/a.bin", part, timeout_s=0.2)


@pytest.mark.parametrize("announce", [True, False])
def test_a_file_of_the_wrong_size_is_refused(mirror: Mirror, part: Path, announce: bool) -> None:
    mirror.announce = announce
    with pytest.raises(CheckpointError, match="the file has 100,000"):
        fetch(f"{mirror.address}/a.bin", part, size_bytes=100_000)
    assert not part.exists() or not part.read_bytes()


def test_a_length_that_the_server_does_not_keep_is_a_cut(mirror: Mirror, part: Path) -> None:
    mirror.extra_length = 7
    with pytest.raises(CheckpointError, match="cut off"):
        fetch(f"{mirror.address}/a.bin", part)


def test_a_redirect_is_followed(mirror: Mirror, part: Path) -> None:
    mirror.redirects["/old.bin"] = "/a.bin"
    fetch(f"{mirror.address}/old.bin", part)
    assert part.read_bytes() == DATA


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://127.0.0.1/a.bin", "data:,text", "/old.bin"])
def test_no_redirect_leads_to_another_scheme_or_in_a_circle(mirror: Mirror, part: Path, to: str) -> None:
    mirror.redirects["/old.bin"] = to
    with pytest.raises(CheckpointError, match="the server answered 302") as caught:
        fetch(f"{mirror.address}/old.bin", part)
    assert "\n" not in str(caught.value)
    assert not part.exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, to make a certificate")
def test_a_redirect_from_https_to_http_is_refused(
    mirror: Mirror, part: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path / "certificate.pem")
    with serve_files(certificate) as secure:
        secure.files["/a.bin"] = DATA
        secure.redirects |= {"/down.bin": f"{mirror.address}/a.bin", "/same.bin": "/a.bin"}
        with pytest.raises(CheckpointError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch(f"{secure.address}/a.bin", part)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pytest.raises(CheckpointError, match="is not followed"):
            fetch(f"{secure.address}/down.bin", part)
        assert not mirror.seen
        fetch(f"{secure.address}/same.bin", part)
        mirror.redirects["/up.bin"] = f"{secure.address}/a.bin"
        fetch(f"{mirror.address}/up.bin", part)
    assert part.read_bytes() == DATA


def test_the_proxy_of_the_environment_is_asked(mirror: Mirror, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", mirror.address)
    monkeypatch.setenv("no_proxy", "")
    fetch("http://mirror.invalid/a.bin", part)
    assert part.read_bytes() == DATA
    assert mirror.seen == [("http://mirror.invalid/a.bin", "")]


def test_a_missing_file_and_a_dead_host_are_sentences(mirror: Mirror, part: Path) -> None:
    with pytest.raises(CheckpointError, match="the server answered 404 Not Found"):
        fetch(f"{mirror.address}/none.bin", part)
    with serve_files() as gone:
        address = gone.address
    with pytest.raises(CheckpointError, match=r"can't be reached.*--url"):
        fetch(f"{address}/a.bin", part)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a/b", "/srv/weights", "http:///a", "http://[", "http://a/b c", "http://a/b\n"]
)
def test_only_plain_web_addresses_are_fetched(url: str) -> None:
    with pytest.raises(UsageError, match="boxwright weights add"):
        check_url(url)
