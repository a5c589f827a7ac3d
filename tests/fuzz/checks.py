"""The rules that every run must keep."""

import json
import re
from pathlib import Path

from fuzz.child import Outcome
from fuzz.sandbox import SECRET, Sandbox, State

CODES = range(7)
"""0 ok, 1 runtime, 2 usage, 3 data, 4 model, 5 export, 6 accuracy. 70 means a fault in Boxwright."""

_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")

_LIBRARIES = (".ses", "torchinductor_", "cuda_")  # ONNX Runtime and torch keep these there


def check(box: Sandbox, before: State, outcome: Outcome, *, good: bool, json_lines: bool) -> list[str]:
    """Return a sentence for each rule that a run broke.

    Args:
        box: its folders.
        before: the files that must not change.
        outcome: how it ended.
        good: nothing was spoilt, so that it must succeed.
        json_lines: it was asked to print nothing but JSON.
    """
    found = [f"{event}" for event in outcome.events]
    found += box.touched()
    shown = outcome.out + outcome.err
    if outcome.limit:
        found.append(outcome.limit)
    elif outcome.code < 0:
        found.append(f"killed by signal {-outcome.code}")
    elif outcome.code not in CODES:
        found.append(f"exit code {outcome.code}: {_last_line(outcome.err)}")
    elif good and outcome.code != 0:
        found.append(f"a good input ended with exit code {outcome.code}: the seeds are wrong, or Boxwright is")
    for sign in (b"Traceback (most recent call last)", b"Exception ignored"):
        if sign in shown:
            found.append(f"{sign.decode().split(' (')[0]}: {_last_line(outcome.err)}")
    if match := _CONTROL.search(shown):
        found.append(f"control character {match.group()!r} in the output")
    found += [f"left a process: {one}" for one in outcome.left]
    found += _check_files(box, before, shown)
    if json_lines and outcome.code == 0:
        found += [f"not JSON: {line[:80]!r}" for line in outcome.out.splitlines() if not is_json(line)][:1]
    return found


def is_json(text: bytes) -> bool:
    """Return whether a text is standard JSON, which has no NaN."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)


def _check_files(box: Sandbox, before: State, shown: bytes) -> list[str]:
    found = []
    after = box.snapshot()
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            folder_time = (
                name in before and name in after and before[name][0] & 0o40000 and before[name][0] == after[name][0]
            )
            if not folder_time:
                found.append(f"{'changed' if name in before else 'wrote'} {name}")
    if SECRET in shown:
        found.append("a secret was printed")
    for path in box.written():
        data = _read(path)
        if SECRET in data:
            found.append(f"a secret is in {path.relative_to(box.root)}")
        if path.suffix == ".json" and not is_json(data):
            found.append(f"not JSON: {path.relative_to(box.root)}")
    left = [path.name for path in box.tmp.iterdir() if not path.name.startswith(_LIBRARIES)]
    found += [f"left {name} in the folder for temporary files" for name in left]
    return found


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(5_000_000)


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
