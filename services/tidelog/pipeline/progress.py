"""Commits the progress of an archive to a consumer group, so that lag tools show Spark like any consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.client.cluster import Cluster
from tidelog.client.leader_epochs import EpochStart, OffsetRange, epoch_ends, epochs_of_ranges
from tidelog.client.offset_commits import CommittedOffset, commit_offsets
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.ledger.entry import CommitEntry

UNKNOWN_EPOCH: Final = -1


def leader_epochs(
    cluster: Cluster, ranges: Mapping[TopicPartition, OffsetRange]
) -> dict[TopicPartition, tuple[EpochStart, ...]]:
    """Returns the leader epochs of each range. Raises KafkaError, ClientError."""
    return epochs_of_ranges(cluster, ranges)


def next_offsets(entries: Sequence[CommitEntry]) -> dict[TopicPartition, CommittedOffset]:
    """Returns each partition's next offset after these commits, with the epoch of the last archived "
    "record."""
    found: dict[TopicPartition, CommittedOffset] = {}
    for entry in entries:
        for each in entry.ranges:
            place = TopicPartition(each.topic, each.partition)
            if place in found and found[place].offset >= each.end:
                continue
            epoch = each.leader_epochs[-1][0] if each.leader_epochs else UNKNOWN_EPOCH
            found[place] = CommittedOffset(each.end, epoch)
    return found


def commit_progress(cluster: Cluster, group: str, entries: Sequence[CommitEntry]) -> None:
    """Commits the offsets to the group, always after the table's commit. Raises KafkaError, ClientError."""
    offsets = next_offsets(entries)
    if offsets:
        commit_offsets(cluster, group, offsets)


def diverged(
    cluster: Cluster, offsets: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, int]:
    """Returns the partitions whose log was truncated and rewritten, with the offset at which the epoch of the
    last archived record ends now. That offset is before the record. Raises KafkaError, ClientError.
    """
    epochs = {
        place: each.leader_epoch for place, each in offsets.items() if each.leader_epoch != UNKNOWN_EPOCH
    }
    return {
        place: end.end_offset
        for place, end in (epoch_ends(cluster, epochs) if epochs else {}).items()
        if end.epoch != UNKNOWN_EPOCH and end.end_offset < offsets[place].offset
    }
