"""The memory of the container or service in which this process runs, as the kernel's control groups count it.

The kernel ends a process of a group that reaches its limit and has nothing left to give back. A process can
read both numbers itself, so no exporter of the node is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_NO_LIMIT: Final = 1 << 62
"""Version 1 shows a limit of about 2^63 if there is none."""


class ContainerMemory(NamedTuple):
    """`used_bytes` leaves out the page cache, which the kernel gives back before it ends a process."""

    used_bytes: int
    limit_bytes: int


class _Files(NamedTuple):
    """The names of one version of control groups."""

    directory: str
    limit: str
    usage: str
    cache_prefix: str


_V1: Final = _Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2: Final = _Files("", "memory.max", "memory.current", "")


def read_container_memory(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> ContainerMemory | None:
    """Returns the memory of the group with the lowest limit among this process's group and its parents, or
    None if none of them has a limit.
    """
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:  # not Linux
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            files = _V1 if controllers else _V2
            for directory in _with_parents(groups / files.directory, path):
                memory = _read(directory, files)
                if memory is not None:
                    found.append(memory)
    return min(found, key=lambda memory: memory.limit_bytes, default=None)


def _with_parents(root: Path, path: str) -> Iterator[Path]:
    """Yields the directories of a group and its parents. A container sees its own group as the root, so the
    directories on the way to it may be missing.
    """
    relative = PurePosixPath(path.lstrip("/"))
    yield root / relative
    yield from (root / parent for parent in relative.parents)


def _read(directory: Path, files: _Files) -> ContainerMemory | None:
    try:
        limit = (directory / files.limit).read_text().strip()
        if limit == "max" or int(limit) > _NO_LIMIT:
            return None
        usage = int((directory / files.usage).read_text())
        rows = (line.split() for line in (directory / "memory.stat").read_text().splitlines())
        stat = {name: int(value) for name, value in rows}
    except FileNotFoundError:
        return None
    cache = sum(stat.get(f"{files.cache_prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    return ContainerMemory(max(0, usage - cache), int(limit))
