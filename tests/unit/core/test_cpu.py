import os
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest
from support.machines import NAMES, lay_out, write

from boxwright.core.cpu import Core, Cpu, read_cpu, split_cores
from boxwright.core.errors import UsageError
from boxwright.core.procfs import parse_cpu_list


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a machine should be read as; `cores` are the twins we may use, big cores first."""

    model: str
    vendor: str
    isa: set[str]
    logical: str
    physical: int
    cores: list[tuple[int, ...]]
    sockets: tuple[int, ...] = (0,)
    nodes: tuple[int, ...] = (0,)
    efficiency: str = ""
    allowed: str
    quota: float | None = None
    usable: int


def _twins(first: range, offset: int) -> list[tuple[int, ...]]:
    return [(cpu, cpu + offset) for cpu in first]


def _singles(cpus: range) -> list[tuple[int, ...]]:
    return [(cpu,) for cpu in cpus]


MACHINES = {
    "arm_neoverse": Expected(
        model=os.uname().machine, vendor="0x41", isa={"bf16"},
        logical="0-3", physical=4, cores=_singles(range(4)), allowed="0-3", usable=4,
    ),
    "container_cgroup1_quota": Expected(
        model="Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", vendor="GenuineIntel", isa={"avx2", "avx512", "vnni"},
        logical="0-15", physical=8, cores=_twins(range(8), 8), sockets=(0, 1), nodes=(0, 1),
        allowed="0-15", quota=2.5, usable=2,
    ),
    "container_cgroup2_quota": Expected(
        model="AMD EPYC 7763 64-Core Processor", vendor="AuthenticAMD", isa={"avx2"},
        logical="0-7", physical=8, cores=_singles(range(8)), allowed="0-7", quota=1.5, usable=1,
    ),
    "desktop_taskset": Expected(
        model="AMD Ryzen 7 5800X 8-Core Processor", vendor="AuthenticAMD", isa={"avx2"},
        logical="0-15", physical=8, cores=[(0,), (1, 9), (2,), (12,)], allowed="0-2,9,12", usable=4,
    ),
    "gvisor": Expected(
        model="unknown", vendor="GenuineIntel", isa={"avx2", "avx512"},
        logical="0-3", physical=4, cores=_singles(range(4)), allowed="0-3", usable=4,
    ),
    "kvm_guest_epyc": Expected(
        model="AMD EPYC", vendor="AuthenticAMD", isa={"avx2", "avx512", "vnni", "bf16"},
        logical="0-1", physical=2, cores=_singles(range(2)), allowed="0-1", usable=2,
    ),
    "laptop_i7_1260p": Expected(
        model="12th Gen Intel(R) Core(TM) i7-1260P", vendor="GenuineIntel", isa={"avx2", "vnni"},
        logical="0-15", physical=12, cores=[(0, 1), (2, 3), (4, 5), (6, 7), *_singles(range(8, 16))],
        efficiency="8-15", allowed="0-15", usable=12,
    ),
    "laptop_zen4_zen4c": Expected(
        model="AMD Ryzen 5 8540U w/ Radeon 740M Graphics", vendor="AuthenticAMD",
        isa={"avx2", "avx512", "vnni", "bf16"}, logical="0-11", physical=6,
        cores=[(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)], efficiency="4-11", allowed="0-11", usable=6,
    ),
    "pod_cgroup2_parent_quota": Expected(
        model="AMD EPYC 7763 64-Core Processor", vendor="AuthenticAMD", isa={"avx2"},
        logical="0-7", physical=8, cores=_singles(range(8)), allowed="0-7", quota=3.0, usable=3,
    ),
    "workstation_offline": Expected(
        model="Intel(R) Xeon(R) CPU E3-1270 v5 @ 3.60GHz", vendor="GenuineIntel", isa={"avx2"},
        logical="0-2,4-5", physical=3, cores=[(0, 4), (1, 5), (2,)], allowed="0-2,4-5", usable=3,
    ),
    "xeon_sapphire_rapids": Expected(
        model="Intel(R) Xeon(R) Gold 6434", vendor="GenuineIntel", isa={"avx2", "avx512", "vnni", "bf16", "amx"},
        logical="0-31", physical=16, cores=_twins(range(16), 16), sockets=(0, 1), nodes=(0, 1),
        allowed="0-31", usable=16,
    ),
}  # fmt: skip


def test_every_stored_machine_has_an_expectation() -> None:
    assert set(NAMES) == set(MACHINES)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_is_read_as_what_it_is(name: str, tmp_path: Path) -> None:
    cpu, expected = read_cpu(lay_out(name, tmp_path)), MACHINES[name]

    assert (cpu.model, cpu.vendor) == (expected.model, expected.vendor)
    assert cpu.isa == expected.isa
    assert cpu.logical == parse_cpu_list(expected.logical)
    assert len(cpu.all_cores) == expected.physical
    assert [core.cpus for core in cpu.cores] == expected.cores
    assert (cpu.sockets, cpu.nodes) == (expected.sockets, expected.nodes)
    small = {c for core in cpu.all_cores if core.kind == "efficiency" for c in core.cpus}
    assert small == set(parse_cpu_list(expected.efficiency))
    assert cpu.hybrid is bool(expected.efficiency)
    assert cpu.allowed == parse_cpu_list(expected.allowed)
    assert cpu.quota == expected.quota
    assert cpu.usable_cores == expected.usable


@pytest.mark.parametrize("name", NAMES)
def test_the_json_facts_agree_with_the_machine(name: str, tmp_path: Path) -> None:
    facts, expected = read_cpu(lay_out(name, tmp_path)).to_dict(), MACHINES[name]

    assert facts == {
        "model": expected.model,
        "vendor": expected.vendor,
        "isa": sorted(expected.isa),
        "logical_cpus": len(parse_cpu_list(expected.logical)),
        "physical_cores": expected.physical,
        "sockets": len(expected.sockets),
        "numa_nodes": len(expected.nodes),
        "efficiency_cores": 8 if name == "laptop_i7_1260p" else 4 if name == "laptop_zen4_zen4c" else 0,
        "allowed": expected.allowed,
        "allowed_cores": len(expected.cores),
        "quota": expected.quota,
        "usable_cores": expected.usable,
    }


def test_a_logical_cpu_knows_its_core(tmp_path: Path) -> None:
    cpu = read_cpu(lay_out("xeon_sapphire_rapids", tmp_path))

    assert cpu.core_of(26) == Core(cpus=(10, 26), socket=1, node=1)
    assert cpu.core_of(10) is cpu.core_of(26)


def test_an_offline_cpu_has_no_core(tmp_path: Path) -> None:
    cpu = read_cpu(lay_out("workstation_offline", tmp_path))

    with pytest.raises(UsageError, match=r"No cpu 3 .*: 0-2,4-5\."):
        cpu.core_of(3)


def test_a_mask_on_one_socket_leaves_one_socket(tmp_path: Path) -> None:
    root = lay_out("xeon_sapphire_rapids", tmp_path)
    write(root, "/proc/self/status", "Name:\tpython3\nCpus_allowed_list:\t8-11,24-27")
    cpu = read_cpu(root)

    assert (cpu.sockets, cpu.nodes, cpu.usable_cores) == ((1,), (1,), 4)
    assert len(cpu.all_cores) == 16


def test_a_mask_of_offline_cpus_only_is_passed_over(tmp_path: Path) -> None:
    root = lay_out("workstation_offline", tmp_path)
    write(root, "/proc/self/status", "Cpus_allowed_list:\t6-7")

    assert read_cpu(root).allowed == (0, 1, 2, 4, 5)


def test_capacity_tells_little_cores_apart(tmp_path: Path) -> None:
    root = lay_out("arm_neoverse", tmp_path)
    for cpu, capacity in enumerate((350, 350, 870, 1024)):
        write(root, f"/sys/devices/system/cpu/cpu{cpu}/cpu_capacity", str(capacity))

    # Big cores come first although their numbers are higher.
    assert [core.cpus for core in read_cpu(root).cores] == [(2,), (3,), (0,), (1,)]


def test_favoured_cores_do_not_make_a_chip_hybrid(tmp_path: Path) -> None:
    root = lay_out("desktop_taskset", tmp_path)
    for cpu in range(16):
        write(root, f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", "4850000" if cpu == 2 else "4600000")

    assert not read_cpu(root).hybrid


def test_low_power_cores_are_small_cores(tmp_path: Path) -> None:
    root = lay_out("laptop_i7_1260p", tmp_path)
    write(root, "/sys/devices/cpu_atom/cpus", "8-13")
    write(root, "/sys/devices/cpu_lowpower/cpus", "14-15")

    assert sum(core.kind == "efficiency" for core in read_cpu(root).all_cores) == 8


def test_a_flag_that_one_core_lacks_is_not_reported(tmp_path: Path) -> None:
    write(tmp_path, "/proc/cpuinfo", "processor : 0\nflags : avx2 avx_vnni\n\nprocessor : 1\nflags : avx2\n")

    assert read_cpu(tmp_path).isa == {"avx2"}


def test_xeon_phi_does_not_count_as_avx512(tmp_path: Path) -> None:
    write(tmp_path, "/proc/cpuinfo", "processor : 0\nflags : avx2 avx512f avx512cd avx512er avx512pf\n")

    assert read_cpu(tmp_path).isa == {"avx2"}


def test_amx_needs_tiles_and_a_number_format(tmp_path: Path) -> None:
    write(tmp_path, "/proc/cpuinfo", "processor : 0\nflags : amx_tile\n")
    assert read_cpu(tmp_path).isa == set()

    write(tmp_path, "/proc/cpuinfo", "processor : 0\nflags : amx_tile amx_bf16\n")
    assert read_cpu(tmp_path).isa == {"amx", "bf16"}


def test_kernels_before_5_3_name_the_twins_differently(tmp_path: Path) -> None:
    write(tmp_path, "/sys/devices/system/cpu/online", "0-3")
    for cpu in range(4):
        siblings = f"{cpu % 2},{cpu % 2 + 2}"
        write(tmp_path, f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)

    assert [core.cpus for core in read_cpu(tmp_path).cores] == [(0, 2), (1, 3)]


def test_without_sysfs_twins_come_from_cpuinfo(tmp_path: Path) -> None:
    blocks = [f"processor : {c}\nphysical id : {c % 2}\ncore id : {c % 4 // 2}\n" for c in range(8)]
    write(tmp_path, "/proc/cpuinfo", "\n".join(blocks))
    cpu = read_cpu(tmp_path)

    assert [(core.cpus, core.socket) for core in cpu.cores] == [((0, 4), 0), ((2, 6), 0), ((1, 5), 1), ((3, 7), 1)]


def test_an_empty_tree_falls_back_to_the_count_of_python(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path)

    assert cpu.logical == cpu.allowed == tuple(range(os.cpu_count() or 1))
    assert (cpu.isa, cpu.quota, cpu.sockets) == (frozenset(), None, (0,))


def test_garbage_in_the_files_is_no_error(tmp_path: Path) -> None:
    root = lay_out("container_cgroup2_quota", tmp_path)
    for path in ("/proc/cpuinfo", "/proc/self/cgroup", "/sys/fs/cgroup/cpu.max", "/sys/devices/system/cpu/online"):
        write(root, path, "::\nnone of this\n\n- - -")
    write(root, "/sys/devices/system/cpu/cpu0/topology/physical_package_id", "?")

    assert read_cpu(root).usable_cores >= 1
    assert read_cpu(root).quota is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs a Linux scheduler")
def test_this_machine_is_read_with_the_real_mask() -> None:
    cpu = read_cpu()

    assert set(cpu.allowed) == os.sched_getaffinity(0)
    assert 1 <= cpu.usable_cores <= len(cpu.cores) <= len(cpu.logical)


@pytest.mark.parametrize(
    ("quota", "usable"), [(None, 4), (0.25, 1), (1.0, 1), (1.5, 1), (1.9, 2), (2.0, 2), (2.8, 2), (3.9, 4), (64.0, 4)]
)
def test_a_container_quota_limits_the_cores(quota: float | None, usable: int) -> None:
    cores = tuple(Core(cpus=(c, c + 4)) for c in range(4))
    cpu = Cpu(model="", vendor="", isa=frozenset(), all_cores=cores, allowed=tuple(range(8)), quota=quota)

    assert cpu.usable_cores == usable


def test_a_cpu_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        read_cpu().quota = 1.0  # type: ignore[misc]


def test_the_cores_of_a_real_layout_split_by_socket(tmp_path: Path) -> None:
    cpu = read_cpu(lay_out("xeon_sapphire_rapids", tmp_path))
    shares = split_cores(cpu.cores, 4)

    assert [[core.cpus[0] for core in share] for share in shares] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15],
    ]  # fmt: skip
