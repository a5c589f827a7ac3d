"""A start that is killed while it parses, packs or caches leaves nothing that the next start trusts."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from boxwright.data.synthetic import generate_scenes

START = """
import hashlib, json, os, resource, signal, sys

place, kind, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen = written = 0

def count(event, arguments):
    global seen
    # What opens, renames, removes or maps a file of the cache.
    if event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "mmap.__new__"):
        if event == "mmap.__new__" or os.environ["BOXWRIGHT_CACHE"] in str(arguments[0]):
            seen += 1
            if kind == "event" and seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)

def write_part(file, pixels, write=os.write):
    global written
    written += 1
    if kind == "tile" and written == moment:
        write(file, pixels[: len(pixels) * moment // 12])  # of the last one all: only its entry is missing
        os.kill(os.getpid(), signal.SIGKILL)
    return write(file, pixels)

from boxwright.data.check import check_headers, make_report
from boxwright.data.check.before import CheckedBefore
from boxwright.data.cache import open_cache
from boxwright.data.formats import read_records
from boxwright.data.packed import hash_records
from boxwright.data.threads import map_threads

os.write = write_part
sys.addaudithook(count)
if kind == "bytes":  # the kernel kills it in the middle of a write
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (moment, moment))
records = read_records(place)
before = CheckedBefore(records, records.select([]), full=False, fresh_ns=0)
report = before.load()
if report is None:
    report = make_report(records, list(check_headers(records, range(len(records)), 2)))
    before.save(report)
cache, tiles = open_cache("disk", records, (64, 64)), hashlib.sha256()
for tile in map_threads(cache.tile, len(records), 2):
    tiles.update(tile.pixels)
print(json.dumps([hash_records(records), report.to_dict(), tiles.hexdigest()]))
print(seen)
"""


class Started(NamedTuple):
    code: int
    result: str
    events: int


def start(place: Path, cache: Path, kind: str = "whole", moment: int = 0) -> Started:
    done = subprocess.run(
        [sys.executable, "-c", START, str(place), kind, str(moment)],
        env=os.environ | {"BOXWRIGHT_CACHE": str(cache)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines or done.returncode in (-signal.SIGKILL, -signal.SIGXFSZ), done.stderr
    return Started(done.returncode, lines[0] if lines else "", int(lines[1]) if lines else 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a set of twelve images whose json is large enough to be packed."""
    folder = tmp_path_factory.mktemp("killed") / "set"
    generate_scenes(folder, images=12, seed=4, size_hw=(64, 96))
    values = json.loads((folder / "instances.json").read_text())
    # Most of the labels are many boxes, so that a packed file has a middle.
    values["annotations"] = [
        values["annotations"][n % len(values["annotations"])] | {"id": n + 1, "segmentation": [[0.5] * 20]}
        for n in range(6000)
    ]
    (folder / "instances.json").write_text(json.dumps(values))
    return folder


def killed_at(place: Path, tmp_path: Path, count: int, seed: int) -> None:
    clean = start(place, tmp_path / "clean")
    assert clean.code == 0
    largest = max(file.stat().st_size for file in (tmp_path / "clean").rglob("*") if file.is_file())
    draw = random.Random(seed)
    for number in range(count):
        kind, most = (("bytes", largest - 1), ("event", clean.events), ("tile", 12))[number % 3]
        moment, cache = draw.randint(1, most), tmp_path / f"cache_{number}"
        killed = start(place, cache, kind, moment)
        # A disk that is full when the cache is filled ends nothing.
        expected = (-signal.SIGXFSZ, 0) if kind == "bytes" else (-signal.SIGKILL,)
        assert killed.code in expected, (kind, moment)
        for _ in ("the next start", "and the one that uses its caches"):
            again = start(place, cache)
            assert (again.code, again.result) == (0, clean.result), (kind, moment)


def test_a_start_after_a_killed_one_gives_the_same(place: Path, tmp_path: Path) -> None:
    killed_at(place, tmp_path, 3, seed=1)


@pytest.mark.more
def test_a_start_after_one_killed_at_any_of_ten_moments_gives_the_same(place: Path, tmp_path: Path) -> None:
    killed_at(place, tmp_path, 10, seed=2)
