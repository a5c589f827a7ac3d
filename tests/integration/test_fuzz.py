"""The fuzzer of `make fuzz`: a minute of it, and that it detects planted faults."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.shared import ROOT

# Each fault is planted into a job of the fuzzer, in a process that has not started threads.
PLANTED = """
import json, os, subprocess, sys, time
from pathlib import Path
from fuzz.child import run_child
from support.processes import adopt_orphans
from fuzz.checks import check
from fuzz.sandbox import Sandbox

def print_traceback():
    raise KeyError("area")

def read_outside():
    return len(open("../outside/secret.txt").read()) * 0

def read_outside_natively():
    import cv2
    return 0 * (cv2.imread("../outside/secret.jpg") is None)

def write_beside():
    open("../in/new", "w").close()
    return 0

def leave_a_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    return 0

def run_a_program():
    os.system("true")
    return 0

def take_memory():
    return len(bytearray(1 << 31)[::4096]) * 0

def wait():
    time.sleep(60)

def print_an_escape_code():
    print("\\x1b[31m")
    return 0

def print_what_is_no_json():
    print('{"a": NaN}')
    return 0

def promise_nothing():
    return 77

def behave():
    open("../out/x", "w").close()
    print("{}")
    return 0

adopt_orphans()
box = Sandbox(Path(sys.argv[1]))
found = {}
for job in (print_traceback, read_outside, read_outside_natively, write_beside, leave_a_process, run_a_program,
            take_memory, wait, print_an_escape_code, print_what_is_no_json, promise_nothing, behave):
    box.reset()
    before = box.snapshot()
    box.watch()
    outcome = run_child(box, job, exec_argv=None, wall_s=3 if job is wait else 60, cpu_s=20, grace_s=0.2)
    found[job.__name__] = " ".join(check(box, before, outcome, good=False, json_lines=True))
print(json.dumps(found))
"""


def test_the_hunt_sees_each_fault_that_it_looks_for(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, str(tmp_path / "box")],
        env={"PYTHONPATH": str(ROOT / "tests")}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])

    assert found.pop("behave") == ""
    for job, words in {
        "print_traceback": "Traceback",
        "read_outside": "reads",
        "read_outside_natively": "read outside/secret.jpg",
        "write_beside": "wrote in/new",
        "leave_a_process": "left a process",
        "run_a_program": "os.system",
        "take_memory": "over 1500 MB",
        "wait": "over 3 s",
        "print_an_escape_code": "control character",
        "print_what_is_no_json": "not JSON",
        "promise_nothing": "exit code 77",
    }.items():
        assert words in found.pop(job), job
    assert found == {}


def test_a_minute_of_the_hunt_finds_nothing(tmp_path: Path):
    pytest.importorskip("openvino")
    # One input at a time beside another test process. A busy machine may need long for one; what counts is computing.
    words = ["--seconds", "60", "--seed", "14", "--jobs", "1", "--wall", "120", "--cpu", "20", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )

    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-2000:]}"
