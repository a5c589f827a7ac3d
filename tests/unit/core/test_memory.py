from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from support.machines import NAMES, lay_out, write

from boxwright.core.memory import Memory, read_memory

KIB, MIB, GIB = 2**10, 2**20, 2**30

# Total and available in KiB, the limit, and what may still be taken.
MACHINES = {
    "arm_neoverse": (7945600, 7011340, None, 7011340 * KIB),
    # 2 GiB less the half that is used, of which another half is cached files (in the "total_" lines).
    "container_cgroup1_quota": (131749572, 121004412, 2 * GIB, 2 * GIB - 512 * MIB),
    "container_cgroup2_quota": (32869416, 25811340, 4 * GIB, 4 * GIB - (1536 - 750) * MIB),
    "desktop_taskset": (32786000, 28911340, None, 28911340 * KIB),
    "gvisor": (8388608, 8100000, None, 8100000 * KIB),
    "kvm_guest_epyc": (24684100, 24255984, None, 24255984 * KIB),
    "laptop_i7_1260p": (16069520, 9911340, None, 9911340 * KIB),
    "laptop_zen4_zen4c": (15069520, 8911340, None, 8911340 * KIB),
    # The pod would leave more than the machine has.
    "pod_cgroup2_parent_quota": (32869416, 6291456, 8 * GIB, 6 * GIB),
    "workstation_offline": (16311300, 12911340, None, 12911340 * KIB),
    "xeon_sapphire_rapids": (263845120, 253018744, None, 253018744 * KIB),
}


def test_every_stored_machine_has_an_expectation() -> None:
    assert set(NAMES) == set(MACHINES)


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_of_a_machine_is_read(name: str, tmp_path: Path) -> None:
    memory = read_memory(lay_out(name, tmp_path))
    total, available, limit, usable = MACHINES[name]

    assert (memory.total_bytes, memory.available_bytes) == (total * KIB, available * KIB)
    assert memory.limit_bytes == limit
    assert memory.usable_bytes == usable
    assert memory.to_dict() == {
        "total_bytes": total * KIB,
        "available_bytes": available * KIB,
        "limit_bytes": limit,
        "usable_bytes": usable,
    }


def test_a_limit_above_the_machine_is_no_limit(tmp_path: Path) -> None:
    root = lay_out("container_cgroup2_quota", tmp_path)
    write(root, "/sys/fs/cgroup/memory.max", str(64 * GIB))

    assert read_memory(root).limit_bytes is None


def test_the_mark_where_throttling_starts_counts_as_a_limit(tmp_path: Path) -> None:
    root = lay_out("container_cgroup2_quota", tmp_path)
    write(root, "/sys/fs/cgroup/memory.high", str(3 * GIB))

    assert read_memory(root).limit_bytes == 3 * GIB


def test_version_1_tells_the_limit_of_a_parent_out_of_sight(tmp_path: Path) -> None:
    root = lay_out("container_cgroup1_quota", tmp_path)
    write(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")

    assert read_memory(root).limit_bytes == 2 * GIB


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    root = lay_out("container_cgroup2_quota", tmp_path)
    write(root, "/sys/fs/cgroup/memory.current", str(6 * GIB))

    assert read_memory(root).usable_bytes == 0


def test_without_the_estimate_of_the_kernel_free_and_cached_memory_count(tmp_path: Path) -> None:
    write(tmp_path, "/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 50 kB\nCached: 100 kB")

    assert read_memory(tmp_path).available_bytes == 450 * KIB


def test_an_empty_tree_falls_back_to_what_the_system_says(tmp_path: Path) -> None:
    memory = read_memory(tmp_path)

    assert memory.total_bytes == memory.usable_bytes > 0


def test_this_machine_has_memory_to_use() -> None:
    memory = read_memory()

    assert 0 < memory.usable_bytes <= memory.total_bytes


def test_a_memory_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Memory(total_bytes=1, available_bytes=1).total_bytes = 2  # type: ignore[misc]
