"""A disk that fills up in the middle of a training: one sentence, an exit code, nothing lost, and it resumes."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boxwright.accel.checkpoint import load_checkpoint
from boxwright.core.errors import BoxwrightError
from boxwright.data.synthetic import generate_scenes
from boxwright.detector.weights import read_state
from boxwright.tasks.train.loggers import Callback
from boxwright.tasks.train.run import TrainConfig, train


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    generate_scenes(folder, images=12, seed=0, size_hw=(64, 64))
    return folder


@pytest.fixture
def files_may_grow_again() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


class FillDiskAt(Callback):
    """From a step on, lets no file of this process grow beyond a size: every write is refused as on a full disk."""

    def __init__(self, step: int, room: int) -> None:
        self._step, self._room = step, room

    def on_step(self, step: int, values: Any) -> None:
        if step == self._step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def make_config(scenes: Path, out: Path, **changes: Any) -> TrainConfig:
    # Nine images: two steps an epoch, and a checkpoint after each epoch.
    settings: dict[str, Any] = {
        "model": "yolox_nano", "data": scenes, "output_dir": out, "val": 0.25, "batch": 4, "steps": 6,
        "size_hw": (64, 64), "eval_interval": 1, "print_interval": 1, "workers": 1,
    }  # fmt: skip
    return TrainConfig(**(settings | changes))


# A room of 1 MB holds the small files, but no checkpoint; one byte holds nothing.
@pytest.mark.usefixtures("files_may_grow_again")
@pytest.mark.parametrize(
    ("processes", "room", "what"),
    [
        (1, 1 << 20, "last.pt' could not be written"),
        (1, 1, "A file of the run"),
        pytest.param(2, 1 << 20, "last.pt' could not be", marks=pytest.mark.more),
    ],
)
def test_a_full_disk_ends_the_run_in_one_sentence_and_resume_goes_on(
    scenes: Path, tmp_path: Path, processes: int, room: int, what: str
) -> None:
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(BoxwrightError, match=what) as caught:
        train(make_config(scenes, tmp_path, num_processes=processes), callbacks=[FillDiskAt(3, room)])
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert caught.value.exit_code == 4
    assert "File too large" in str(caught.value)
    assert "with --resume" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    weights = tmp_path / "weights"
    assert load_checkpoint(weights / "last.pt")["step"] == 2
    assert read_state(weights / "last.safetensors")[1] is not None
    assert not list(weights.glob(".*")), "no half-written file stays"
    result = train(make_config(scenes, tmp_path, num_processes=processes, resume=True))
    assert (result.steps, result.stopped) == (6, "")


# A file system of 19 MB: the first checkpoint (11.4 MB, twice 3.7 MB of weights) fits, the second does not.
ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=19m tmpfs {disk}
code=0; {command} --out {disk}/run 2>{disk}.log || code=$?
test -e {disk}/run/weights/last.pt
mount -o remount,size=64m {disk}
{resume} --resume --out {disk}/run --json 2>/dev/null >{disk}.json
echo $code
"""


def test_a_real_file_system_that_is_full_does_the_same(scenes: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    try_it = [*alone, "mount", "-t", "tmpfs", "tmpfs", str(disk)]
    if shutil.which("unshare") is None or subprocess.run(try_it, capture_output=True).returncode != 0:
        pytest.skip("needs leave to mount a file system of its own (user namespaces)")
    program = f"{sys.executable} -m boxwright train"
    command = f"{program} --data {scenes} --val 0.25 -b 4 --size 64 steps 6 eval_interval 1 print_interval 1 workers=1"
    script = ON_A_SMALL_DISK.format(disk=disk, command=command, resume=program)
    done = subprocess.run([*alone, "sh", "-c", script], capture_output=True, text=True, timeout=200, env=os.environ)
    log = Path(f"{disk}.log").read_text()
    assert done.returncode == 0, done.stderr + log
    assert done.stdout.splitlines()[-1] == "4", log
    assert "No space left on device" in log.splitlines()[-1]
    assert "Traceback" not in log
    assert json.loads(Path(f"{disk}.json").read_text())["steps"] == 6
