"""The copies of settings in a data directory."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.logs import OwnedLog
from tidelog.broker.log.directory_files import (
    BROKER_SETTINGS_FILE,
    TOPIC_SETTINGS_FILE,
    BrokerSettingsCopy,
    keep_broker_settings,
    keep_topic_settings,
    read_broker_settings,
    read_topic_settings,
)
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.log_format.directory import CorruptFileError
from tidelog.model.topics import TopicPartition

ENDLESS = {"retention.ms": "-1"}


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_a_copy_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, overrides: dict[str, str]
) -> None:
    directory = tmp_path_factory.mktemp("t-0")
    assert read_topic_settings(directory) is None
    for _ in range(2):
        keep_topic_settings(directory, overrides)
        assert read_topic_settings(directory) == overrides


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 1, "settings": {"retention.ms": "1"}, "crc": 0}']
)
def test_a_damaged_copy_is_refused_and_written_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TOPIC_SETTINGS_FILE).write_bytes(content)
    with pytest.raises(CorruptFileError, match=TOPIC_SETTINGS_FILE):
        read_topic_settings(tmp_path)
    keep_topic_settings(tmp_path, ENDLESS)
    assert read_topic_settings(tmp_path) == ENDLESS


def test_a_copy_that_cannot_be_replaced_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a recovery would restore settings that no longer hold."""
    keep_topic_settings(tmp_path, {})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    keep_topic_settings(tmp_path, ENDLESS)
    assert read_topic_settings(tmp_path) is None


def test_settings_of_listeners_are_not_copied(tmp_path: Path) -> None:
    """Among them are passwords, and they belong to one broker."""
    own = {"ssl.keystore.password": "secret", "listener.name.external.ssl.key.password": "secret"}
    keep_broker_settings(tmp_path, {"log.retention.ms": "-1"}, {"log.cleaner.threads": "2", **own})
    assert read_broker_settings(tmp_path) == BrokerSettingsCopy(
        {"log.retention.ms": "-1"}, {"log.cleaner.threads": "2"}
    )
    assert b"secret" not in (tmp_path / BROKER_SETTINGS_FILE).read_bytes()


def test_a_partition_is_opened_with_a_copy_of_its_topics_settings(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, cluster_id="c", node_id=1)
    partition = TopicPartition("t", 0)
    OwnedLog(directory.open_partition(partition, uuid.uuid4(), LogConfig(), now_ms=0, topic_settings=ENDLESS))
    assert read_topic_settings(tmp_path / "t-0") == ENDLESS
    directory.partitions[partition].keep_topic_settings({})
    assert read_topic_settings(tmp_path / "t-0") == {}
    directory.abandon()
