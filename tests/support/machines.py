"""Machines as small /proc and /sys trees: `lay_out("gvisor", tmp_path)` writes one below a folder.

Each JSON file in `machines/` maps a path to its text, and holds only files that are read. `kvm_guest_epyc` was
captured; the others follow the kernel's formats for machines of their kind. /proc/cpuinfo repeats itself for every cpu,
so it is stored as what all cpus share and what each has of its own.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "machines"
NAMES = tuple(sorted(file.stem for file in FOLDER.glob("*.json")))


def lay_out(name: str, root: Path) -> Path:
    """Write the files of a machine below `root` and return `root`."""
    files = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["files"]
    for path, content in files.items():
        write(root, path, content if isinstance(content, str) else _cpuinfo(**content))
    return root


def write(root: Path, path: str, content: str) -> None:
    """Write one file below `root`, ending in a newline as the kernel's files do."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content + "\n", encoding="utf-8")


def _cpuinfo(shared: dict[str, str], each: dict[str, list[Any]]) -> str:
    blocks = []
    for values in zip(*each.values(), strict=True):
        fields = {**dict(zip(each, values, strict=True)), **shared}
        blocks.append("".join(f"{name:<15}: {value}\n" for name, value in fields.items()))
    return "\n".join(blocks)
