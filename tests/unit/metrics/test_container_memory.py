"""The memory of this process's control group, in both versions of the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.metrics.container_memory import ContainerMemory, read_container_memory

GIB = 1 << 30


def _group(directory: Path, limit: str, usage: int, stat: str, *, is_v1: bool = False) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    limit_name, usage_name = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_v1 else ("memory.max", "memory.current")
    )
    (directory / limit_name).write_text(f"{limit}\n")
    (directory / usage_name).write_text(f"{usage}\n")
    (directory / "memory.stat").write_text(stat)


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def _own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own"
    path.write_text(text)
    return path


def test_page_cache_is_not_used_memory(tmp_path: Path, groups: Path) -> None:
    _group(groups, str(GIB), 900, "anon 300\nactive_file 250\ninactive_file 350\n")
    found = read_container_memory(groups, _own(tmp_path, "0::/\n"))
    assert found == ContainerMemory(300, GIB)


def test_the_lowest_limit_counts(tmp_path: Path, groups: Path) -> None:
    _group(groups / "pod" / "container", str(2 * GIB), 100, "")
    _group(groups / "pod", str(GIB), 400, "")
    found = read_container_memory(groups, _own(tmp_path, "0::/pod/container\n"))
    assert found == ContainerMemory(400, GIB)


def test_version_1(tmp_path: Path, groups: Path) -> None:
    stat = "active_file 1\ntotal_active_file 250\ntotal_inactive_file 350\n"
    _group(groups / "memory", str(GIB), 900, stat, is_v1=True)
    own = _own(tmp_path, "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n")
    assert read_container_memory(groups, own) == ContainerMemory(300, GIB)


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096)])
def test_without_a_limit_there_is_nothing(tmp_path: Path, groups: Path, limit: str) -> None:
    _group(groups, limit, 900, "")
    _group(groups / "memory", limit, 900, "", is_v1=True)
    assert read_container_memory(groups, _own(tmp_path, "4:memory:/\n0::/\n")) is None


def test_other_systems_have_no_groups(tmp_path: Path) -> None:
    assert read_container_memory(tmp_path, tmp_path / "missing") is None
