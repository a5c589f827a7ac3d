"""The allocator: told as it is, and really set where it is said to be."""

import json
import os
import subprocess
import sys

import pytest

from boxwright.launchers.allocator import VARIABLES, Allocator, read_allocator
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.local import SubprocessLauncher

SHOW = (
    "import json; from boxwright.launchers import allocator as a; {before} found = a.read_allocator();"
    "print(json.dumps([found.name, found.keeps, len(found.variables), found.note]))"
)


def in_a_fresh_process(before: str = "", **env: str) -> list[object]:
    names = {name for name, _ in VARIABLES}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", SHOW.format(before=before)]
    done = subprocess.run(command, env={**clean, **env}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


needs_glibc = pytest.mark.skipif(read_allocator({}).name != "glibc", reason="needs glibc's own allocator")


@needs_glibc
def test_a_process_gives_memory_back_until_it_is_told_to_keep_it() -> None:
    assert in_a_fresh_process() == ["glibc", False, 4, ""]
    assert in_a_fresh_process("a.keep_freed_memory();")[:2] == ["glibc", True]
    assert in_a_fresh_process(**dict(VARIABLES)) == ["glibc", True, 0, ""]


FAULTS = """
import resource
import numpy as np
from boxwright.launchers.allocator import keep_freed_memory, read_allocator

def use():
    held = [np.ones(1 << 20, np.uint8) for _ in range(4)]

def count():
    use()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        use()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

by_default = count()
assert keep_freed_memory(2 << 20)
print(by_default, count(), read_allocator().keeps)
"""


@needs_glibc
def test_small_blocks_are_kept_and_large_ones_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=60, check=True)
    by_default, kept, keeps_large_blocks = done.stdout.split()
    assert int(kept) < int(by_default) / 10
    assert keeps_large_blocks == "False"


@needs_glibc
def test_what_the_user_has_set_is_left_and_said() -> None:
    name, keeps, variables, note = in_a_fresh_process("a.keep_freed_memory();", MALLOC_MMAP_MAX_="9")
    assert (name, keeps, variables) == ("glibc", False, 0)
    assert "MALLOC_MMAP_MAX_=9" in str(note)


def faults_of_a_large_buffer(world: object) -> tuple[bool, int]:
    """Return whether this process keeps memory, and how many page faults twenty uses of 32 MiB cost after the first."""
    import resource

    import torch

    def use() -> None:
        torch.zeros(8 << 20)

    use()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        use()
    return read_allocator().keeps, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@needs_glibc
def test_a_worker_with_the_variables_keeps_its_pages() -> None:
    plain = tuple((name, value) for name, value in (("MALLOC_MMAP_MAX_", "65536"), ("THP_MEM_ALLOC_ENABLE", "0")))
    launcher = SubprocessLauncher()
    keeps, faults = launcher.run(faults_of_a_large_buffer, [WorkerSpec(env=VARIABLES)])
    assert keeps
    gives, more_faults = launcher.run(faults_of_a_large_buffer, [WorkerSpec(env=plain)])
    assert not gives
    # Not zero: a kernel that takes back idle pages costs a few.
    assert faults < more_faults / 10


def test_the_sentence_names_what_processes_are_given() -> None:
    glibc = Allocator(name="glibc", variables=VARIABLES)
    assert "MALLOC_TOP_PAD_" in glibc.describe(started=True)
    assert "boxwright run" in glibc.describe(started=False)
    assert Allocator().describe(started=False).startswith("the system's")
