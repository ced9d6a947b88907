"""Renames the files of a cleaned segment, so that a start after a crash finds the old segments or the new
one.

1. `.cleaned`: the files are being written. A start removes them.
2. `.swap`, the `.log` file last: the files are complete. If `.log.swap` exists, a start finishes the swap.
3. The old segments get `.deleted`, the oldest first. After a crash, only the newer ones can remain, and no
   record can reappear without the tombstone or marker that removed it.
4. The new files lose `.swap`, the `.log` file last.

Source: Kafka's `UnifiedLog.replaceSegments`, `LogLoader.completeSwapOperations`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from tidelog.broker.log.directory_files import PartitionDirectory, SegmentsCheckpoint
from tidelog.log_format.batches import locate
from tidelog.log_format.directory import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)

_LOG_LAST: Final = (TRANSACTION_INDEX_SUFFIX, TIME_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX, LOG_SUFFIX)


def announce_swap(directory: PartitionDirectory, base_offset: int) -> None:
    """Carries out step 2. Raises OSError; then the swap has not begun."""
    for suffix in _LOG_LAST:
        path = directory.file(base_offset, suffix)
        os.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    directory.sync()


def call_swap_off(directory: PartitionDirectory, base_offset: int) -> None:
    """Removes the new files, because the log no longer has the old segments. Raises OSError."""
    for suffix in reversed(_LOG_LAST):
        path = directory.file(base_offset, suffix)
        for unneeded in (path + SWAP_SUFFIX, path + CLEANED_SUFFIX):
            with suppress(FileNotFoundError):
                os.unlink(unneeded)


def finish_swap(directory: PartitionDirectory, base_offset: int) -> None:
    """Carries out step 4, or the rest of it after a crash. Raises OSError."""
    for suffix in _LOG_LAST:
        path = directory.file(base_offset, suffix)
        if suffix == TRANSACTION_INDEX_SUFFIX and _is_empty(path + SWAP_SUFFIX):
            with suppress(FileNotFoundError):
                os.unlink(path)  # in this order, so that a start after a crash repeats both steps
            os.unlink(path + SWAP_SUFFIX)
            continue
        with suppress(FileNotFoundError):
            os.replace(path + SWAP_SUFFIX, path)
    directory.sync()


def _is_empty(path: str) -> bool:
    try:
        return os.stat(path).st_size == 0
    except FileNotFoundError:
        return False


def remove_snapshots(directory: PartitionDirectory, base_offsets: Sequence[int]) -> None:
    """Removes the snapshots at offsets where no segment begins any more. Raises OSError."""
    for base_offset in base_offsets:
        with suppress(FileNotFoundError):
            os.unlink(directory.file(base_offset, SNAPSHOT_SUFFIX))


def complete_interrupted_swaps(directory: PartitionDirectory, checkpoint: SegmentsCheckpoint) -> None:
    """Finishes swaps that a crash interrupted, before a start reads the segments. Raises OSError,
    TornLogError.
    """
    for base_offset in directory.offsets_of(LOG_SUFFIX + SWAP_SUFFIX):
        end_offset = _end_offset(directory.file(base_offset, LOG_SUFFIX + SWAP_SUFFIX), base_offset)
        checkpoint.remove(checkpoint.between(base_offset + 1, end_offset))
        for covered in directory.offsets_of(LOG_SUFFIX):
            if base_offset < covered < end_offset:
                for suffix in SEGMENT_SUFFIXES:
                    with suppress(FileNotFoundError):
                        os.unlink(directory.file(covered, suffix))
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = directory.file(base_offset, suffix)
            # an existing index may be that of the old segment, so recovery rebuilds it
            if not os.path.exists(path + SWAP_SUFFIX):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        finish_swap(directory, base_offset)
    for name in os.listdir(directory.path):
        if name.endswith(SWAP_SUFFIX):  # the swap had not begun
            os.unlink(f"{directory.path}/{name}")


def _end_offset(path: str, base_offset: int) -> int:
    end_offset = base_offset
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _, _, last_offset, _ in locate(partial(os.pread, fd), 0, os.fstat(fd).st_size):
            end_offset = last_offset + 1
    finally:
        os.close(fd)
    return end_offset
