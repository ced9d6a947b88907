"""Faults that are planted in tidelog on purpose, to show that the simulator finds them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from brokerlab import planted_in_client as planted_in_client
from sim import faults
from tidelog.broker.coordination.attachment import Attachment
from tidelog.broker.coordination.coordination import Coordination
from tidelog.broker.hosting import hosting
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.partition.core import NO_FLUSH_MESSAGES, PartitionCore
from tidelog.broker.partition.events import Effect, ProposeIsr
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.broker.replication import isr
from tidelog.broker.replication.followed_partition import FollowedPartition
from tidelog.broker.replication.leader_fetcher import LeaderFetcher
from tidelog.broker.share.deliveries import StateWrite
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.broker.share.share_partition import SharePartition
from tidelog.group_coordinator.groups.streams.streams_group import StreamsGroup
from tidelog.group_coordinator.groups.streams.streams_member import Holders
from tidelog.group_coordinator.shards.shard import Shard
from tidelog.metadata.store import Compare, CompareOperator, CompareTarget
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import iterate_headers
from tidelog.rpc.coordinator_session import AttachShard, ShardRecords

UNKNOWN_EPOCH: Final = -1
FREQUENT: Final = 60
"""A weight with which a kind of fault happens about as often as all others together."""


@contextlib.contextmanager
def epoch_truncation_off() -> Iterator[None]:
    """Followers truncate their logs to the high watermark, as Kafka did before KIP-101."""
    with patch.object(hosting, "PartitionCore", partial(PartitionCore, truncates_by_epoch=False)):
        yield


@contextlib.contextmanager
def shrink_applied_first() -> Iterator[None]:
    """A leader ignores the replicas that leave the ISR before the store has accepted the change."""
    propose = PartitionCore._propose

    def applied_first(core: PartitionCore, isr: tuple[int, ...], added: Any) -> ProposeIsr:
        proposal = propose(core, isr, added)
        if not added:
            core.in_sync_replicas = isr
        return proposal

    with patch.object(PartitionCore, "_propose", applied_first):
        yield


@contextlib.contextmanager
def _no_flush_due(core: PartitionCore) -> Iterator[None]:
    count, core.flush_messages = core.flush_messages, NO_FLUSH_MESSAGES
    try:
        yield
    finally:
        core.flush_messages = count


@contextlib.contextmanager
def unflushed_counted() -> Iterator[None]:
    """A leader's high watermark passes records that are not on its disk yet (`flush.messages`)."""
    advanced = PartitionCore._advanced_high_watermark

    def advanced_too_far(core: PartitionCore) -> list[Effect]:
        with _no_flush_due(core):
            return advanced(core)

    with patch.object(PartitionCore, "_advanced_high_watermark", advanced_too_far):
        yield


@contextlib.contextmanager
def unflushed_reported() -> Iterator[None]:
    """A follower that starts to fetch reports records that are not on its disk yet (`flush.messages`)."""
    resume = LeaderFetcher.resume

    def resume_at_once(fetcher: LeaderFetcher, followed: FollowedPartition) -> None:
        with _no_flush_due(followed.replica.core):
            resume(fetcher, followed)

    with patch.object(LeaderFetcher, "resume", resume_at_once):
        yield


@contextlib.contextmanager
def isr_add_without_broker_epoch() -> Iterator[None]:
    """A follower joins the ISR, even if an earlier life of it was the one that had caught up.

    Only a death in the middle of an ISR change shows this fault, in one of 150 seeds with the usual weights.
    """

    class Unchecked(Compare):
        @staticmethod
        def create_revision(key: str, revision: int) -> Compare:
            return Compare(key, CompareTarget.CREATE_REVISION, UNKNOWN_EPOCH, CompareOperator.GREATER)

    with (
        patch.object(isr, "Compare", Unchecked),
        patch.object(isr, "_is_alive", lambda *_: True),
        patch.object(faults, "PROPOSAL_WEIGHT", FREQUENT),
    ):
        yield


@contextlib.contextmanager
def fetch_without_epoch() -> Iterator[None]:
    """A leader serves and counts fetches of any leader epoch."""

    def leadership_error(core: PartitionCore, current_leader_epoch: int) -> ErrorCode:
        return ErrorCode.NONE if core.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    with (
        patch.object(PartitionCore, "leadership_error", leadership_error),
        patch.object(PartitionCore, "diverging_epoch", lambda *_: None),
    ):
        yield


@contextlib.contextmanager
def dedupe_off() -> Iterator[None]:
    """A stored batch is stored again when it arrives again."""
    with patch.object(ProducerState, "check", lambda *_: None):
        yield


class _AllAttachments:
    """A PartitionObserver that also serves the attachments of a shard's former owners."""

    def __init__(self, coordination: Coordination, newest: Attachment) -> None:
        self._coordination = coordination
        self._newest = newest

    def high_watermark_advanced(self) -> None:
        for session in tuple(self._coordination._sessions):
            for attachment in tuple(session.attachments.values()):
                if attachment.shard == self._newest.shard and not attachment.problem():
                    attachment.high_watermark_advanced()

    def leadership_changed(self) -> None:
        self._newest.leadership_changed()


@contextlib.contextmanager
def shard_fence_off() -> Iterator[None]:
    """A former owner of a shard continues to append at the log end, although the shard has another owner."""
    append = Replica.append_for_shard

    def append_anywhere(replica: Replica, batches: Any, _epoch: int, _offset: int, now_ms: int) -> int:
        core = replica.core
        return append(replica, batches, core.leader_epoch, core.log_end_offset, now_ms)

    def attach(coordination: Coordination, session: Any, item: AttachShard) -> Attachment:
        replica = coordination._hosted.leader_replica(*item.shard.topic_partition)
        attachment = Attachment(
            coordination._hosted, session, item.attachment, item.shard, item.shard_epoch, replica
        )
        coordination._attached[item.shard] = attachment
        observer = _AllAttachments(coordination, attachment)
        coordination._waiting.observe(item.shard.topic_partition, observer)
        return attachment

    with (
        patch.object(Replica, "append_for_shard", append_anywhere),
        patch.object(Coordination, "attach", attach),
    ):
        yield


@contextlib.contextmanager
def shard_loaded_to_high_watermark() -> Iterator[None]:
    """A new owner does not read records that may not be replicated yet, and appends after them."""
    records_read = Shard.records_read

    def read_below(shard: Shard, item: ShardRecords) -> Iterator[None]:
        records = b"".join(
            item.records[position : position + header.size_bytes]
            for position, header in iterate_headers(item.records)
            if header.last_offset < shard.log.high_watermark
        )
        return records_read(shard, item._replace(records=records))

    with patch.object(Shard, "records_read", read_below):
        yield


@contextlib.contextmanager
def share_confirmed_before_stored() -> Iterator[None]:
    """A leader confirms acknowledgements of a share group although the coordinator did not store them."""

    async def stored(_partition: SharePartition, _write: StateWrite) -> bool:
        return True

    with patch.object(SharePartition, "_stored", stored):
        yield


@contextlib.contextmanager
def share_records_forgotten() -> Iterator[None]:
    """The stored state of a share partition begins after records that were delivered and not acknowledged."""
    next_write = SharePartitionCore.next_write

    def forgetful(core: SharePartitionCore) -> StateWrite | None:
        write = next_write(core)
        return None if write is None else write._replace(start_offset=core.end_offset)

    with patch.object(SharePartitionCore, "next_write", forgetful):
        yield


@contextlib.contextmanager
def streams_tasks_given_early() -> Iterator[None]:
    """The coordinator of a streams group gives a member tasks that another member has not given up yet."""
    holders_for = StreamsGroup.holders_for

    def without_active(group: StreamsGroup, process_id: str) -> Holders:
        return holders_for(group, process_id)._replace(active=lambda name, partition: False)

    with patch.object(StreamsGroup, "holders_for", without_active):
        yield


PLANTED: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "epoch-truncation-off": epoch_truncation_off,
    "shrink-applied-first": shrink_applied_first,
    "isr-add-without-broker-epoch": isr_add_without_broker_epoch,
    "fetch-without-epoch": fetch_without_epoch,
    "dedupe-off": dedupe_off,
    "shard-fence-off": shard_fence_off,
    "shard-loaded-to-high-watermark": shard_loaded_to_high_watermark,
    "client-sequence-reset": planted_in_client.sequence_reset,
    "client-new-numbers-for-repetitions": planted_in_client.new_numbers_for_repetitions,
    "client-commit-before-delivery": planted_in_client.commit_before_delivery,
    "client-commit-of-fetched": planted_in_client.commit_of_fetched,
    "client-share-accept-at-delivery": planted_in_client.accept_at_delivery,
    "share-confirmed-before-stored": share_confirmed_before_stored,
    "share-records-forgotten": share_records_forgotten,
    "streams-tasks-given-early": streams_tasks_given_early,
}

PLANTED_FOR_POWER_LOSS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "unflushed-counted": unflushed_counted,
    "unflushed-reported": unflushed_reported,
}
