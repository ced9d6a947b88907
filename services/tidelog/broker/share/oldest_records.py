"""The timestamps of the oldest unfinished records of share partitions, for the metrics.

The timestamp is the greatest of the batch, which retention uses, too. A batch that was looked up is
remembered until its last record is finished, so a scrape looks up at most one batch of a partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import structlog

from tidelog.broker.log.errors import LogStorageError
from tidelog.broker.log.segmented_log import SegmentedLog
from tidelog.broker.share.share_partition import SharePartitionKey
from tidelog.records.batch import NO_TIMESTAMP

MAX_LOOKUPS: Final = 1_000
"""The most batches that one scrape looks up, 0.1 s of its thread."""

_log = structlog.get_logger(__name__)


class OldestOffset(NamedTuple):
    """The first offset of a share partition that is not finished."""

    log: SegmentedLog
    leader_epoch: int
    offset: int


class _Batch(NamedTuple):
    """A batch that was looked up. `first_offset` is the offset for which it was looked up."""

    leader_epoch: int
    first_offset: int
    last_offset: int
    timestamp: int


class OldestRecords:
    """The batches that were looked up, the one that was looked up first in front."""

    def __init__(self) -> None:
        self._batches: dict[SharePartitionKey, _Batch] = {}

    def timestamps(
        self, oldest: Mapping[SharePartitionKey, OldestOffset]
    ) -> Iterator[tuple[SharePartitionKey, int]]:
        """Yields the timestamps (ms) at these offsets. Leaves out batches without a timestamp, and partitions
        that this scrape can no longer look up; the next one looks them up first. Forgets the partitions that
        are not in `oldest`.
        """
        batches = self._batches = {key: batch for key, batch in self._batches.items() if key in oldest}
        unknown = [key for key in oldest if key not in batches]
        behind = [key for key, batch in batches.items() if not _contains(batch, oldest[key])]
        for key in (unknown + behind)[:MAX_LOOKUPS]:
            batches.pop(key, None)
            found = _looked_up(key, oldest[key])
            if found is not None:
                batches[key] = found
        for key, batch in batches.items():
            if _contains(batch, oldest[key]) and batch.timestamp != NO_TIMESTAMP:
                yield key, batch.timestamp


def _contains(batch: _Batch, oldest: OldestOffset) -> bool:
    is_within = batch.first_offset <= oldest.offset <= batch.last_offset
    return is_within and batch.leader_epoch == oldest.leader_epoch


def _looked_up(key: SharePartitionKey, oldest: OldestOffset) -> _Batch | None:
    try:
        found = oldest.log.batch_timestamp(oldest.offset)
    except LogStorageError as error:
        _log.warning("the age of a share partition's oldest record is unknown", key=key, reason=str(error))
        return None
    if found is None:
        return None
    return _Batch(oldest.leader_epoch, oldest.offset, found.offset, found.timestamp)
