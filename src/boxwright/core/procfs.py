"""Facts that the Linux kernel gives in small files: text, cpu lists and control groups."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


def read_text(path: Path) -> str:
    """Return the text of a file without the white space around it; "" when it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_int(path: Path) -> int | None:
    """Return the integer in a file; None if it holds none, such as "max"."""
    try:
        return int(read_text(path))
    except ValueError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a kernel list, in order; parts that are not numbers are left out.

    Example:
        >>> parse_cpu_list("0-2,8,10-11")
        (0, 1, 2, 8, 10, 11)
    """
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def format_cpu_list(cpus: tuple[int, ...]) -> str:
    """Return numbers as the kernel writes them.

    Example:
        >>> format_cpu_list((0, 1, 2, 8, 10, 11))
        '0-2,8,10-11'
    """
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def own_groups(controller: str, root: Path = Path("/")) -> tuple[Path, ...]:
    """Return the folders of the control groups that hold this process: its own first, then the parents.

    Covers both cgroup versions. A controller belongs to one of them, so the folders of the other lack its files.

    Args:
        controller: "cpu", "memory" and the like.
        root: where /proc and /sys are found.
    """
    paths = _own_paths(root)
    groups: list[Path] = []
    for mount in _mounts(root) or _usual_mounts(controller):
        if mount.controllers is None:
            path = paths.get("", "/")
        elif controller in mount.controllers:
            path = paths.get(controller, "/")
        else:
            continue
        groups.extend(_upwards(root / mount.point.lstrip("/"), path, mount.root))
    return tuple(dict.fromkeys(groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    root: str  # the group that shows at `point`
    point: str
    controllers: frozenset[str] | None  # None: version 2


def _own_paths(root: Path) -> dict[str, str]:
    """Return the group of this process by controller; version 2 has the key ""."""
    paths = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        paths.update(dict.fromkeys(controllers.split(","), path or "/"))
    return paths


def _mounts(root: Path) -> list[_Mount]:
    mounts = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        # The number of optional fields before the dash varies: proc_pid_mountinfo(5).
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else None
        mounts.append(_Mount(root=_unescape(place[3]), point=_unescape(place[4]), controllers=controllers))
    return mounts


def _usual_mounts(controller: str) -> list[_Mount]:
    folders = {controller, "cpu,cpuacct"}
    return [
        _Mount(root="/", point="/sys/fs/cgroup", controllers=None),
        *(_Mount(root="/", point=f"/sys/fs/cgroup/{f}", controllers=frozenset(f.split(","))) for f in sorted(folders)),
    ]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _upwards(point: Path, path: str, shown: str) -> list[Path]:
    """Return the folder of group `path` and those above it, below a mount that shows the group `shown` at `point`."""
    try:
        parts = PurePosixPath(path).relative_to(shown).parts
    except ValueError:
        parts = ()
    # A container may see its own group at the mount point while the path is the host's, or names a group outside of
    # its namespace ("/../other"): then the mount point is the nearest group that can be seen.
    if ".." in parts or not point.joinpath(*parts).is_dir():
        parts = ()
    return [point.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
