"""The core of a shard of __share_group_state: epochs, snapshots, and equal states after a replay."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.group_coordinator import share_state_core
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    CoordinatorRecord,
    ReplayedRecord,
    ShardRequest,
    TopicImage,
    TrimLog,
    UnknownRecordError,
)
from tidelog.group_coordinator.share_state_core import ShareStateCore
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import SharePartitionKey
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    delete_share_group_state as deleting,
)
from tidelog.wire.messages import (
    initialize_share_group_state as initializing,
)
from tidelog.wire.messages import (
    read_share_group_state as reading,
)
from tidelog.wire.messages import (
    read_share_group_state_summary as summarizing,
)
from tidelog.wire.messages import (
    write_share_group_state as writing,
)

TOPIC = UUID(int=7)
IMAGE = ClusterImage(1, {"t": TopicImage(TOPIC, "t", 2)}, {TOPIC: "t"})
NOW = WallMs(1_700_000_000_000)
COLD_MS = 300_000
CLAIM = b"claim"
PREFIXES: dict[ModuleType, tuple[int, str, str]] = {
    initializing: (ApiKey.INITIALIZE_SHARE_GROUP_STATE, "InitializeShareGroupState", "InitializeState"),
    reading: (ApiKey.READ_SHARE_GROUP_STATE, "ReadShareGroupState", "ReadState"),
    writing: (ApiKey.WRITE_SHARE_GROUP_STATE, "WriteShareGroupState", "WriteState"),
    deleting: (ApiKey.DELETE_SHARE_GROUP_STATE, "DeleteShareGroupState", "DeleteState"),
    summarizing: (
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        "ReadShareGroupStateSummary",
        "ReadStateSummary",
    ),
}


class Shard:
    """A core with the log of its records."""

    def __init__(self, updates_per_snapshot: str = "3") -> None:
        name = "share.coordinator.snapshot.update.records.per.snapshot"
        self.settings = BrokerSettings.parse({name: updates_per_snapshot})
        self.core = ShareStateCore(self.settings)
        self.core.activate(IMAGE, NOW)
        self.log: list[CoordinatorRecord] = []

    def ask(self, api: ModuleType, *args: Any, partition: int = 0, topic: UUID = TOPIC, **fields: Any) -> Any:
        """Returns the result of one share partition of the group g."""
        key, name, topic_name = PREFIXES[api]
        data = getattr(api, f"{topic_name}Data")(topic, [api.PartitionData(partition, *args, **fields)])
        message = getattr(api, f"{name}Request")("g", [data])
        decision = self.core.handle(ShardRequest("to", key, 0, message), NOW)
        self.log += decision.records
        (reply,) = decision.replies
        assert reply.reply_to == "to"
        ((result,),) = [topic_result.partitions for topic_result in reply.message.results]  # type: ignore[attr-defined]
        assert result.partition == partition
        return result

    def tidy(self, after_ms: int = 0) -> int | None:
        """Returns the offset below which the log is trimmed, None if it is not."""
        decision = self.core.timer_fired("tidying", WallMs(NOW + after_ms))
        assert decision.timers
        self.log += decision.records
        for effect in decision.effects:
            assert isinstance(effect, TrimLog)
            self.log.append(CoordinatorRecord(CLAIM, b""))
            return effect.offset
        return None

    def replayed(self) -> ShareStateCore:
        """Returns a new core that has read the log."""
        core = ShareStateCore(self.settings)
        for offset, record in enumerate(self.log):
            if record.key == CLAIM:
                continue
            core.replay(ReplayedRecord(record.key, record.value, NOW, None), offset)
        return core


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_a_state_is_initialized_written_and_read(shard: Shard) -> None:
    assert shard.ask(initializing, 1, 10).error_code == ErrorCode.NONE
    read = shard.ask(reading, 5)
    assert (read.state_epoch, read.start_offset, read.state_batches) == (1, 10, [])
    batches = [writing.StateBatch(10, 14, 2, 1), writing.StateBatch(15, 19, 0, 1, 77)]
    assert shard.ask(writing, 1, 5, 10, 5, batches).error_code == ErrorCode.NONE
    assert shard.ask(writing, 1, 5, 15, 0, [], paused_until=88).error_code == ErrorCode.NONE
    read = shard.ask(reading, 6)
    assert read.paused_until == 88
    assert shard.replayed().states == shard.core.states
    assert read.start_offset == 15
    assert read.state_batches == [reading.StateBatch(15, 19, 0, 1, 77)]
    summary = shard.ask(summarizing, 5)
    assert (summary.start_offset, summary.leader_epoch, summary.delivery_complete_count) == (15, 6, 0)


def test_an_uninitialized_share_partition_can_neither_be_read_nor_written(shard: Shard) -> None:
    assert shard.ask(reading, 0).error_code == ErrorCode.INVALID_REQUEST
    assert shard.ask(writing, 0, 0, 0).error_code == ErrorCode.INVALID_REQUEST
    summary = shard.ask(summarizing, 0)
    assert (summary.error_code, summary.start_offset) == (ErrorCode.NONE, -1)
    assert not shard.log


def test_the_first_read_of_a_new_leader_fences_the_old_one(shard: Shard) -> None:
    shard.ask(initializing, 0, 0)
    assert shard.ask(reading, 4).error_code == ErrorCode.NONE
    assert shard.ask(reading, 3).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert shard.ask(writing, 0, 3, 0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert shard.ask(writing, 0, 4, 0).error_code == ErrorCode.NONE
    assert shard.replayed().states == shard.core.states


def test_a_reset_fences_writes_of_the_older_state_epoch(shard: Shard) -> None:
    shard.ask(initializing, 1, 0)
    shard.ask(writing, 1, 0, 0, 0, [writing.StateBatch(0, 5, 2, 1)])
    assert shard.ask(initializing, 2, 3).error_code == ErrorCode.NONE
    assert shard.ask(writing, 1, 0, 6).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert shard.ask(initializing, 1, 0).error_code == ErrorCode.FENCED_STATE_EPOCH
    read = shard.ask(reading, 0)
    assert (read.state_epoch, read.start_offset, read.state_batches) == (2, 3, [])


def test_a_snapshot_follows_enough_updates(shard: Shard) -> None:
    shard.ask(initializing, 0, 0)
    for offset in range(8):
        shard.ask(writing, 0, 0, -1, 0, [writing.StateBatch(offset, offset, 2, 1)])
    kinds = [record.key[:2] for record in shard.log]
    assert kinds == [b"\0\0", *[b"\0\1"] * 3, b"\0\0", *[b"\0\1"] * 3, b"\0\0"]
    assert shard.core.states[SharePartitionKey("g", TOPIC, 0)].snapshot_epoch == 2


@pytest.mark.parametrize(("topic", "partition"), [(TOPIC, 2), (UUID(int=8), 0)])
def test_an_unknown_partition_is_refused_but_can_be_deleted(
    shard: Shard, topic: UUID, partition: int
) -> None:
    where: dict[str, Any] = {"topic": topic, "partition": partition}
    assert shard.ask(initializing, 0, 0, **where).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shard.ask(summarizing, 0, **where).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shard.ask(deleting, **where).error_code == ErrorCode.NONE
    assert not shard.log


def test_a_deleted_state_is_gone_after_a_replay(shard: Shard) -> None:
    shard.ask(initializing, 0, 0)
    shard.ask(writing, 0, 0, 3)
    assert shard.ask(deleting).error_code == ErrorCode.NONE
    assert shard.core.states == {} == shard.replayed().states
    assert shard.ask(reading, 0).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("topic", "partition"), [(UUID(int=0), 0), (TOPIC, -1)])
def test_a_malformed_request_is_refused(shard: Shard, topic: UUID, partition: int) -> None:
    for api, args in (
        (initializing, (0, 0)),
        (reading, (0,)),
        (writing, ()),
        (deleting, ()),
        (summarizing, ()),
    ):
        result = shard.ask(api, *args, topic=topic, partition=partition)
        assert result.error_code == ErrorCode.INVALID_REQUEST


def test_an_update_without_a_snapshot_cannot_be_read(shard: Shard) -> None:
    shard.ask(initializing, 0, 0)
    shard.ask(writing, 0, 0, 3)
    update = shard.log[1]
    with pytest.raises(UnknownRecordError):
        ShareStateCore(shard.settings).replay(ReplayedRecord(update.key, update.value, NOW, None), 0)


def test_records_that_no_state_needs_are_deleted(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_state_core, "MIN_TRIM_RECORDS", 5)
    shard.core.log_ends_at(0)
    shard.ask(initializing, 0, 0)
    shard.ask(initializing, 0, 0, partition=1)
    assert shard.tidy() is None  # the log is short
    for offset in range(8):
        shard.ask(writing, 0, 0, -1, 0, [writing.StateBatch(offset, offset, 2, 1)])
    assert shard.tidy() is None  # the other share partition needs its first snapshot
    trim = shard.tidy(COLD_MS)
    assert trim == 10  # both have snapshots from there on
    states = dict(shard.core.states)
    rest = ShareStateCore(shard.settings)
    for offset, record in enumerate(shard.log):
        if record.key != CLAIM and offset >= trim:
            rest.replay(ReplayedRecord(record.key, record.value, NOW, None), offset)
    assert rest.states == states
    shard.ask(deleting)
    shard.ask(deleting, partition=1)
    assert shard.tidy() == len(shard.log) - 1  # the claim is the last record
    assert shard.tidy() is None


def test_states_of_deleted_topics_are_deleted(shard: Shard) -> None:
    shard.ask(initializing, 0, 0)
    shard.core.image_changed(ClusterImage(2, {}, {}), NOW)
    shard.tidy()
    assert shard.core.states == {} == shard.replayed().states


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just(initializing), st.integers(0, 3), st.integers(-1, 20)),
        st.tuples(st.just(reading), st.integers(-1, 4)),
        st.tuples(
            st.just(writing),
            st.integers(-1, 3),
            st.integers(-1, 4),
            st.integers(-1, 20),
            st.integers(-1, 9),
            st.lists(
                st.builds(
                    lambda first, length, *state: writing.StateBatch(first, first + length, *state),
                    st.integers(0, 20),
                    st.integers(0, 9),
                    st.sampled_from((0, 2, 4)),
                    st.integers(1, 5),
                    st.sampled_from((0, 0, 50)),
                ),
                max_size=4,
            ),
            st.sampled_from((0, 70)),
        ),
        st.tuples(st.just(deleting)),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from(("0", "1", "3", "500")))
def test_a_replay_of_the_log_gives_the_same_states(steps: list[tuple[Any, ...]], per_snapshot: str) -> None:
    shard = Shard(per_snapshot)
    for number, (api, *args) in enumerate(steps):
        shard.ask(api, *args, partition=number % 2)
        assert shard.replayed().states == shard.core.states
