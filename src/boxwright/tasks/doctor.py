"""What this machine is, what is installed on it, and how a training would use it.

Nothing heavy is imported: versions come from package metadata, devices from the files their drivers leave.
"""

import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from boxwright import __version__
from boxwright.accel.plan import Plan
from boxwright.core.catalogue import CATALOGUE, load
from boxwright.core.cpu import Cpu, read_cpu
from boxwright.core.memory import Memory, read_memory
from boxwright.core.types import Precision
from boxwright.devices.detect import Accelerator, Plugin, find_accelerators, find_plugins
from boxwright.launchers.allocator import Allocator, read_allocator

# What each extra brings besides the packages that the catalogue names; "" is what every installation has.
_MORE_PACKAGES: dict[str, tuple[str, ...]] = {
    "": ("numpy", "cv2", "yaml", "rich", "rich_argparse"),
    "train": ("lightning",),
    "export": ("onnx", "onnxscript"),
    "openvino": ("openvino",),
    "serve": ("fastapi", "uvicorn", "python_multipart"),
    "ray": ("ray",),
    "spark": ("pyspark", "pyarrow"),
    "plots": ("matplotlib",),
}

# Where pip's name is not the module's: the first is the one that our extras ask for.
_PIP_NAMES: dict[str, tuple[str, ...]] = {
    "cv2": (
        "opencv-python-headless",
        "opencv-python",
        "opencv-contrib-python-headless",
        "opencv-contrib-python",
    ),
    "yaml": ("PyYAML",),
    "rich_argparse": ("rich-argparse",),
    "python_multipart": ("python-multipart",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that Boxwright can use.

    Attributes:
        name: what pip calls it.
        extra: the extra that brings it; "" for what every installation has.
        version: the one installed, "unknown" without metadata, None when it is missing.
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
        return {
            "boxwright": self.boxwright,
            "python": self.python,
            "system": self.system,
            "cpu": self.cpu.to_dict(),
            "memory": self.memory.to_dict(),
            "accelerators": [{"kind": a.kind, "path": a.path} for a in self.accelerators],
            "plugins": [{"device": p.device, "package": p.package, "version": p.version} for p in self.plugins],
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
    """Return what this machine is, what is installed for this Python, and how `boxwright train` would use it.

    Args:
        root: where /proc, /sys and /dev are found.
        device: of the training, as for `boxwright train`; so are the next four. Torch is imported for all but the CPU.
        precision: of its numbers.
        num_processes: how many processes.
        strategy: what starts them.
        batch: images of a step over all processes.
        allocator: None for this process's.

    Raises:
        UsageError: such a training is not possible here.
        MissingDependencyError: the device needs a package that is not installed.

    Example:
        >>> report = examine()
        >>> report.lines()[0].split()[0]
        'boxwright'
    """
    cpu = read_cpu(root)
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
            cpu=cpu,
            device=device,
            precision=precision,
            num_processes=num_processes,
            strategy=strategy,
            batch=batch,
            channels_last=True,
            allocator=allocator or read_allocator(),
            **({} if device == "cpu" else _ask(device, precision)),
        ),
    )


def _ask(device: str, precision: str) -> dict[str, Any]:
    """Return what a plan has to know of a device."""
    made = load("device", device)()
    return {
        "support": made.supports(Precision.parse(precision)),
        "device_count": made.count(),
        "near_cpus": made.near_cpus(),
        "environment": made.environment(),
    }


def find_packages() -> tuple[Package, ...]:
    """Return every package that Boxwright can use, with its version here, by extra."""
    wanted = {extra: list(modules) for extra, modules in _MORE_PACKAGES.items()}
    for entries in CATALOGUE.values():
        for entry in entries.values():
            wanted.setdefault(entry.extra, []).extend(entry.packages)
    return tuple(
        Package(name=_pip_name(module), extra=extra, version=_version(module))
        for extra, modules in sorted(wanted.items())
        for module in dict.fromkeys(modules)
    )


def install_command(extra: str) -> str:
    """Return the command that installs an extra, or the package itself for "".

    Example:
        >>> install_command("onnx")
        "pip install 'boxwright[onnx]'"
    """
    return f"pip install 'boxwright[{extra}]'" if extra else "pip install boxwright"


def _pip_name(module: str) -> str:
    """Return the name of the installed package that brings a module, or of the one to install."""
    names = _PIP_NAMES.get(module, (module,))
    return next((name for name in names if _installed(name) is not None), names[0])


def _version(module: str) -> str | None:
    if find_spec(module) is None:
        return None
    return _installed(_pip_name(module)) or "unknown"


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


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
