from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import lay_out, write

from boxwright.core.procfs import format_cpu_list, own_groups, parse_cpu_list, read_int, read_text


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8,10-11\n", (0, 1, 8, 10, 11)), ("(null)", ())],
)
def test_a_cpu_list_is_parsed(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@given(st.sets(st.integers(0, 300)))
def test_a_written_cpu_list_reads_back(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(tuple(cpus))) == tuple(sorted(cpus))


def test_a_file_that_is_missing_or_a_folder_reads_as_nothing(tmp_path: Path) -> None:
    assert read_text(tmp_path / "nothing") == read_text(tmp_path) == ""
    assert read_int(tmp_path / "nothing") is None


def test_max_is_not_a_number(tmp_path: Path) -> None:
    write(tmp_path, "memory.max", "max")

    assert read_int(tmp_path / "memory.max") is None


def _groups(root: Path, controller: str = "cpu") -> list[str]:
    return [str(group.relative_to(root)) for group in own_groups(controller, root)]


def test_all_parents_are_visited_in_the_namespace_of_the_host(tmp_path: Path) -> None:
    root = lay_out("pod_cgroup2_parent_quota", tmp_path)
    pod = "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7f3c.slice"

    assert _groups(root) == [
        f"{pod}/cri-containerd-51ab.scope",
        pod,
        "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice",
        "sys/fs/cgroup/kubepods.slice",
        "sys/fs/cgroup",
    ]


def test_a_namespace_of_its_own_shows_the_group_at_the_mount(tmp_path: Path) -> None:
    assert _groups(lay_out("container_cgroup2_quota", tmp_path)) == ["sys/fs/cgroup"]


def test_a_version_1_mount_of_the_own_group_hides_the_path_of_the_host(tmp_path: Path) -> None:
    root = lay_out("container_cgroup1_quota", tmp_path)

    assert _groups(root) == ["sys/fs/cgroup/cpu,cpuacct"]
    assert _groups(root, "memory") == ["sys/fs/cgroup/memory"]


def test_a_group_below_the_mounted_one_is_found(tmp_path: Path) -> None:
    root = lay_out("container_cgroup1_quota", tmp_path)
    write(root, "/proc/self/cgroup", "4:cpu,cpuacct:/docker/0f6c1be05a1d8b1e9c7f/job")
    write(root, "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "100000")

    assert _groups(root) == ["sys/fs/cgroup/cpu,cpuacct/job", "sys/fs/cgroup/cpu,cpuacct"]


def test_with_both_versions_mounted_both_are_visited(tmp_path: Path) -> None:
    root = lay_out("kvm_guest_epyc", tmp_path)

    assert _groups(root) == ["sys/fs/cgroup/cpu", "sys/fs/cgroup/unified"]
    assert _groups(root, "memory") == [
        "sys/fs/cgroup/memory/worker", "sys/fs/cgroup/memory", "sys/fs/cgroup/unified",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/../other", "/not/visible", "/../../.."])
def test_a_group_out_of_sight_falls_back_to_the_mount(path: str, tmp_path: Path) -> None:
    root = lay_out("container_cgroup2_quota", tmp_path)
    write(root, "/proc/self/cgroup", f"0::{path}")

    assert _groups(root) == ["sys/fs/cgroup"]


def test_a_mount_point_with_a_blank_is_understood(tmp_path: Path) -> None:
    write(tmp_path, "/proc/self/cgroup", "0::/a:b")
    write(tmp_path, "/proc/self/mountinfo", r"5 1 0:30 / /my\040groups rw shared:9 master:2 - cgroup2 none rw")
    write(tmp_path, "/my groups/a:b/cpu.max", "max 100000")

    assert _groups(tmp_path) == ["my groups/a:b", "my groups"]


def test_without_mountinfo_the_usual_folders_are_tried(tmp_path: Path) -> None:
    write(tmp_path, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000")

    assert "sys/fs/cgroup" in _groups(tmp_path)
    assert "sys/fs/cgroup/cpu,cpuacct" in _groups(tmp_path)
