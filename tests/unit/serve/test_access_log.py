"""The access log when its file is moved away."""

from pathlib import Path

from boxwright.serve.access_log import AccessLog


def test_a_log_that_can_not_be_opened_again_goes_into_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = AccessLog(str(tmp_path / "logs" / "access.log"))
    log.write(path="/one")
    (tmp_path / "logs").rename(tmp_path / "old")
    log.reopen()
    log.write(path="/two")
    text = (tmp_path / "old" / "access.log").read_text(encoding="utf-8")
    assert [word in text for word in ("/one", "/two")] == [True, True]
    (tmp_path / "logs").mkdir()
    log.reopen()
    log.write(path="/three")
    assert (tmp_path / "logs" / "access.log").read_text(encoding="utf-8").count("/three") == 1
    log.close()
