"""The follower's side of replication: where to cut the own log so that it agrees with the leader's.

A log agrees with the leader's up to where the newest epoch that both know ends in either. The high watermark
says nothing of it: it may lag behind what was acknowledged (SPEC C8, C9; KIP-101, KIP-279, KIP-320).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tidelog.broker.partition.leader_epochs import UNDEFINED_EPOCH, LeaderEpochs


class FetchState(Enum):
    """TRUNCATING: the log may hold what the leader's doesn't, nothing may be appended to it."""

    NONE = "none"
    TRUNCATING = "truncating"
    FETCHING = "fetching"


class Truncation(NamedTuple):
    """Cut to `offset`; if not `is_final` the leader has to be asked again, of the epoch then the newest."""

    offset: int
    is_final: bool


def truncation_for(
    epochs: LeaderEpochs, log_end_offset: int, log_start_offset: int, leaders_epoch: int, leaders_end: int
) -> Truncation:
    """What follows from the leader's answer that its `leaders_epoch`, the largest not above the one asked
    for, ends at `leaders_end` (Kafka: AbstractFetcherThread.getOffsetTruncationState).
    """
    if leaders_epoch == UNDEFINED_EPOCH:
        # The leader knows nothing up to the epoch asked for: step below it.
        latest = epochs.latest
        start = log_start_offset if latest is None else max(latest.start_offset, log_start_offset)
        return Truncation(min(start, log_end_offset), is_final=start <= log_start_offset)
    own_epoch, own_end = epochs.end_offset_for(leaders_epoch, log_end_offset)
    if own_epoch == UNDEFINED_EPOCH:  # the leader's is newer than all here
        return Truncation(min(leaders_end, log_end_offset), is_final=True)
    offset = min(own_end, leaders_end, log_end_offset)
    return Truncation(offset, is_final=own_epoch == leaders_epoch)
