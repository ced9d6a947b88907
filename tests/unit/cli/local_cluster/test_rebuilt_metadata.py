"""The rebuilding of metadata from the brokers' directories."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.logs import OwnedLog, append_batches
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.cli.local_cluster.recover import (
    UNDER_WAY,
    RebuiltTopic,
    rebuild,
    rebuild_topics,
    survey_directories,
)
from tidelog.cli.tool_command import ToolError
from tidelog.embedded.log_survey import FoundReplica, LogEnd
from tidelog.metadata.entries import (
    CONTROLLER_EPOCH_KEY,
    PartitionStateEntry,
    TopicConfigEntry,
    TopicEntry,
    decode_entry,
)
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Put
from tidelog.model.topics import NOT_CONFIRMED, TopicPartition

ID, OLD_ID, SEED = (uuid.UUID(int=number) for number in (1, 2, 3))
CONFIG = LogConfig()


def replica(
    partition: int,
    epoch: int,
    end: int,
    *,
    latest: int | None = None,
    topic_id: uuid.UUID | None = ID,
    settings: Mapping[str, str] | None = None,
) -> FoundReplica:
    latest_epoch = epoch if latest is None else latest
    return FoundReplica(TopicPartition("t", partition), topic_id, LogEnd(epoch, end), latest_epoch, settings)


def rebuilt(found: Mapping[int, Sequence[FoundReplica]]) -> RebuiltTopic:
    (topic,) = rebuild_topics(found, new_topic_id=SEED, are_defaults_known=True)
    return topic


def test_the_replica_with_the_longest_log_leads() -> None:
    found = {1: [replica(0, 4, 90)], 2: [replica(0, 5, 80)], 3: [replica(0, 5, 70, latest=9)]}
    topic = rebuilt(found)
    assert topic.entry == TopicEntry("t", ID, ((1, 2, 3),))
    (state,) = topic.states
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 10)


def test_settings_come_from_the_replicas_of_the_topic_itself() -> None:
    kept = {"retention.ms": "-1"}
    deleted = replica(0, 9, 999, topic_id=OLD_ID, settings={"retention.ms": "1"})
    topic = rebuilt({1: [replica(0, 1, 7, settings=kept)], 2: [replica(0, 1, 7)], 3: [deleted]})
    assert topic.config == TopicConfigEntry("t", kept)
    assert rebuilt({1: [replica(0, 1, 7, settings={})]}).config is None


def test_nothing_is_deleted_from_topics_whose_settings_are_lost() -> None:
    assert rebuilt({1: [replica(0, 1, 7)]}).config == TopicConfigEntry("t", NOT_CONFIRMED)


def test_replicas_with_the_same_end_are_in_sync_and_lead_in_turn() -> None:
    found = {b: [replica(p, 1, 7) for p in range(3)] for b in (5, 6, 7)}
    topic = rebuilt(found)
    assert topic.entry.assignments == ((5, 6, 7), (6, 7, 5), (7, 5, 6))
    assert [state.leader for state in topic.states] == [5, 6, 7]
    assert all(sorted(state.isr) == [5, 6, 7] for state in topic.states)


def test_a_topic_that_was_recreated_while_a_broker_was_down() -> None:
    found = {
        1: [replica(0, 0, 1)],
        2: [replica(0, 0, 1)],
        3: [replica(0, 9, 999, topic_id=OLD_ID), replica(1, 9, 999, topic_id=OLD_ID)],
    }
    topic = rebuilt(found)
    assert (topic.entry.topic_id, topic.entry.assignments, topic.left_out) == (ID, ((1, 2),), (3,))


def test_a_partition_without_replicas_will_be_empty() -> None:
    topic = rebuilt({1: [replica(2, 3, 4)]})
    assert (topic.missing, topic.entry.assignments) == ((0, 1), ((1,), (1,), (1,)))
    assert [state.leader_epoch for state in topic.states] == [0, 0, 4]


@st.composite
def directories(draw: st.DrawFn) -> dict[int, list[FoundReplica]]:
    found: dict[int, list[FoundReplica]] = {}
    for partition in range(draw(st.integers(1, 4))):
        for broker_id in draw(st.sets(st.integers(1, 5), min_size=1)):
            epoch = draw(st.integers(-1, 4))
            latest = draw(st.integers(epoch, 6))
            end = draw(st.integers(0, 20))
            found.setdefault(broker_id, []).append(replica(partition, epoch, end, latest=latest))
    return found


@given(directories())
def test_no_replica_is_ahead_of_the_leader_or_of_its_epoch(found: dict[int, list[FoundReplica]]) -> None:
    topic = rebuilt(found)
    for state, assignment in zip(topic.states, topic.entry.assignments, strict=True):
        here = {b: r for b, rs in found.items() for r in rs if r.topic_partition.partition == state.partition}
        assert set(assignment) == set(here) or not here
        assert state.leader in state.isr and set(state.isr) <= set(assignment)
        if here:
            assert here[state.leader].end == max(r.end for r in here.values())
            assert state.leader_epoch > max(r.latest_epoch for r in here.values())
            assert {b for b, r in here.items() if r.end == here[state.leader].end} == set(state.isr)


def write_directories(tmp_path: Path) -> list[Path]:
    """Brokers 1 and 2. The log of the second one ends within its last batch."""
    paths = []
    for node_id in (1, 2):
        directory = LogDirectory.open(tmp_path / f"b{node_id}", cluster_id="abc", node_id=node_id)
        log = OwnedLog(directory.open_partition(TopicPartition("t", 0), ID, CONFIG, now_ms=0))
        append_batches(log, 5, leader_epoch=3, producer_id=77, producer_epoch=0)
        log.write_producer_snapshot()
        directory.abandon()
        paths.append(directory.path)
    segment = paths[1] / "t-0" / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-4])
    return paths


def test_a_store_is_filled_from_directories(tmp_path: Path) -> None:
    found = survey_directories(write_directories(tmp_path))
    assert found.cluster_id == "abc"
    assert found.greatest_producer_id == 77

    async def scenario() -> None:
        store = FileMetadataStore.open(tmp_path / "metadata", monotonic_ms=lambda: 0)
        await store.txn([], [Put(CONTROLLER_EPOCH_KEY, b"7")])
        await rebuild(store, found)
        entries = [decode_entry(item.key, item.value) for item in (await store.list_prefix("/")).items]
        (state,) = [entry for entry in entries if isinstance(entry, PartitionStateEntry)]
        assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 4)
        assert await store.get(UNDER_WAY) is None
        with pytest.raises(ToolError, match="not empty"):
            await rebuild(store, found)
        # An interrupted recovery can be repeated.
        await store.txn([], [Put(UNDER_WAY, b"abc")])
        await rebuild(store, found)
        await store.close()

    asyncio.run(scenario())


def test_directories_of_different_clusters_are_refused(tmp_path: Path) -> None:
    paths = write_directories(tmp_path)
    LogDirectory.open(tmp_path / "other", cluster_id="xyz", node_id=3).abandon()
    with pytest.raises(ToolError, match="different clusters"):
        survey_directories([*paths, tmp_path / "other"])
    with pytest.raises(ToolError, match="none of these directories exists"):
        survey_directories([tmp_path / "absent"])
