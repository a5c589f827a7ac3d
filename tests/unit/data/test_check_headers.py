"""The quick check: what headers, lengths and labels show, and that an unchanged set is not checked again."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from boxwright.data.check import FileFacts, check_files, check_headers, make_report
from boxwright.data.check.before import CheckedBefore
from boxwright.data.check.resume import check_resumed
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes


@pytest.fixture
def scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    return generate_scenes(tmp_path / "set", images=9, seed=6, size_hw=(64, 96))


def rules(facts: Sequence[FileFacts]) -> list[list[str]]:
    return [[finding.rule for finding in fact.findings] for fact in facts]


def test_headers_show_all_that_decoding_shows_of_whole_cut_off_and_foreign_files(scenes: Records) -> None:
    whole = scenes.path(1).read_bytes()
    scenes.path(1).write_bytes(whole[: len(whole) // 2])
    scenes.path(2).write_bytes(b"")
    scenes.path(3).unlink()
    scenes.path(4).write_text("no image at all")
    scenes.path(5).write_bytes(cv2.imencode(".jpg", np.zeros((40, 50, 3), np.uint8))[1].tobytes())
    scenes.path(6).write_bytes(cv2.imencode(".png", np.zeros((64, 96, 3), np.uint8))[1].tobytes())
    scenes.path(7).write_bytes(cv2.imencode(".bmp", np.zeros((64, 96, 3), np.uint8))[1].tobytes())
    scenes.path(8).write_bytes(whole + b"more bytes after the end")
    quick, full = (list(check(scenes, range(9), 2)) for check in (check_headers, check_files))
    assert rules(quick) == rules(full)
    assert [found[:1] for found in rules(quick)] == [
        [], ["truncated"], ["empty-file"], ["unreadable"], ["unreadable"], ["wrong-size"], [], [], [],
    ]  # fmt: skip
    assert [fact.size_hw for fact in quick] == [fact.size_hw for fact in full]


def test_what_only_decoding_shows_is_left_to_the_full_check(scenes: Records) -> None:
    whole = scenes.path(2).read_bytes()
    scenes.path(1).write_bytes(whole)
    assert [finding.rule for finding in make_report(scenes, list(check_headers(scenes, range(9), 1))).findings] == []
    assert "duplicate-image" in make_report(scenes, list(check_files(scenes, range(9), 1))).counts()


def test_a_set_is_known_as_checked_until_a_file_or_a_label_changes(scenes: Records) -> None:
    nothing = scenes.select([])
    report = make_report(scenes, list(check_headers(scenes, range(9), 1)))

    def before(records: Records = scenes, *, full: bool = False) -> CheckedBefore:
        return CheckedBefore(records, nothing, full=full, fresh_ns=0)

    assert before().load() is None
    before().save(report)
    assert before().load() == report
    assert before(full=True).load() is None
    assert before(scenes.with_names(tuple(reversed(scenes.names)))).load() is None
    assert CheckedBefore(scenes, nothing, full=False, fresh_ns=1 << 60).load() is None  # too fresh to trust its times
    os.utime(scenes.path(4))
    assert before().load() is None


def test_an_interrupted_check_continues_where_it_ended(scenes: Records, tmp_path: Path) -> None:
    scenes.path(2).write_bytes(b"")
    whole = list(check_files(scenes, range(9), 1))
    notes = tmp_path / "notes.part"
    interrupted = check_resumed(scenes, 1, notes)
    assert list(itertools.islice(interrupted, 5)) == whole[:5]
    interrupted.close()
    # Something untrue shows that the notes are used, up to the first line that is not whole.
    noted = notes.read_bytes().replace(b"0 bytes", b"9 bytes").splitlines(keepends=True)
    notes.write_bytes(b"".join(noted[:4]) + noted[4][:20])
    resumed = list(check_resumed(scenes, 1, notes))
    assert "9 bytes" in resumed[2].findings[0].message
    assert resumed[3:] == whole[3:]
    assert not notes.exists()
    assert list(check_resumed(scenes, 1, notes)) == whole
