"""One training script for every device: their names stay in their room."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3] / "src" / "boxwright"
# Besides the room itself: the plan, the command line's help, and the table that names the devices.
ALLOWED = ("devices/", "cli/", "accel/plan.py", "core/catalogue.py")
WORDS = re.compile(r"(?<![a-z])(cuda|hpu|habana|gaudi)(?![a-z])", re.IGNORECASE)
# Where a runtime of another maker has such a name for something of its own.
FOREIGN = re.compile(r"CUDAExecutionProvider")


def test_no_device_is_named_outside_its_room() -> None:
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        if path.startswith(ALLOWED):
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if WORDS.search(FOREIGN.sub("", line)):
                found.append(f"{path}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_no_code_asks_for_the_type_of_a_tensor_s_device() -> None:
    asked = re.compile(r"\.type\s*[!=]=\s*[\"'](cpu|cuda|hpu)[\"']|\.is_(cuda|hpu)\b")
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for room in ("accel", "tasks", "detector")
        for file in sorted((ROOT / room).rglob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if asked.search(line)
    ]
    assert not found, "\n".join(found)
