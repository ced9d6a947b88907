"""Decides where a follower truncates its log so that it agrees with the leader's.

A log agrees with the leader's up to the lower of the offsets at which the newest epoch in both logs ends. The
high watermark cannot be used, because it may be below what was acknowledged (KIP-101, KIP-279, KIP-320).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tidelog.log_format.leader_epochs import UNDEFINED_EPOCH, LeaderEpochs


class FetchState(Enum):
    """While TRUNCATING, the log may have batches that the leader's log has not, so nothing is appended."""

    NONE = "none"
    TRUNCATING = "truncating"
    FETCHING = "fetching"


class Truncation(NamedTuple):
    """The offset at which to truncate. If not `is_final`, the follower then asks about its newest epoch
    again.
    """

    offset: int
    is_final: bool


def truncation_for(
    epochs: LeaderEpochs, log_end_offset: int, log_start_offset: int, leaders_epoch: int, leaders_end: int
) -> Truncation:
    """Returns the truncation that follows from the leader's answer.

    The answer states that `leaders_epoch`, the largest epoch not above the requested one, ends at
    `leaders_end` (Kafka's `AbstractFetcherThread.getOffsetTruncationState`).
    """
    if leaders_epoch == UNDEFINED_EPOCH:
        # The leader has no epoch up to the requested one: try the next lower epoch.
        latest = epochs.latest
        start = log_start_offset if latest is None else max(latest.start_offset, log_start_offset)
        return Truncation(min(start, log_end_offset), is_final=start <= log_start_offset)
    own_epoch, own_end = epochs.end_offset_for(leaders_epoch, log_end_offset)
    if own_epoch == UNDEFINED_EPOCH:  # The leader's epoch is newer than all epochs here.
        return Truncation(min(leaders_end, log_end_offset), is_final=True)
    offset = min(own_end, leaders_end, log_end_offset)
    return Truncation(offset, is_final=own_epoch == leaders_epoch)
