"""Which small files become one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LARGE_ENOUGH: Final = 0.75
"""Of the target: files of at least that stay as they are, else bytes were written again and again."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Files of one directory, to be one."""

    directory: str
    files: tuple[str, ...]
    size_bytes: int


def packs_of(sizes: Mapping[str, int], target_bytes: int) -> list[Pack]:
    """`sizes`: path -> bytes. Files go together in the order of their names, which is that of their batches;
    a pack holds two or more, and about `target_bytes` at most.
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
