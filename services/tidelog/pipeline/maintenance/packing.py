"""Chooses which small files are combined. The module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LARGE_ENOUGH: Final = 0.75
"""The fraction of the target size above which a file is not rewritten, so that bytes are not rewritten
repeatedly.
"""


@dataclass(frozen=True, slots=True)
class Pack:
    """Files of one directory that are combined into one."""

    directory: str
    files: tuple[str, ...]
    size_bytes: int


def packs_of(sizes: Mapping[str, int], target_bytes: int) -> list[Pack]:
    """Returns packs of two or more files with about `target_bytes` at most. `sizes` maps a path to bytes.
    Files are combined in the order of their names, which is the order of their batches.
    """
    directories: dict[str, list[tuple[str, int]]] = {}
    for path, size_bytes in sorted(sizes.items()):
        if size_bytes < target_bytes * LARGE_ENOUGH:
            directories.setdefault(path.rpartition("/")[0], []).append((path, size_bytes))
    packs: list[Pack] = []
    for directory, files in sorted(directories.items()):
        packs += [
            Pack(directory, tuple(path for path, _ in run), sum(size for _, size in run))
            for run in _runs(files, target_bytes)
            if len(run) > 1
        ]
    return packs


def _runs(files: Iterable[tuple[str, int]], target_bytes: int) -> Iterable[Sequence[tuple[str, int]]]:
    run: list[tuple[str, int]] = []
    size_bytes = 0
    for path, own_bytes in files:
        if run and size_bytes + own_bytes > target_bytes:
            yield run
            run, size_bytes = [], 0
        run.append((path, own_bytes))
        size_bytes += own_bytes
    if run:
        yield run
