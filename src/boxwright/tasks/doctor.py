"""This machine: its hardware, the installed packages, and the plan of a training on it.

Nothing heavy is imported: versions come from package metadata, devices from their drivers' files.
"""

import platform
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from boxwright import __version__
from boxwright.accel.plan import Plan, Request
from boxwright.core.catalogue import load
from boxwright.core.cpu import Cpu, read_cpu
from boxwright.core.errors import MissingDependencyError, check_choice
from boxwright.core.memory import Memory, read_memory
from boxwright.core.types import Precision
from boxwright.devices.detect import Accelerator, Plugin, find_accelerators, find_plugins
from boxwright.devices.support import choose_precision
from boxwright.launchers.allocator import Allocator, read_allocator

# Other builds of a package that serve as well as the one that our extras install.
_OTHER_BUILDS: dict[str, tuple[str, ...]] = {
    "opencv-python-headless": ("opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python"),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino"),
}
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)[^;]*(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that Boxwright can use.

    Attributes:
        name: pip's name.
        extra: the extra that installs it; "" for what every installation has.
        version: the installed one, or None.
    """

    name: str
    extra: str
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """What `examine` found; `lines()` is for people, `to_dict()` for programs."""

    boxwright: str
    python: str
    system: str
    cpu: Cpu
    memory: Memory
    accelerators: tuple[Accelerator, ...]
    packages: tuple[Package, ...]
    plan: Plan
    plugins: tuple[Plugin, ...] = ()

    @property
    def extras(self) -> dict[str, tuple[Package, ...]]:
        """The packages by extra, in the order of the report."""
        names = dict.fromkeys(package.extra for package in self.packages)
        return {name: tuple(p for p in self.packages if p.extra == name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {name: getattr(self, name) for name in ("boxwright", "python", "system")} | {
            "cpu": self.cpu.to_dict(),
            "memory": self.memory.to_dict(),
            "accelerators": [asdict(accelerator) for accelerator in self.accelerators],
            "plugins": [asdict(plugin) for plugin in self.plugins],
            "packages": {extra or "base": _extra_facts(extra, packages) for extra, packages in self.extras.items()},
            "plan": self.plan.to_dict(),
        }

    def lines(self) -> list[str]:
        """Return the report as lines of plain text."""
        seen = [f"{a.kind} ({a.path})" for a in self.accelerators]
        seen += [f"{p.device}, by the plugin {p.package} {p.version}" for p in self.plugins]
        lines = [
            *_block("boxwright", [self.boxwright]),
            *_block("python", [self.python]),
            *_block("system", [self.system]),
            *_block("cpu", _cpu_lines(self.cpu)),
            *_block("memory", [_memory_line(self.memory)]),
            *_block("devices", ["cpu", *seen]),
            "packages",
        ]
        for extra, packages in self.extras.items():
            found = [f"{p.name} {p.version}" for p in packages if p.version is not None]
            missing = [p.name for p in packages if p.version is None]
            text = [", ".join(found)] if found else []
            if missing:
                text.append(f"missing: {', '.join(missing)}. Run: {install_command(extra)}")
            lines += _block(f"  {extra or 'base'}", text)
        return [*lines, "plan of a training", *(f"  {line}" for line in self.plan.lines())]


def examine(
    root: Path = Path("/"),
    *,
    device: str = "cpu",
    precision: str = "32",
    num_processes: int | None = None,
    strategy: str | None = None,
    batch: int = 16,
    allocator: Allocator | None = None,
) -> DoctorReport:
    """Return the hardware, the packages of this Python, and the plan that `boxwright train` would use.

    Args:
        root: the folder that holds /proc, /sys and /dev.
        device: the training's device; this and the next four are as for `boxwright train`. Only the CPU needs no torch.
        precision: the training's precision.
        num_processes: the number of processes.
        strategy: the launcher.
        batch: images per step over all processes.
        allocator: the memory allocator; None for this process's.

    Raises:
        UsageError: such a training is not possible here.
        MissingDependencyError: the device needs a package that is not installed.

    Example:
        >>> report = examine()
        >>> report.lines()[0].split()[0]
        'boxwright'
    """
    cpu = read_cpu(root)
    precision = choose_precision(precision, device, cpu.isa)
    return DoctorReport(
        boxwright=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        system=_system(),
        cpu=cpu,
        memory=read_memory(root),
        accelerators=find_accelerators(root),
        packages=find_packages(),
        plugins=find_plugins(),
        plan=Plan.resolve(
            Request(
                precision=precision,
                num_processes=num_processes,
                strategy=strategy,
                batch=batch,
                channels_last=True,
                allocator=allocator or read_allocator(),
            ),
            cpu,
            None if device == "cpu" else load("device", device)().facts(Precision.parse(precision)),
        ),
    )


def find_packages(requirements: Iterable[str] | None = None) -> tuple[Package, ...]:
    """Return every package that Boxwright can use, with the version installed here, by extra.

    Args:
        requirements: as package metadata spells them; None for Boxwright's own.
    """
    if requirements is None:
        with suppress(metadata.PackageNotFoundError):  # a source tree that pip has not installed
            requirements = metadata.requires("boxwright")
    found = [match for line in requirements or () if (match := _REQUIREMENT.match(line)) and match["extra"] != "all"]
    wanted = sorted((match["extra"] or "", match["name"]) for match in found)
    return tuple(_find_package(name, extra) for extra, name in wanted)


def _find_package(name: str, extra: str) -> Package:
    for build in (name, *_OTHER_BUILDS.get(name, ())):
        with suppress(metadata.PackageNotFoundError):
            return Package(name=build, extra=extra, version=metadata.version(build))
    return Package(name=name, extra=extra, version=None)


def install_command(extra: str) -> str:
    """Return the command that installs an extra, or the package itself for "".

    Example:
        >>> install_command("onnx")
        "pip install 'boxwright[onnx]'"
    """
    return f"pip install 'boxwright[{extra}]'" if extra else "pip install boxwright"


def missing_of(extras: Iterable[str], requirements: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the packages that extras need, and the extras that they name, and that are not installed.

    Args:
        extras: names of extras.
        requirements: as package metadata spells them; None for Boxwright's own.

    Raises:
        UsageError: there is no such extra.

    Example:
        >>> missing_of(["all"], ["no-such-package; extra == 'one'", "boxwright[one]; extra == 'all'"])
        ('no-such-package',)
    """
    lines = list(metadata.requires("boxwright") or () if requirements is None else requirements)
    found = [(match, line) for line in lines if (match := _REQUIREMENT.match(line)) and match["extra"]]
    known = sorted({match["extra"] for match, _ in found})
    todo, done = list(extras), set[str]()
    missing: dict[str, None] = {}
    while todo:
        extra = todo.pop(0)
        check_choice("extra", extra, known)
        done.add(extra)
        for match, line in found:
            if match["extra"] != extra:
                continue
            if match["name"] == "boxwright":
                named = line.partition("[")[2].partition("]")[0].split(",")
                todo += [name for name in named if name not in done and name not in todo]
            elif _find_package(match["name"], extra).version is None:
                missing[match["name"]] = None
    return tuple(missing)


def install_words(extras: Iterable[str]) -> list[str]:
    """Return the command that installs extras of this version into this Python.

    Raises:
        MissingDependencyError: this Python has no pip.
    """
    wanted = f"boxwright[{','.join(extras)}]=={__version__}"
    if find_spec("pip") is None:
        raise MissingDependencyError(f"This Python has no pip. Install {wanted!r} with the program that made it.")
    return [sys.executable, "-m", "pip", "install", wanted]


def _extra_facts(extra: str, packages: Iterable[Package]) -> dict[str, Any]:
    found = {p.name: p.version for p in packages if p.version is not None}
    missing = [p.name for p in packages if p.version is None]
    return {"found": found, "missing": missing, "install": install_command(extra) if missing else None}


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, {platform.system()} {platform.release()}, {platform.machine()}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cpu_lines(cpu: Cpu) -> list[str]:
    facts = cpu.to_dict()
    cores = _count(facts["physical_cores"], "core")
    if cpu.hybrid:
        cores += f" ({facts['efficiency_cores']} of them small)"
    layout = [cores, _count(facts["logical_cpus"], "thread"), _count(facts["sockets"], "socket")]
    limits = [f"cpus {facts['allowed']} allowed"] if len(cpu.allowed) < len(cpu.logical) else []
    limits += [f"quota of {cpu.quota:g} cpus"] if cpu.quota is not None else []
    return [
        cpu.model,
        ", ".join([*layout, _count(facts["numa_nodes"], "NUMA node")]),
        f"instructions: {', '.join(facts['isa']) or 'none of avx2, avx512, vnni, bf16, amx'}",
        f"{_count(cpu.usable_cores, 'core')} to use ({', '.join(limits) or 'no limits'})",
    ]


def _memory_line(memory: Memory) -> str:
    if not memory.total_bytes:
        return "not known"
    limit = "" if memory.limit_bytes is None else f", limit {_gib(memory.limit_bytes)}"
    return f"{_gib(memory.total_bytes)}{limit}, {_gib(memory.usable_bytes)} to use"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _block(title: str, texts: list[str]) -> list[str]:
    return [f"{title if not line else '':<12}{text}" for line, text in enumerate(texts)]
