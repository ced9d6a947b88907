"""Decides which settings topics and brokers get that are in data directories but not in the metadata. No I/O.

The settings come from the copies in the directories (`broker/log/directory_files.py`). Copies that differ
were written at different times, and nobody knows which is the newest: a broker may have been down when a
setting changed. What is not known deletes nothing (ADR 0067, ADR 0068).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tidelog.broker.coordination.internal_topics import internal_topic
from tidelog.broker.log.directory_files import BrokerSettingsCopy
from tidelog.metadata.entries import BrokerConfigEntry
from tidelog.model.topics import INTERNAL_TOPICS, NOT_CONFIRMED
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.settings.broker_settings import BrokerSettings


class FoundBrokerSettings(NamedTuple):
    """The dynamic settings of brokers. Unless they are all known, nobody knows what topics inherit."""

    entries: tuple[BrokerConfigEntry, ...]
    are_known: bool


def found_broker_settings(copies: Mapping[int, BrokerSettingsCopy | None]) -> FoundBrokerSettings:
    """Returns the settings of the brokers with these ids."""
    known = {broker_id: copy for broker_id, copy in copies.items() if copy is not None}
    of_all = [copy.of_all for copy in known.values()]
    configs = {DEFAULT_BROKER_ENTITY: _most_frequent(of_all)} if of_all else {}
    configs |= {str(broker_id): copy.of_this for broker_id, copy in known.items()}
    entries = tuple(BrokerConfigEntry(entity, settings) for entity, settings in configs.items() if settings)
    return FoundBrokerSettings(entries, len(known) == len(copies) and _are_equal(of_all))


def found_topic_settings(
    topic: str,
    copies: Collection[Mapping[str, str] | None],
    *,
    replicas: int,
    are_defaults_known: bool,
) -> Mapping[str, str]:
    """Returns the overrides of a topic with so many replicas, from the copies of its partitions.

    Internal topics whose settings are not known get those of their creation. Other topics delete nothing
    until their settings are confirmed.
    """
    known = [copy for copy in copies if copy is not None]
    is_internal = topic in INTERNAL_TOPICS
    if known and _are_equal(known) and (are_defaults_known or is_internal):
        return known[0]
    if is_internal:
        configs = internal_topic(topic, BrokerSettings(), replicas).configs
        return {config.name: config.value for config in configs if config.value is not None}
    return {**(_most_frequent(known) if known else {}), **NOT_CONFIRMED}


def _are_equal(copies: Collection[Mapping[str, str]]) -> bool:
    return len(set(map(_items, copies))) <= 1


def _most_frequent(copies: Collection[Mapping[str, str]]) -> Mapping[str, str]:
    counts = Counter(map(_items, copies))
    return dict(max(counts.items(), key=lambda item: (item[1], item[0]))[0])


def _items(copy: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(copy.items()))
