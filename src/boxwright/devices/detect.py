"""Which accelerators have a device file, and which have a plugin. Nothing heavy is imported."""

from dataclasses import dataclass
from pathlib import Path

from boxwright.core.packages import installed_version, missing_packages
from boxwright.core.procfs import read_text

GPU = "cuda"
"""The name of a GPU among the devices."""

PLUGIN = "habana_frameworks"
"""The package that brings Gaudi to torch."""

_HABANA = "0x1da3"  # the PCI vendor of Gaudi


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A device that the system shows: `kind` is "cuda", "hpu" or "other", `path` the file of its driver."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A package that brings a device to torch; `version` is "unknown" without metadata."""

    device: str
    package: str
    version: str


def find_plugins() -> tuple[Plugin, ...]:
    """Return the installed plugins; they may still not fit this torch."""
    if missing_packages([PLUGIN]):
        return ()
    return (Plugin(device="hpu", package=PLUGIN, version=installed_version("habana-torch-plugin") or "unknown"),)


def find_accelerators(root: Path = Path("/")) -> tuple[Accelerator, ...]:
    """Return the accelerators that have a device file; torch may still be unable to use them."""
    found = [Accelerator(kind=GPU, path=f"/dev/{name}") for name in _numbered(root / "dev", "nvidia")]
    found += [Accelerator(kind="hpu", path=f"/dev/{name}") for name in _numbered(root / "dev", "hl")]
    for name in _numbered(root / "dev/accel", "accel"):
        # Devices of other vendors (the NPUs of laptops) are here too.
        maker = read_text(root / f"sys/class/accel/{name}/device/vendor")
        found.append(Accelerator(kind="hpu" if maker == _HABANA else "other", path=f"/dev/accel/{name}"))
    return tuple(found)


def _numbered(folder: Path, stem: str) -> list[str]:
    """Return the names that are the stem and a number, sorted by number."""
    numbers = [file.name.removeprefix(stem) for file in folder.glob(f"{stem}[0-9]*")]
    return [f"{stem}{number}" for number in sorted(int(n) for n in numbers if n.isdigit())]
