"""Ids that clients choose have a limit, so that a small request never makes a large append."""

from __future__ import annotations

from typing import Any

import pytest

from grouplab.consumer_lab import ConsumerLab
from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.shard_core import Refused
from tidelog.group_coordinator.shards.shard_log import size_of_records
from tidelog.model import topics
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import MAX_NAME_BYTES, is_too_long
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

LONGEST = "x" * MAX_NAME_BYTES
LIMITED = {
    ApiKey.JOIN_GROUP: ("group_instance_id",),
    ApiKey.SYNC_GROUP: (),
    ApiKey.HEARTBEAT: (),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ("member_id", "instance_id"),
    ApiKey.SHARE_GROUP_HEARTBEAT: ("member_id",),
    ApiKey.STREAMS_GROUP_HEARTBEAT: ("member_id", "instance_id"),
    ApiKey.OFFSET_COMMIT: (),
    ApiKey.TXN_OFFSET_COMMIT: (),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (),
}


def asked(lab: ConsumerLab, api_key: ApiKey, **fields: str) -> Any:
    message = codec.request_class(api_key)(**fields)
    lab.send(api_key, codec.api_spec(api_key).max_version, message)
    return lab.answered[-1][1]


@pytest.mark.parametrize("api_key", LIMITED)
@pytest.mark.parametrize("long", [LONGEST + "x", "é" * (MAX_NAME_BYTES // 2) + "x", "x" * 30_000])
def test_a_request_that_changes_a_group_is_refused_if_an_id_is_too_long(api_key: ApiKey, long: str) -> None:
    lab = ConsumerLab()
    assert asked(lab, api_key, group_id=long) == Refused(ErrorCode.INVALID_GROUP_ID)
    for field in LIMITED[api_key]:
        answer = asked(lab, api_key, group_id="g", **{field: long})
        assert answer == Refused(ErrorCode.INVALID_REQUEST), field
        kept = asked(lab, api_key, group_id="g", **{field: LONGEST})
        assert not isinstance(kept, Refused), field
    assert not isinstance(asked(lab, api_key, group_id=LONGEST), Refused)
    assert long not in lab.core.groups.by_id


@pytest.mark.parametrize("character", ["x", "é", "€", "😀"])
def test_the_limit_counts_bytes(character: str) -> None:
    size_bytes = len(character.encode())
    for count in range(1, MAX_NAME_BYTES + 3):
        assert is_too_long(character * count) == (count * size_bytes > MAX_NAME_BYTES)


def committed(group_id: str, entries: list[tuple[int, int]]) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(index, offset) for index, offset in entries]
    return OffsetCommitRequest(group_id, topics=[OffsetCommitRequestTopic("orders", partitions=partitions)])


def test_an_offset_that_a_commit_names_many_times_is_written_once() -> None:
    """A commit of 104 KB with one partition 3,990 times made an append of 128 MB."""
    lab = ConsumerLab()
    lab.set_topic("orders", 2)
    before = len(lab.log)
    entries = [(number % 2, number) for number in range(3_990)]
    answer = lab.ask(ApiKey.OFFSET_COMMIT, 9, committed(LONGEST, entries))
    assert [partition.error_code for partition in answer.topics[0].partitions] == [0] * 3_990
    assert len(lab.log) == before + 2
    assert size_of_records(lab.log[before:]) < 3 * MAX_NAME_BYTES
    wanted = OffsetFetchRequestGroup(
        LONGEST, topics=[OffsetFetchRequestTopics("orders", partition_indexes=[0, 1])]
    )
    told = lab.ask(ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=[wanted], require_stable=False))
    found = [partition.committed_offset for partition in told.groups[0].topics[0].partitions]
    assert found == [3_988, 3_989], "the last one counts"


def test_an_offset_that_a_transaction_names_many_times_is_written_once() -> None:
    lab = ConsumerLab()
    lab.set_topic("orders", 1)
    before = len(lab.log)
    partitions = [TxnOffsetCommitRequestPartition(0, number) for number in range(100)]
    topic = TxnOffsetCommitRequestTopic("orders", partitions=partitions)
    lab.ask(ApiKey.TXN_OFFSET_COMMIT, 3, TxnOffsetCommitRequest("t", "g", 5, 0, topics=[topic]))
    assert len(lab.log) == before + 1


def test_groups_with_longer_ids_in_the_log_are_loaded_and_can_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab, long = ConsumerLab(), "x" * 30_000
    lab.set_topic("orders", 1)
    with monkeypatch.context() as patch:
        patch.setattr(topics, "MAX_NAME_BYTES", 1 << 20)
        lab.ask(ApiKey.OFFSET_COMMIT, 9, committed(long, [(0, 7)]))
    lab.fail_over()
    assert long in lab.core.groups.by_id
    wanted = OffsetFetchRequestGroup(long, topics=None)
    told = lab.ask(ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=[wanted], require_stable=False))
    assert told.groups[0].topics[0].partitions[0].committed_offset == 7
    deleted = lab.ask(ApiKey.DELETE_GROUPS, 2, codec.request_class(ApiKey.DELETE_GROUPS)(groups_names=[long]))
    assert deleted.results[0].error_code == ErrorCode.NONE
    assert long not in lab.core.groups.by_id


def test_each_handled_request_of_one_group_is_limited_or_known_to_create_nothing() -> None:
    """A new API must be added to the limits, or here."""
    creates_nothing = {
        ApiKey.LEAVE_GROUP,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
    }
    core = GroupCore(BrokerSettings(), str)
    assert set(core._handlers) == set(LIMITED) | creates_nothing
