"""The workflows of GitHub run what a developer runs: `.ci/run` and targets of the Makefile."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.shared import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def _jobs(path: Path) -> dict[str, Any]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    assert isinstance(jobs, dict)
    return jobs


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_workflow_runs_ci_or_a_target_of_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [step["run"] for job in _jobs(path).values() for step in job["steps"] if "run" in step]
    made = {line.split()[1] for line in lines if line.startswith("make ")}
    assert made <= targets
    assert made or ".ci/run" in lines
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_all_versions_of_python_that_are_promised_are_tested() -> None:
    (job,) = _jobs(ROOT / ".github/workflows/tests.yml").values()
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    promised = [line.rpartition(" ")[2] for line in classifiers if re.search(r"Python :: 3\.\d+$", line)]
    assert job["strategy"]["matrix"]["python"] == promised
