"""`boxwright run`: settings for any program, its exit code, nothing to source."""

import json
import os
import subprocess
import sys

import pytest

from boxwright.core.cpu import Core, Cpu
from boxwright.core.errors import UsageError
from boxwright.tasks.program import choose_settings

SHOW = "import os, json; print(json.dumps([dict(os.environ), sorted(os.sched_getaffinity(0))]))"


def boxwright_run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, "-m", "boxwright", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**clean, **env}, timeout=60)


def test_the_program_gets_threads_cores_and_memory_settings() -> None:
    done = boxwright_run("--threads", "1", "--", sys.executable, "-c", SHOW)
    environment, cpus = json.loads(done.stdout)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["MALLOC_MMAP_MAX_"] == "0"
    assert len(cpus) >= 1
    assert set(cpus) <= os.sched_getaffinity(0)


def test_what_the_user_has_set_stays() -> None:
    done = boxwright_run("--", sys.executable, "-c", SHOW, OMP_NUM_THREADS="7")
    assert json.loads(done.stdout)[0]["OMP_NUM_THREADS"] == "7"


def test_the_exit_code_is_the_programs() -> None:
    assert boxwright_run("--", sys.executable, "-c", "raise SystemExit(37)").returncode == 37


def test_a_dry_run_says_what_it_would_set_and_runs_nothing() -> None:
    done = boxwright_run("--dry-run", "--", sys.executable, "-c", "print('ran')")
    assert "OMP_NUM_THREADS=" in done.stdout
    assert "ran" not in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to run"),
        (("--", "no-such-program-at-all"), "no program"),
        (("--threads", "9999", "--", "true"), "may use"),
    ],
)
def test_what_cannot_run_gets_a_sentence(words: tuple[str, ...], message: str) -> None:
    done = boxwright_run(*words)
    assert done.returncode == 2
    assert message in done.stderr


def test_twins_come_along_with_their_core_and_libraries_have_the_same_threads() -> None:
    cores = tuple(Core(cpus=(i, i + 4)) for i in range(4))
    cpu = Cpu(model="", vendor="", isa=frozenset(), all_cores=cores, allowed=tuple(range(8)), quota=2.0)
    settings = choose_settings(cpu)
    assert dict(settings.variables)["OMP_NUM_THREADS"] == "2"
    assert settings.cpus == tuple(range(8)), "a quota limits threads, not cores"
    assert choose_settings(cpu, threads=2).cpus == (0, 1, 4, 5)
    for env, omp, mkl in (
        ({"OMP_NUM_THREADS": "1"}, "1", "1"),
        ({"OMP_NUM_THREADS": "3,1"}, "3,1", "3"),
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "4"}, "1", "4"),
        ({"MKL_NUM_THREADS": "4"}, "2", "4"),
        ({"OMP_NUM_THREADS": "some"}, "some", "2"),
    ):
        chosen = dict(choose_settings(cpu, env=env).variables)
        assert (chosen["OMP_NUM_THREADS"], chosen["MKL_NUM_THREADS"]) == (omp, mkl)
    asked = dict(choose_settings(cpu, threads=4, env={"OMP_NUM_THREADS": "1"}).variables)
    assert (asked["OMP_NUM_THREADS"], asked["MKL_NUM_THREADS"]) == ("4", "4")
    assert any("quota" in reason for reason in settings.reasons)
    with pytest.raises(UsageError, match="may use 8 cpus"):
        choose_settings(cpu, threads=9)
