"""What a training shows: drawn by the starting process on a terminal, plain lines anywhere else."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from boxwright.cli.train import draw
from boxwright.core.errors import WorkerError
from boxwright.data.synthetic import generate_scenes
from boxwright.tasks.train.progress import StepReport, receive, send_progress

REPORT = StepReport(
    step=50, total=200, epoch=1.25, images_per_s=32.04, left_s=75.0, lr=0.0125, memory_mb=1234.5, processes=2,
    losses={"total": 7.1, "iou": 4.0, "objectness": 2.0, "classes": 1.1, "l1": 0.0},
)  # fmt: skip


def test_a_report_is_drawn_with_speed_time_losses_rate_and_memory() -> None:
    first, second = str(draw(REPORT)).splitlines()
    assert first.endswith(" 50/200  epoch 1.2  32.0 images/s  1:15 left")
    assert second == "loss 7.100  iou 4.000  obj 2.000  cls 1.100  l1 0.000  lr 1.25e-02  memory 1,234 MB per process"
    assert "? left" in str(draw(StepReport(step=1, total=9)))


def test_reports_cross_the_border_in_order() -> None:
    seen: list[StepReport] = []
    with receive(seen.append) as send:
        for step in range(3):
            send(StepReport(step=step, total=3, losses={"total": float(step)}))
        send(REPORT)
    assert [report.step for report in seen] == [0, 1, 2, 50]
    assert seen[-1] == REPORT


def test_a_listener_that_fails_ends_the_run_with_its_error() -> None:
    seen: list[StepReport] = []

    def fail(report: StepReport) -> None:
        seen.append(report)
        raise ZeroDivisionError

    def run() -> None:
        with receive(fail) as send:
            for step in range(100_000):  # many more than a socket holds
                send(StepReport(step=step, total=100_000))

    with pytest.raises(ZeroDivisionError) as caught:
        run()
    assert isinstance(caught.value.__context__, WorkerError), "the worker was refused"
    assert len(seen) == 1


def test_nobody_waits_for_a_listener_that_is_gone(tmp_path: Path) -> None:
    send_progress(str(tmp_path / "gone"), REPORT)
    with receive(lambda _report: None) as send:
        pass
    send(REPORT)


def test_a_run_ends_although_the_socket_was_cleared_away() -> None:
    """As systemd does with temporary files that are days old."""
    seen: list[StepReport] = []
    with receive(seen.append) as send:
        send(REPORT)
        (address,) = send.args
        Path(address).unlink()
    assert seen == [REPORT]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    generate_scenes(folder, images=12, seed=0, size_hw=(64, 64))
    return folder


def command(scenes: Path, out: Path, processes: int) -> list[str]:
    return [
        sys.executable, "-m", "boxwright", "train", "--data", str(scenes), "--out", str(out), "-b", "4",
        "--val", "0.25", "--size", "64", "--num_processes", str(processes),
        "steps", "6", "print_interval", "1", "workers=1",
    ]  # fmt: skip


def run_on_a_terminal(words: list[str]) -> str:
    """Return all that a command writes to a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    written = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # the last one has closed its end
            break
        if not data:
            break
        written += data
    os.close(ours)
    assert process.wait(timeout=120) == 0, written.decode()
    return written.decode()


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.more), 2])
def test_a_terminal_gets_a_display_and_no_step_lines(scenes: Path, tmp_path: Path, processes: int) -> None:
    text = run_on_a_terminal(command(scenes, tmp_path / "run", processes))
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "\x1b[" in text
    assert re.search(r"━ \d/6  epoch \d\.\d  \d+\.\d images/s  (\d+:\d\d|\?) left", plain)
    assert re.search(r"loss \d+\.\d{3}  iou .* lr \d\.\d\de-\d\d  memory [\d,]+ MB", plain)
    assert ("MB per process" in plain) == (processes == 2)
    assert "loss " in plain
    assert "step 3/6 epoch" not in plain
    assert "AP50" in plain, "other lines are still shown"
    assert "6 steps, best AP" in plain


def test_a_pipe_gets_plain_lines(scenes: Path, tmp_path: Path) -> None:
    words = command(scenes, tmp_path / "run", 2)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "\x1b[" not in done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("[rank 0] INFO step 3/6 epoch")]
    assert len(done.stdout.splitlines()) == 1
