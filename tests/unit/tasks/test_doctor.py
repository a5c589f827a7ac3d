import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from support.fixtures import Command
from support.machines import lay_out, write

import boxwright
from boxwright.accel.plan import Plan, Request
from boxwright.core.catalogue import CATALOGUE
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.memory import Memory, read_memory
from boxwright.devices.detect import find_plugins
from boxwright.launchers.allocator import Allocator
from boxwright.tasks.doctor import (
    Accelerator,
    DoctorReport,
    Package,
    examine,
    find_accelerators,
    find_packages,
    install_command,
)

PROJECT = Path(__file__).parents[3] / "pyproject.toml"

PACKAGES = (
    Package(name="numpy", extra="", version="2.0.1"),
    Package(name="torch", extra="train", version="2.9.0"),
    Package(name="lightning", extra="train", version=None),
    Package(name="openvino", extra="openvino", version=None),
)


def _report(machine: str, root: Path, accelerators: tuple[Accelerator, ...] = ()) -> DoctorReport:
    lay_out(machine, root)
    cpu = read_cpu(root)
    return DoctorReport(
        boxwright="1.2.3",
        python="CPython 3.12.1 (/usr/bin/python3)",
        system="Debian GNU/Linux 12 (bookworm), Linux 6.1.0, x86_64",
        cpu=cpu,
        memory=read_memory(root),
        accelerators=accelerators,
        packages=PACKAGES,
        plan=Plan.resolve(Request(batch=16, channels_last=True, allocator=Allocator(name="glibc", keeps=True)), cpu),
    )


def test_the_report_reads_as_plain_lines(tmp_path: Path) -> None:
    report = _report("container_cgroup2_quota", tmp_path, (Accelerator(kind="cuda", path="/dev/nvidia0"),))

    assert report.lines() == [
        "boxwright   1.2.3",
        "python      CPython 3.12.1 (/usr/bin/python3)",
        "system      Debian GNU/Linux 12 (bookworm), Linux 6.1.0, x86_64",
        "cpu         AMD EPYC 7763 64-Core Processor",
        "            8 cores, 8 threads, 1 socket, 1 NUMA node",
        "            instructions: avx2",
        "            1 core to use (quota of 1.5 cpus)",
        "memory      31.3 GiB, limit 4.0 GiB, 3.2 GiB to use",
        "devices     cpu",
        "            cuda (/dev/nvidia0)",
        "packages",
        "  base      numpy 2.0.1",
        "  train     torch 2.9.0",
        "            missing: lightning. Run: pip install 'boxwright[train]'",
        "  openvino  missing: openvino. Run: pip install 'boxwright[openvino]'",
        "plan of a training",
        "  device       cpu",
        "  precision    32 (this CPU has no instructions for bf16)",
        "  processes    1 (none)",
        "    rank 0     cpus 0-7, 1 thread",
        "  allocator    glibc, keeps freed memory",
        "  batch        16 per step, 16 per process",
        "  memory       channels last",
        "  lr           as given, whatever the number of processes",
        "  note         the container's quota of 1.5 cpus limits the threads",
    ]


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        ("laptop_i7_1260p", "            12 cores (8 of them small), 16 threads, 1 socket, 1 NUMA node"),
        ("xeon_sapphire_rapids", "            16 cores, 32 threads, 2 sockets, 2 NUMA nodes"),
        ("xeon_sapphire_rapids", "            instructions: amx, avx2, avx512, bf16, vnni"),
        ("xeon_sapphire_rapids", "            16 cores to use (no limits)"),
        ("desktop_taskset", "            4 cores to use (cpus 0-2,9,12 allowed)"),
        ("gvisor", "memory      8.0 GiB, 7.7 GiB to use"),
    ],
)
def test_a_machine_is_described(machine: str, line: str, tmp_path: Path) -> None:
    assert line in _report(machine, tmp_path).lines()


def test_memory_that_nobody_knows_is_not_shown_as_zero(tmp_path: Path) -> None:
    unknown = replace(examine(tmp_path), memory=Memory(total_bytes=0, available_bytes=0))

    assert "memory      not known" in unknown.lines()


def test_the_report_is_plain_json(tmp_path: Path) -> None:
    report = _report("kvm_guest_epyc", tmp_path, (Accelerator(kind="hpu", path="/dev/accel/accel0"),))
    facts = json.loads(json.dumps(report.to_dict()))

    assert facts["boxwright"] == "1.2.3"
    assert facts["cpu"] == report.cpu.to_dict()
    assert facts["memory"] == report.memory.to_dict()
    assert facts["accelerators"] == [{"kind": "hpu", "path": "/dev/accel/accel0"}]
    assert facts["packages"] == {
        "base": {"found": {"numpy": "2.0.1"}, "missing": [], "install": None},
        "train": {
            "found": {"torch": "2.9.0"}, "missing": ["lightning"], "install": "pip install 'boxwright[train]'",
        },
        "openvino": {"found": {}, "missing": ["openvino"], "install": "pip install 'boxwright[openvino]'"},
    }  # fmt: skip


def test_the_plan_is_of_the_training_that_was_asked_about(tmp_path: Path) -> None:
    report = examine(lay_out("xeon_sapphire_rapids", tmp_path), num_processes=4, precision="bf16", batch=64)

    assert (report.plan.processes, report.plan.batch_per_process) == (4, 16)
    assert report.plan.precision_why == "bf16 runs on AMX"
    assert report.to_dict()["plan"]["processes"] == 4
    with pytest.raises(UsageError, match="can't be shared by 3 processes"):
        examine(tmp_path, num_processes=3, batch=64)


def test_this_machine_can_be_examined() -> None:
    report = examine()

    assert report.boxwright == boxwright.__version__
    assert sys.executable in report.python
    assert report.cpu == read_cpu()
    assert report.lines()[0].endswith(boxwright.__version__)
    json.dumps(report.to_dict())


def test_installed_packages_have_the_version_of_their_metadata() -> None:
    found = {package.name: package.version for package in find_packages()}

    assert found["numpy"] == metadata.version("numpy")
    assert found["pyyaml"] == metadata.version("PyYAML")


def test_a_package_that_is_not_there_is_missing() -> None:
    assert find_packages(["no-such-package>=2; extra == 'onnx'"]) == (
        Package(name="no-such-package", extra="onnx", version=None),
    )


def test_every_extra_of_the_project_is_examined_and_no_other() -> None:
    extras = set(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    assert {package.extra for package in find_packages()} == (extras | {""}) - {"all"}


def test_packages_of_the_catalogue_are_examined() -> None:
    examined = {(package.extra, package.name.replace("-", "_")) for package in find_packages()}
    needed = {(e.extra, module) for kind in CATALOGUE.values() for e in kind.values() for module in e.packages}
    assert needed <= examined


def test_devices_are_known_by_their_files(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "hl0", "hl_controlD0", "accel/accel0"):
        write(tmp_path, f"/dev/{name}", "")
    write(tmp_path, "/dev/accel/accel1", "")
    write(tmp_path, "/sys/class/accel/accel0/device/vendor", "0x1da3")
    write(tmp_path, "/sys/class/accel/accel1/device/vendor", "0x8086")

    assert [(found.kind, found.path) for found in find_accelerators(tmp_path)] == [
        ("cuda", "/dev/nvidia2"),
        ("cuda", "/dev/nvidia10"),
        ("hpu", "/dev/hl0"),
        ("hpu", "/dev/accel/accel0"),
        ("other", "/dev/accel/accel1"),
    ]


def test_a_plugin_is_shown_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_plugins() == ()
    write(tmp_path, "/habana_frameworks/__init__.py", "raise AssertionError('it must not be imported')")
    write(tmp_path, "/habana_torch_plugin-1.23.0.dist-info/METADATA", "Name: habana_torch_plugin\nVersion: 1.23.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    report = examine()

    assert "            hpu, by the plugin habana_frameworks 1.23.0" in report.lines()
    assert report.to_dict()["plugins"] == [{"device": "hpu", "package": "habana_frameworks", "version": "1.23.0"}]


def test_a_device_that_is_not_there_has_no_plan(boxwright: Command) -> None:
    done = boxwright("doctor", "--device", "hpu")
    assert (done.code, done.out) == (1, "")
    assert "'hpu' needs habana_frameworks" in done.err


def test_devices_are_listed_by_number(tmp_path: Path) -> None:
    for number in (7, 11, 0, 10, 3, 2, 1):
        write(tmp_path, f"/dev/nvidia{number}", "")

    assert [found.path for found in find_accelerators(tmp_path)] == [f"/dev/nvidia{n}" for n in (0, 1, 2, 3, 7, 10, 11)]


def test_a_machine_without_device_files_has_no_accelerators(tmp_path: Path) -> None:
    assert find_accelerators(tmp_path) == ()


def test_the_base_package_is_installed_without_an_extra() -> None:
    assert install_command("") == "pip install boxwright"


def test_examining_imports_nothing_heavy() -> None:
    heavy = (
        "{'torch', 'cv2', 'onnxruntime', 'openvino', 'lightning', 'ray', 'pyspark', 'matplotlib', 'hotcoco', 'onnx'}"
    )
    code = f"import sys; from boxwright.tasks.doctor import examine; examine(); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def _fix(tmp_path: Path, answer: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `doctor --fix` of an extra that is never complete here, with a pip that only writes down its arguments."""
    (tmp_path / "pip").mkdir(exist_ok=True)
    (tmp_path / "pip" / "__init__.py").touch()
    note = tmp_path / "note"
    (tmp_path / "pip" / "__main__.py").write_text(
        f"import pathlib, sys; pathlib.Path({str(note)!r}).write_text(' '.join(sys.argv[1:])); print('from pip')"
    )
    return subprocess.run(
        [sys.executable, "-m", "boxwright", "doctor", "--fix", "ipex", *words],
        input=answer, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip


def test_fix_shows_the_command_and_runs_it_if_confirmed(tmp_path: Path) -> None:
    command = f"install boxwright[ipex]=={boxwright.__version__}"
    refused = _fix(tmp_path, "\n")
    assert (refused.returncode, refused.stdout) == (0, "Nothing was installed.\n")
    assert f"-m pip install 'boxwright[ipex]=={boxwright.__version__}'" in refused.stderr
    assert not (tmp_path / "note").exists()
    agreed = _fix(tmp_path, "y\n")
    assert (tmp_path / "note").read_text() == command
    assert (agreed.returncode, agreed.stdout) == (0, "")
    assert "from pip" in agreed.stderr
    (tmp_path / "note").unlink()
    unasked = json.loads(_fix(tmp_path, "", "--yes", "--json").stdout)
    assert unasked["ran"]
    assert (tmp_path / "note").read_text() == command


def test_fix_of_an_unknown_extra_or_a_yes_to_nothing_is_a_usage_error(boxwright: Command) -> None:
    assert boxwright("doctor", "--fix", "trian").err.startswith(
        "UsageError: Unknown extra 'trian'. Did you mean 'train'"
    )
    assert boxwright("doctor", "--yes").code == 2
    nothing = boxwright("doctor", "--fix", "eval")
    assert nothing.out == "Nothing is missing of eval.\n"
