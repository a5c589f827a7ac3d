"""One training script for every device: code names them in their room only."""

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3] / "src" / "boxwright"
# Besides the room itself: the plan, the command line's help, and the table that names the devices.
ALLOWED = ("devices/", "cli/", "accel/plan.py", "core/catalogue.py")
WORDS = re.compile(r"(?<![a-z])(cuda|hpu|habana|gaudi)(?![a-z])", re.IGNORECASE)
# Where a runtime of another maker has such a name for something of its own.
FOREIGN = re.compile(r"CUDAExecutionProvider")


def read_code(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each token that is neither a comment nor a docstring."""
    previous = tokenize.NEWLINE
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            starts_line = previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            if token.type in (tokenize.COMMENT, tokenize.NL):
                continue
            previous = token.type
            if not (token.type == tokenize.STRING and starts_line):
                yield token.start[0], token.string


def test_no_device_is_named_in_code_outside_its_room() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {text}"
        for file in sorted(ROOT.rglob("*.py"))
        if not file.relative_to(ROOT).as_posix().startswith(ALLOWED)
        for number, text in read_code(file)
        if WORDS.search(FOREIGN.sub("", text))
    ]
    assert not found, "\n".join(found)


def test_comments_and_docstrings_may_name_devices(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('"""On a Gaudi."""\nx = "cpu"  # cuda\n\n\ndef f():\n    """On cuda."""\n    return hpu\n')
    assert [(number, text) for number, text in read_code(file) if WORDS.search(text)] == [(7, "hpu")]


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
