"""Entries are encoded and decoded without loss, and other values are refused."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.metadata.entries import (
    AclEntry,
    BrokerConfigEntry,
    BrokerEntry,
    ClientQuotaEntry,
    ControllerEntry,
    ControllerEpochEntry,
    Entry,
    FeaturesEntry,
    InvalidEntryError,
    IsrChangeEntry,
    PartitionStateEntry,
    ProducerIdBlockEntry,
    QuotaEntity,
    TopicConfigEntry,
    TopicEntry,
    decode_entry,
    parse_partition_state_key,
    partition_state_key,
    topic_key,
)
from tidelog.model.acl import AclBinding, AclOperation, PatternType, PermissionType, Principal, ResourceType
from tidelog.model.brokers import Endpoint
from tidelog.model.topics import TopicPartition, parse_topic_id, topic_id_text

_NAMES = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}", fullmatch=True)
_IDS = st.integers(0, 2**31 - 1)
_REPLICAS = st.lists(_IDS, min_size=1, max_size=4).map(tuple)
_CONFIGS = st.dictionaries(st.text(min_size=1), st.text(), max_size=3)
_ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        BrokerEntry,
        _IDS,
        st.lists(st.builds(Endpoint, st.text(), st.text(), st.integers(0, 65535), st.text())).map(tuple),
        st.none() | st.text(),
    ),
    st.builds(ControllerEntry, _IDS),
    st.builds(ControllerEpochEntry, _IDS),
    st.builds(
        TopicEntry,
        _NAMES,
        st.uuids(),
        st.lists(_REPLICAS, max_size=12).map(tuple),
        st.dictionaries(_IDS, _REPLICAS, max_size=2),
        st.dictionaries(_IDS, _REPLICAS, max_size=2),
    ),
    st.builds(
        PartitionStateEntry,
        _NAMES,
        _IDS,
        st.integers(-1, 9),
        _IDS,
        _REPLICAS,
        _IDS,
        st.lists(_IDS, max_size=2).map(tuple),
        st.integers(-1, 9),
    ),
    st.builds(TopicConfigEntry, _NAMES, _CONFIGS),
    st.builds(BrokerConfigEntry, st.just("") | _IDS.map(str), _CONFIGS),
    st.builds(
        ClientQuotaEntry,
        st.lists(st.tuples(st.text(), st.none() | st.text()), min_size=1, max_size=2)
        .map(tuple)
        .map(QuotaEntity),
        st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=2),
    ),
    st.builds(
        AclEntry,
        st.builds(
            AclBinding,
            st.sampled_from(ResourceType),
            st.sampled_from(PatternType),
            st.text(),
            st.text().map(Principal),
            st.text(),
            st.sampled_from(AclOperation),
            st.sampled_from(PermissionType),
        ),
    ),
    st.builds(ProducerIdBlockEntry, _IDS, st.integers(0, 2**63 - 1), _IDS),
    st.builds(FeaturesEntry, st.dictionaries(st.text(), st.integers(0, 99), max_size=3)),
    st.builds(
        IsrChangeEntry,
        st.integers(0, 10**10 - 1),
        st.lists(st.builds(TopicPartition, _NAMES, _IDS), max_size=3).map(tuple),
    ),
)


@given(_ENTRIES)
def test_entries_are_encoded_and_decoded_without_loss(entry: Entry) -> None:
    assert decode_entry(entry.key, entry.encode()) == entry


@given(_ENTRIES, st.binary(max_size=40))
def test_invalid_values_are_refused_with_their_key(entry: Entry, value: bytes) -> None:
    try:
        decode_entry(entry.key, value)
    except InvalidEntryError as error:
        assert entry.key in str(error)


@given(_NAMES, _IDS)
def test_partition_keys(topic: str, partition: int) -> None:
    key = partition_state_key(topic, partition)
    assert parse_partition_state_key(key) == (topic, partition)
    assert parse_partition_state_key(topic_key(topic)) is None


@given(st.uuids())
def test_ids_have_kafkas_text_form(topic_id: uuid.UUID) -> None:
    text = topic_id_text(topic_id)
    assert len(text) == 22
    assert parse_topic_id(text) == topic_id


def test_the_json_of_values() -> None:
    """Other programs may read these values, so their form is fixed."""
    state = PartitionStateEntry("t", 3, 1, 5, (1, 2), 7)
    assert state.key == "/brokers/topics/t/partitions/3/state"
    assert json.loads(state.encode()) == {
        "controller_epoch": 7,
        "leader": 1,
        "version": 1,
        "leader_epoch": 5,
        "isr": [1, 2],
    }
    change = IsrChangeEntry(12, (TopicPartition("t", 3),))
    assert change.key == "/isr_change_notification/isr_change_0000000012"
    assert json.loads(change.encode()) == {"version": 1, "partitions": [{"topic": "t", "partition": 3}]}
    assert ControllerEpochEntry(4).encode() == b"4"
    assert BrokerConfigEntry("", {}).key == "/config/brokers/<default>"


@pytest.mark.parametrize(
    "key", ["/tidelog/schema_version", "/cluster/id", "/coordinators/group/ids/1", "/brokers/topics/t/other"]
)
def test_other_keys_are_skipped(key: str) -> None:
    assert decode_entry(key, b"\xff") is None


@given(_ENTRIES)
def test_fields_of_a_later_version_are_skipped(entry: Entry) -> None:
    value = json.loads(entry.encode())
    if isinstance(value, dict):
        value |= {"of_a_later_version": {"a": [1]}}
        assert decode_entry(entry.key, json.dumps(value).encode()) == entry


def test_values_of_the_first_version_are_read() -> None:
    """The values lack the fields that later versions added, because the etcd of a cluster outlives the
    services.
    """
    endpoint = {"listener": "A", "host": "h", "port": 1, "protocol": "PLAINTEXT"}
    written: dict[str, object] = {
        "/brokers/ids/3": {"version": 1, "endpoints": [endpoint], "rack": None, "rpc_address": "h:2"},
        "/controller": {"version": 1, "controller_id": 4},
        "/brokers/topics/t/partitions/0/state": {
            "controller_epoch": 1,
            "leader": 2,
            "version": 1,
            "leader_epoch": 3,
            "isr": [2],
        },
    }
    for key, value in written.items():
        assert decode_entry(key, json.dumps(value).encode()) is not None
