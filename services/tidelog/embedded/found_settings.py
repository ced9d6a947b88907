"""Finds the settings of topics that are in data directories but not in the metadata."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.broker.coordination.internal_topics import internal_topic
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.topic_settings import NOT_CONFIRMED


def lost_settings(topic: str, replicas: int) -> Mapping[str, str]:
    """Returns the overrides of a topic whose settings are lost, with so many replicas.

    The internal topics are created with known settings. All others delete nothing until their settings are
    confirmed (ADR 0067).
    """
    if topic not in INTERNAL_TOPICS:
        return NOT_CONFIRMED
    configs = internal_topic(topic, BrokerSettings(), replicas).configs
    return {config.name: config.value for config in configs if config.value is not None}
