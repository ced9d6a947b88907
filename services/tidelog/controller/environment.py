"""The parts of a decision's context that come from outside the core: randomness and settings."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from typing import Final

from tidelog.controller.core.decision import ControllerRules
from tidelog.metadata.entries import encode_uuid
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.dynamic_settings import validate_broker_overrides
from tidelog.settings.setting import Setting, SettingType
from tidelog.settings.topic_settings import TOPIC_SETTINGS, broker_default, validate_overrides


class RandomChance:
    """From any `random.Random`: the system's in a process, a seeded one in a simulation."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def topic_id(self) -> uuid.UUID:
        """Never one whose text begins with a dash: command lines would take it for an option."""
        while True:
            topic_id = uuid.UUID(int=self._source.getrandbits(128), version=4)
            if not encode_uuid(topic_id).startswith("-"):
                return topic_id

    def below(self, limit: int) -> int:
        return self._source.randrange(limit)


_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_MIN_ISR: Final = "min.insync.replicas"


def rules_from(settings: BrokerSettings, broker_configs: Mapping[str, Mapping[str, str]]) -> ControllerRules:
    """`broker_configs` as the store has them; only the cluster-wide ones count here, for topics know no
    broker.
    """
    dynamic_default = broker_configs.get(DEFAULT_BROKER_ENTITY, {})
    effective = (
        settings.with_dynamic(dynamic_default=dynamic_default, dynamic={}) if dynamic_default else settings
    )
    return ControllerRules(
        settings=BrokerSettingRules(effective),
        num_partitions=settings.num_partitions,
        default_replication_factor=settings.default_replication_factor,
        delete_topic_enable=settings.delete_topic_enable,
        auto_leader_rebalance_enable=settings.auto_leader_rebalance_enable,
        leader_imbalance_per_broker_percentage=settings.leader_imbalance_per_broker_percentage,
    )


class BrokerSettingRules:
    """`SettingRules` over the definitions of `tidelog.runtime`."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._min_in_sync_replicas = broker_default(settings, _MIN_ISR)

    def validate_topic(self, overrides: Mapping[str, str | None]) -> None:
        if overrides:
            validate_overrides(overrides, self._settings)

    def validate_broker(self, entity: str, overrides: Mapping[str, str | None]) -> None:
        validate_broker_overrides(
            overrides, per_broker=entity != DEFAULT_BROKER_ENTITY, broker=self._settings
        )

    def topic_list_default(self, name: str) -> str | None:
        definition = TOPIC_SETTINGS.get(name)
        if definition is None or definition.type is not SettingType.LIST:
            return None
        return definition.format(broker_default(self._settings, name)) or ""

    def broker_list_default(self, name: str) -> str | None:
        definition: Setting | None = BROKER_SETTINGS.get(name)
        if definition is None or definition.type is not SettingType.LIST:
            return None
        return definition.format(self._settings.value_of(name)) or ""

    def is_unclean_election_allowed(self, topic_overrides: Mapping[str, str]) -> bool:
        text = topic_overrides.get(_UNCLEAN_ELECTION)
        if text is None:
            return bool(broker_default(self._settings, _UNCLEAN_ELECTION))
        return bool(TOPIC_SETTINGS[_UNCLEAN_ELECTION].parse(text))

    def min_in_sync_replicas(self, topic_overrides: Mapping[str, str]) -> int:
        text = topic_overrides.get(_MIN_ISR)
        value = self._min_in_sync_replicas if text is None else TOPIC_SETTINGS[_MIN_ISR].parse(text)
        assert isinstance(value, int)  # as the setting is defined
        return value
