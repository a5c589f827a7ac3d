"""The completion scripts, in the shells themselves."""

import os
import pty
import re
import select
import shutil
import subprocess
from pathlib import Path

import pytest
from support.fixtures import Command

LINES = {
    "boxwright pred": ["predict"],
    "boxwright data conv": ["convert"],
    "boxwright data convert in out --to co": ["coco"],
    "boxwright weights get --form": ["--format"],
    "boxwright weights get yolox_s --format on": ["onnx"],
    "boxwright completion fi": ["fish"],
    "boxwright predict run serve --class-": ["--class-agnostic"],
}


@pytest.fixture
def script(request: pytest.FixtureRequest, boxwright: Command, tmp_path: Path) -> Path:
    """The script of a shell; skip the test where the shell is missing, fail it in CI, which installs all."""
    shell = request.param
    if shutil.which(shell) is None:
        reason = f"needs {shell} (apt-get install {shell})"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"CI must have the shells: {reason}")
        pytest.skip(reason)
    path = tmp_path / f"script.{shell}"
    path.write_text(boxwright("completion", shell).out)
    return path


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_verbs_options_and_values(script: Path, tmp_path: Path) -> None:
    asked = "".join(f"complete_line {line}\n" for line in LINES)
    program = (
        f"source {script}\n"
        'complete_line() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _boxwright; echo "${COMPREPLY[@]}"; }\n' + asked
    )
    done = subprocess.run(["bash", "-eu", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert [line.split() for line in done.stdout.splitlines()] == list(LINES.values())


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_verbs_options_and_values(script: Path, tmp_path: Path) -> None:
    program = f"source {script}\n" + "".join(f"complete -C '{line}'; echo ---\n" for line in LINES)
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", program], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.stderr == ""
    answers = [[line.split("\t")[0] for line in part.splitlines() if line] for part in done.stdout.split("---")]
    assert answers[:-1] == list(LINES.values())


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_completes_verbs_options_and_values(script: Path, tmp_path: Path) -> None:
    (tmp_path / ".zshrc").write_text(
        f'autoload -Uz compinit; compinit -u -D; source {script}; PS1=; boxwright() {{ print -r -- "<$*>" }}\n'
    )
    terminal, inner = pty.openpty()
    env = {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "PATH": os.environ["PATH"], "TERM": "dumb"}
    streams = {"stdin": inner, "stdout": inner, "stderr": inner}
    process = subprocess.Popen(["zsh", "-i"], **streams, env=env, cwd=tmp_path, start_new_session=True)
    os.close(inner)
    try:
        for line, (answer,) in LINES.items():
            os.write(terminal, f"{line}\t\n".encode())
            words = f"{line.removeprefix('boxwright ').rpartition(' ')[0]} {answer}".strip()
            said = _read_until(terminal, r"<[^>\r\n]*>")
            assert re.search(r"<([^>\r\n]*)>", said)[1].strip() == words, said
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _read_until(terminal: int, pattern: str) -> str:
    text = ""
    while not re.search(pattern, text):
        ready, _, _ = select.select([terminal], [], [], 30)
        assert ready, f"zsh says nothing more: {text!r}"
        text += os.read(terminal, 4096).decode(errors="replace")
    return text
