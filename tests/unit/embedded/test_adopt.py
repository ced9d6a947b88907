"""Topics, and settings of topics and brokers, that are in data directories but not in the metadata."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from tidelog.broker.log.directory_files import BrokerSettingsCopy, write_topic_id
from tidelog.embedded.adopt import PRODUCER_IDS_SKIPPED, adopt_topics
from tidelog.embedded.log_survey import FoundBrokerSettings, found_broker_settings, found_topic_settings
from tidelog.log_format.directory import CorruptFileError
from tidelog.metadata.entries import (
    BrokerConfigEntry,
    Entry,
    PartitionStateEntry,
    ProducerIdBlockEntry,
    TopicConfigEntry,
    TopicEntry,
    decode_entry,
)
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.model.topics import NOT_CONFIRMED
from tidelog.settings.topic_settings import are_confirmed

NODE_ID = 4
ENDLESS, SHORT = {"retention.ms": "-1"}, {"retention.ms": "1"}
NOTHING_SET = BrokerSettingsCopy({}, {})


def adopt(tmp_path: Path, times: int = 1) -> list[Entry]:
    """Returns the contents of the store after the adoption."""

    async def run() -> list[Entry]:
        store = FileMetadataStore.open(tmp_path / "metadata", monotonic_ms=lambda: 0)
        try:
            for _ in range(times):
                await adopt_topics(store, tmp_path / "data", NODE_ID)
            return [decode_entry(item.key, item.value) for item in (await store.list_prefix("")).items]
        finally:
            await store.close()

    return asyncio.run(run())


def partition(tmp_path: Path, name: str, topic_id: uuid.UUID | None, epochs: str = "") -> Path:
    directory = tmp_path / "data" / name
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").touch()
    if topic_id is not None:
        write_topic_id(directory, topic_id)
    if epochs:
        (directory / "leader-epoch-checkpoint").write_text(epochs)
    return directory


def test_names_ids_and_epochs_are_taken_over(tmp_path: Path) -> None:
    topic_id = uuid.uuid4()
    partition(tmp_path, "a.b-c-0", topic_id, "0\n2\n0 0\n7 5\n")
    partition(tmp_path, "a.b-c-2", topic_id)
    entries = adopt(tmp_path, times=2)
    topics = [entry for entry in entries if isinstance(entry, TopicEntry)]
    assert topics == [TopicEntry("a.b-c", topic_id, ((NODE_ID,),) * 3)]
    states = [entry for entry in entries if isinstance(entry, PartitionStateEntry)]
    assert [(state.partition, state.leader_epoch, state.leader) for state in states] == [
        (0, 8, NODE_ID),
        (1, 0, NODE_ID),
        (2, 0, NODE_ID),
    ]


def test_internal_topics_get_the_settings_of_their_creation(tmp_path: Path) -> None:
    """The records of share states refer to each other, so compaction would damage them."""
    for name in ("__consumer_offsets", "__share_group_state", "__transaction_state"):
        partition(tmp_path, f"{name}-0", uuid.uuid4())
    configs = {entry.topic: entry.configs for entry in adopt(tmp_path) if isinstance(entry, TopicConfigEntry)}
    assert configs["__consumer_offsets"]["cleanup.policy"] == "compact"
    assert configs["__transaction_state"]["cleanup.policy"] == "compact"
    shares = configs["__share_group_state"]
    assert (shares["cleanup.policy"], shares["retention.ms"], shares["min.insync.replicas"]) == (
        "delete",
        "-1",
        "1",
    )


def test_nothing_is_deleted_from_topics_whose_settings_are_lost(tmp_path: Path) -> None:
    partition(tmp_path, "t-0", uuid.uuid4())
    configs = [entry for entry in adopt(tmp_path) if isinstance(entry, TopicConfigEntry)]
    assert configs == [TopicConfigEntry("t", NOT_CONFIRMED)]


def test_other_directories_are_ignored(tmp_path: Path) -> None:
    """Otherwise the date of a backup would count as partition 20,240,101."""
    (tmp_path / "data" / "backup-20240101").mkdir(parents=True)
    (tmp_path / "data" / "__cluster_metadata-0").mkdir()
    (tmp_path / "data" / "t-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    (tmp_path / "data" / "file-0").touch()
    assert not [entry for entry in adopt(tmp_path) if isinstance(entry, TopicEntry)]


def test_partitions_of_two_topics_of_one_name_are_refused(tmp_path: Path) -> None:
    for index in range(2):
        partition(tmp_path, f"t-{index}", uuid.uuid4())
    with pytest.raises(CorruptFileError, match="different topic ids"):
        adopt(tmp_path)


def test_epochs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    partition(tmp_path, "t-0", None, "nonsense")
    with pytest.raises(CorruptFileError, match="leader-epoch-checkpoint"):
        adopt(tmp_path)


def test_a_large_topic_takes_more_than_one_transaction(tmp_path: Path) -> None:
    topic_id = uuid.uuid4()
    partition(tmp_path, "t-299", topic_id)
    entries = adopt(tmp_path)
    assert sum(isinstance(entry, PartitionStateEntry) for entry in entries) == 300


def test_ids_are_skipped_also_where_no_snapshot_can_be_read(tmp_path: Path) -> None:
    directory = partition(tmp_path, "t-0", None)
    (directory / "00000000000000000005.snapshot").write_bytes(b"torn")
    blocks = [entry for entry in adopt(tmp_path) if isinstance(entry, ProducerIdBlockEntry)]
    assert blocks == [ProducerIdBlockEntry(-1, 0, PRODUCER_IDS_SKIPPED)]


def found(
    *copies: Mapping[str, str] | None, topic: str = "t", are_defaults_known: bool = True
) -> Mapping[str, str]:
    return found_topic_settings(topic, copies, replicas=3, are_defaults_known=are_defaults_known)


@pytest.mark.parametrize("settings", [ENDLESS, {}, {**ENDLESS, **NOT_CONFIRMED}])
def test_copies_that_agree_are_restored(settings: Mapping[str, str]) -> None:
    assert found(settings, None, settings) == settings


def test_without_a_copy_nothing_is_known() -> None:
    assert found() == found(None, None) == NOT_CONFIRMED


def test_copies_that_differ_are_not_trusted() -> None:
    """One of the brokers was down when the setting changed."""
    assert found(ENDLESS, SHORT, ENDLESS) == {**ENDLESS, **NOT_CONFIRMED}
    assert not are_confirmed(found(SHORT, {}))


def test_what_a_topic_inherits_must_be_known_too() -> None:
    assert found({}, are_defaults_known=False) == NOT_CONFIRMED
    assert found(ENDLESS, are_defaults_known=False) == {**ENDLESS, **NOT_CONFIRMED}


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_internal_topics_are_always_known(topic: str) -> None:
    created = found(topic=topic)
    assert created["cleanup.policy"] == ("delete" if topic == "__share_group_state" else "compact")
    assert created.get("min.insync.replicas", "2") == "2"
    assert found(SHORT, ENDLESS, topic=topic) == created
    changed = {**created, "segment.bytes": "1048576"}
    assert found(changed, topic=topic, are_defaults_known=False) == changed


def test_dynamic_settings_of_brokers_are_restored() -> None:
    default = {"log.retention.ms": "-1"}
    copies = {
        1: BrokerSettingsCopy(default, {}),
        2: BrokerSettingsCopy(default, {"log.cleaner.threads": "2"}),
    }
    entries = (BrokerConfigEntry("", default), BrokerConfigEntry("2", {"log.cleaner.threads": "2"}))
    assert found_broker_settings(copies) == FoundBrokerSettings(entries, are_known=True)
    assert found_broker_settings({1: NOTHING_SET}) == FoundBrokerSettings((), are_known=True)


@pytest.mark.parametrize("other", [None, BrokerSettingsCopy({"log.retention.ms": "-1"}, {})])
def test_defaults_that_a_broker_lacks_or_has_differently_are_not_known(
    other: BrokerSettingsCopy | None,
) -> None:
    assert not found_broker_settings({1: NOTHING_SET, 2: other, 3: NOTHING_SET}).are_known
