"""The settings of topics and brokers that are in data directories but not in the metadata."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tidelog.broker.log.directory_files import BrokerSettingsCopy
from tidelog.embedded.found_settings import FoundBrokerSettings, found_broker_settings, found_topic_settings
from tidelog.metadata.entries import BrokerConfigEntry
from tidelog.model.topics import NOT_CONFIRMED
from tidelog.settings.topic_settings import are_confirmed

ENDLESS, SHORT = {"retention.ms": "-1"}, {"retention.ms": "1"}
NOTHING_SET = BrokerSettingsCopy({}, {})


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
