"""The rules of decisions, which follow from the settings in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.controller.core.decision import ControllerRules, DelegationTokenRules
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.group_settings import validate_group_overrides
from tidelog.settings.other_kafka_settings import DYNAMIC_WITHOUT_EFFECT
from tidelog.settings.setting import Password, Setting, SettingType
from tidelog.settings.setting_sources import validate_broker_overrides
from tidelog.settings.topic_settings import (
    TOPIC_SETTINGS,
    are_confirmed,
    broker_default,
    validate_overrides,
)

_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_MIN_ISR: Final = "min.insync.replicas"


def rules_from(settings: BrokerSettings, broker_configs: Mapping[str, Mapping[str, str]]) -> ControllerRules:
    """Returns the rules that follow from the settings and from the dynamic broker configs in the store. Only
    the cluster-wide dynamic configs count, because a topic does not belong to one broker.
    """
    dynamic_default = broker_configs.get(DEFAULT_BROKER_ENTITY, {})
    effective = (
        settings.with_dynamic(dynamic_default=dynamic_default, dynamic={}) if dynamic_default else settings
    )
    return ControllerRules(
        settings=BrokerSettingRules(effective),
        num_partitions=settings.num_partitions,
        default_replication_factor=settings.default_replication_factor,
        tidelog_max_partitions=settings.tidelog_max_partitions,
        tidelog_max_partitions_per_broker=settings.tidelog_max_partitions_per_broker,
        delete_topic_enable=settings.delete_topic_enable,
        auto_leader_rebalance_enable=settings.auto_leader_rebalance_enable,
        leader_imbalance_per_broker_percentage=settings.leader_imbalance_per_broker_percentage,
        delegation_tokens=_delegation_token_rules(settings),
    )


def _delegation_token_rules(settings: BrokerSettings) -> DelegationTokenRules | None:
    secret_key = settings.delegation_token_secret_key
    if not isinstance(secret_key, Password):
        return None
    return DelegationTokenRules(
        secret_key.reveal().encode(),
        settings.delegation_token_max_lifetime_ms,
        settings.delegation_token_expiry_time_ms,
    )


class BrokerSettingRules:
    """`SettingRules` according to the definitions in `tidelog.settings`."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._min_in_sync_replicas = broker_default(settings, _MIN_ISR)

    def validate_topic(self, overrides: Mapping[str, str | None]) -> None:
        if overrides:
            validate_overrides(overrides, self._settings)

    def validate_broker(self, entity: str, overrides: Mapping[str, str | None]) -> None:
        """Checks settings of one broker without the others of that broker, such as its listeners. Only the
        broker knows them, and it has checked the change before it passed it on.
        """
        is_of_all = entity == DEFAULT_BROKER_ENTITY
        validate_broker_overrides(
            overrides, per_broker=not is_of_all, broker=self._settings if is_of_all else None
        )

    def validate_group(self, overrides: Mapping[str, str | None]) -> None:
        validate_group_overrides(overrides, self._settings)

    def topic_list_default(self, name: str) -> str | None:
        definition = TOPIC_SETTINGS.get(name)
        if definition is None or definition.type is not SettingType.LIST:
            return None
        return definition.format(broker_default(self._settings, name)) or ""

    def broker_list_default(self, name: str) -> str | None:
        definition: Setting | None = BROKER_SETTINGS.get(name) or DYNAMIC_WITHOUT_EFFECT.get(name)
        if definition is None or definition.type is not SettingType.LIST:
            return None
        if name in DYNAMIC_WITHOUT_EFFECT:
            return definition.format(definition.default) or ""
        return definition.format(self._settings.value_of(name)) or ""

    def is_unclean_election_allowed(self, topic_overrides: Mapping[str, str]) -> bool:
        text = topic_overrides.get(_UNCLEAN_ELECTION)
        if text is None:
            by_default = bool(broker_default(self._settings, _UNCLEAN_ELECTION))
            return by_default and are_confirmed(topic_overrides)
        return bool(TOPIC_SETTINGS[_UNCLEAN_ELECTION].parse(text))

    def min_in_sync_replicas(self, topic_overrides: Mapping[str, str]) -> int:
        text = topic_overrides.get(_MIN_ISR)
        value = self._min_in_sync_replicas if text is None else TOPIC_SETTINGS[_MIN_ISR].parse(text)
        assert isinstance(value, int)  # by the setting's definition
        return value
