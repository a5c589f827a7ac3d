"""Which accelerators have left a device file, and which have a plugin. Nothing heavy is imported."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from boxwright.core.procfs import read_text

PLUGIN = "habana_frameworks"
"""The package that brings Gaudi to torch."""

_HABANA = "0x1da3"  # the PCI number of the maker of Gaudi


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A device that seems to be there: `kind` is "cuda", "hpu" or "other", `path` the file of its driver."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A package that brings a device to torch; `version` is "unknown" without metadata."""

    device: str
    package: str
    version: str


def find_plugins() -> tuple[Plugin, ...]:
    """Return the plugins that are installed; whether they fit this torch is another matter."""
    if find_spec(PLUGIN) is None:
        return ()
    try:
        found = version("habana-torch-plugin")
    except PackageNotFoundError:
        found = "unknown"
    return (Plugin(device="hpu", package=PLUGIN, version=found),)


def find_accelerators(root: Path = Path("/")) -> tuple[Accelerator, ...]:
    """Return the accelerators whose driver has made a device file; whether torch can use them is another matter."""
    found = [Accelerator(kind="cuda", path=f"/dev/{name}") for name in _numbered(root / "dev", "nvidia")]
    found += [Accelerator(kind="hpu", path=f"/dev/{name}") for name in _numbered(root / "dev", "hl")]
    for name in _numbered(root / "dev/accel", "accel"):
        # Other makers' devices (the NPUs of laptops) are here too.
        maker = read_text(root / f"sys/class/accel/{name}/device/vendor")
        found.append(Accelerator(kind="hpu" if maker == _HABANA else "other", path=f"/dev/accel/{name}"))
    return tuple(found)


def _numbered(folder: Path, stem: str) -> list[str]:
    """Return the names of the files that are the stem and a number, by number."""
    numbers = [file.name.removeprefix(stem) for file in folder.glob(f"{stem}[0-9]*")]
    return [f"{stem}{number}" for number in sorted(int(n) for n in numbers if n.isdigit())]
