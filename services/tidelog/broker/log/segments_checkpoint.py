"""The list of a partition's segments, which shows whether a file is missing that the broker did not remove.

The file `segments-checkpoint` beside the segments has the version `0` in its first line, the number of
segments in the second, and then the base offset of each segment in a line. Kafka ignores it. A file with
segments that it does not name is sound, and a name without a file is a loss. So the order is:

- A new segment's files are created, then its name is written, then records are appended.
- A name is removed durably (fsync), then its files are removed, renamed or replaced.

A crash of the machine can lose the files of new segments although their names are on disk, but only at or
above the recovery point. A list that cannot be written is removed: without it, nothing is checked.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from tidelog.broker.log.partition_directory import (
    LOG_SUFFIX,
    PartitionDirectory,
    sync_file,
    write_atomically,
)

SEGMENTS_CHECKPOINT_FILE: Final = "segments-checkpoint"
MISSING_SEGMENTS_NAMED: Final = 3
"""The number of missing segments that a message names."""
_VERSION: Final = "0"

_log = structlog.get_logger(__name__)


class SegmentsCheckpoint:
    """The list of one partition. Any thread may call the methods; they raise OSError.

    Only `remove` waits for the disk, so the event loop must not call it.
    """

    __slots__ = ("_base_offsets", "_directory", "_lock")

    def __init__(self, directory: PartitionDirectory, base_offsets: Iterable[int] = ()) -> None:
        self._directory = directory
        self._base_offsets = frozenset(base_offsets)
        self._lock = threading.Lock()

    @classmethod
    def read(cls, directory: PartitionDirectory) -> SegmentsCheckpoint:
        """Reads the list. It is empty if the file does not exist or if a crash of the machine damaged it."""
        path = directory.named(SEGMENTS_CHECKPOINT_FILE)
        try:
            return cls(directory, decode_base_offsets(path.read_bytes()))
        except FileNotFoundError:
            pass
        except ValueError as error:
            _log.warning("the list of segments is written again", path=str(path), reason=str(error))
            path.unlink(missing_ok=True)
        return cls(directory)

    def missing(self, found: Collection[int]) -> list[int]:
        """Returns the base offsets in the list for which there is no segment in `found`, sorted."""
        return sorted(self._base_offsets.difference(found))

    def between(self, begin_offset: int, end_offset: int) -> list[int]:
        """Returns the base offsets in the list from `begin_offset` to below `end_offset`."""
        return [base for base in self._base_offsets if begin_offset <= base < end_offset]

    def set_to(self, base_offsets: Iterable[int]) -> None:
        """Makes these the segments of the list. Writes the file only if that changes the list."""
        with self._lock:
            self._change(frozenset(base_offsets))

    def add(self, base_offsets: Iterable[int], *, instead_of: Iterable[int] = ()) -> None:
        """Adds segments whose files exist, and removes empty ones without waiting for the disk.

        No record is lost with an empty segment, and the next flush makes the list durable.
        """
        with self._lock:
            self._change(self._base_offsets.difference(instead_of).union(base_offsets))

    def remove(self, base_offsets: Iterable[int]) -> None:
        """Removes segments durably, before their files are removed, renamed or replaced."""
        with self._lock:
            if self._base_offsets.isdisjoint(base_offsets := tuple(base_offsets)):
                return
            self._change(self._base_offsets.difference(base_offsets))
        # Outside the lock, because the event loop takes it. A newer list lacks the names, too.
        with suppress(FileNotFoundError):
            sync_file(self._directory.named(SEGMENTS_CHECKPOINT_FILE))
        self._directory.sync()

    def _change(self, base_offsets: frozenset[int]) -> None:
        if base_offsets == self._base_offsets:
            return
        path = self._directory.named(SEGMENTS_CHECKPOINT_FILE)
        try:
            write_atomically(path, encode_base_offsets(base_offsets), syncs=False)
        except OSError as error:  # for example, a full disk, on which retention must still free space
            path.unlink(missing_ok=True)
            _log.warning(
                "the list of segments cannot be written: missing segments are not detected until it can",
                path=str(path),
                reason=str(error),
            )
        self._base_offsets = base_offsets


def encode_base_offsets(base_offsets: Collection[int]) -> bytes:
    lines = [_VERSION, str(len(base_offsets)), *map(str, sorted(base_offsets))]
    return ("\n".join(lines) + "\n").encode()


def decode_base_offsets(content: bytes) -> list[int]:
    """Raises ValueError if the list is not complete."""
    version, *numbers = content.decode("ascii").split("\n")
    if version != _VERSION or len(numbers) < 2 or numbers[-1] or int(numbers[0]) != len(numbers) - 2:
        raise ValueError("expected version 0, the number of segments, and a line for each")
    return [int(number) for number in numbers[1:-1]]


def describe_missing(missing: Sequence[int], found: Collection[int], directory: PartitionDirectory) -> str:
    """Returns a message that names the missing offsets and the next step. `missing` is sorted."""
    following = sorted({*missing, *found})
    named = []
    for base_offset in missing[:MISSING_SEGMENTS_NAMED]:
        after = next((other for other in following if other > base_offset), None)
        offsets = (
            f"from offset {base_offset}" if after is None else f"of offsets {base_offset} to {after - 1}"
        )
        named.append(f"{base_offset:020d}{LOG_SUFFIX} {offsets}")
    if len(missing) > MISSING_SEGMENTS_NAMED:
        named.append(f"{len(missing) - MISSING_SEGMENTS_NAMED} more")
    return (
        f"segments are missing that the broker did not remove: {', '.join(named)}. Restore the files, or "
        f"remove {directory.named(SEGMENTS_CHECKPOINT_FILE)} to serve what is left"
    )
