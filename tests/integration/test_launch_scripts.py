"""Launches from programs of every shape: scripts with and without a guard, stdin, modules."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

START = """
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.local import SpawnLauncher, SubprocessLauncher

WORKERS = [WorkerSpec(rank=r, local_rank=r, world_size=2, local_world_size=2) for r in range(2)]
"""


def run(*words: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


def write(file: Path, text: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(START + dedent(text))
    return str(file)


UNGUARDED = """
class Answer:
    def __init__(self, world):
        self.rank, self.scale = world.rank, SCALE

SCALE = 10

def helper(world):
    return Answer(world)

def job(world):
    return helper(world)

answer = SubprocessLauncher().run(job, WORKERS)
print(isinstance(answer, Answer), answer.rank, answer.scale)
"""


def test_a_script_without_a_guard_sends_its_own_functions_and_classes(tmp_path: Path):
    done = run(write(tmp_path / "script.py", UNGUARDED), cwd=tmp_path)

    assert (done.stdout, done.stderr, done.returncode) == ("True 0 10\n", "", 0)


def test_a_program_from_stdin_works_like_a_script(tmp_path: Path):
    done = run("-", cwd=tmp_path, stdin=START + UNGUARDED)

    assert (done.stdout, done.stderr, done.returncode) == ("True 0 10\n", "", 0)


def test_without_a_script_spawn_sends_code_too(tmp_path: Path):
    done = run("-", cwd=tmp_path, stdin=START + UNGUARDED.replace("Subprocess", "Spawn"))

    assert (done.stdout, done.stderr, done.returncode) == ("True 0 10\n", "", 0)


@pytest.mark.parametrize("switches", [[], ["-E"]], ids=["", "without variables"])
@pytest.mark.parametrize("launcher", ["SubprocessLauncher", "SpawnLauncher"])
def test_a_module_beside_the_script_is_found_from_any_folder(launcher: str, switches: list[str], tmp_path: Path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "beside.py").write_text("def job(world):\n    return __name__, __file__\n")
    script = write(
        tmp_path / "src" / "script.py",
        f"""
        import beside
        if __name__ == "__main__":
            print(*{launcher}().run(beside.job, WORKERS))
        """,
    )

    done = run(*switches, script, cwd=tmp_path)

    assert done.stdout == f"beside {tmp_path / 'src' / 'beside.py'}\n", done.stderr


def test_a_file_in_the_current_folder_is_not_taken_for_a_library(tmp_path: Path):
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong json')")
    script = write(tmp_path / "src" / "script.py", "print(SubprocessLauncher().run(lambda w: 'fine', WORKERS))")

    done = run(script, cwd=tmp_path)

    assert done.stdout == "fine\n", done.stderr


GUARDED = """
import os, pickle

class Answer:
    pass

def job(world):
    pickle.dumps(Answer())  # plain pickle finds the class by its name
    return Answer(), __name__

if __name__ == "__main__":
    answer, name = SpawnLauncher().run(job, WORKERS)
    print(isinstance(answer, Answer), name)
"""


def test_spawn_imports_the_script_so_that_its_names_are_found(tmp_path: Path):
    done = run(write(tmp_path / "script.py", GUARDED), cwd=tmp_path)

    assert (done.stdout, done.stderr, done.returncode) == ("True __mp_main__\n", "", 0)


def test_spawn_imports_a_module_that_was_started_by_name(tmp_path: Path):
    write(tmp_path / "package" / "program.py", GUARDED)

    done = run("-m", "package.program", cwd=tmp_path)

    assert (done.stdout, done.stderr, done.returncode) == ("True __mp_main__\n", "", 0)


def test_spawn_tells_a_script_without_a_guard_what_to_do(tmp_path: Path):
    done = run(write(tmp_path / "script.py", UNGUARDED.replace("Subprocess", "Spawn")), cwd=tmp_path)

    assert done.returncode == 1
    assert "`if __name__ == '__main__':`" in done.stderr


def test_switches_arguments_and_variables_reach_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    script = write(
        tmp_path / "script.py",
        """
        import os, sys
        job = lambda world: (sys.flags.optimize, sys.argv[1:], os.environ["PYTHONPATH"], os.getcwd())
        print(SubprocessLauncher().run(job, WORKERS))
        """,
    )

    done = run("-O", script, "one", "--two", cwd=tmp_path)

    assert done.stdout == f"(1, ['one', '--two'], '/nowhere', {os.fspath(tmp_path)!r})\n", done.stderr
