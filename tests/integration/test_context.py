"""`init_context` with the real engines: launches use it, and nothing is left running."""

import subprocess
import sys

import pytest
from support.clusters import need_spark

PROGRAM = """
import sys
import psutil
import boxwright
from boxwright.core.catalogue import load
from boxwright.core.errors import UsageError
from boxwright.launchers.placement import make_workers_anywhere

def is_refused(words, start):
    try:
        start()
    except UsageError as error:
        assert words in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError(f"That should have been refused: {words}")

mode, strategy = sys.argv[1:]
engine = load("engine", strategy)
with boxwright.init_context(mode, cores=2) as context:
    assert context.strategy == strategy
    launcher = load("launcher", strategy)()
    assert launcher.run(lambda world: world.world_size, make_workers_anywhere(2)) == 2
    assert launcher.run(lambda world: len(world.cores), make_workers_anywhere(1)) >= 1
    # What runs already can't be made into something else.
    if mode == "ray":
        is_refused("one is running", engine(cores=1).__enter__)
    else:
        start = engine(None, {"spark.task.cpus": "7"}).__enter__
        is_refused("spark.task.cpus='7'", start)
# What does not come about leaves nothing either.
if mode == "ray":
    is_refused("address='127.0.0.1:1'", lambda: boxwright.init_context(mode, address="127.0.0.1:1"))
else:
    start = lambda: boxwright.init_context("standalone", address="127.0.0.1:1")
    is_refused("master='spark://127.0.0.1:1'", start)
    start = lambda: boxwright.init_context("local", settings={"spark.driver.memory": "lots"})
    is_refused("master='local[*]'", start)
left = [child.cmdline()[:3] for child in psutil.Process().children(recursive=True)]
assert not left, left
print("nothing left")
"""


def run(mode: str, strategy: str) -> None:
    command = [sys.executable, "-c", PROGRAM, mode, strategy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout == "nothing left\n", done.stderr


@pytest.mark.xdist_group("ray")
def test_a_ray_context_serves_several_launches_and_leaves_nothing():
    pytest.importorskip("ray", reason="ray is not installed")
    run("ray", "ray")


@pytest.mark.xdist_group("spark")
def test_a_spark_context_serves_several_launches_and_leaves_nothing():
    need_spark()
    run("local", "spark")
