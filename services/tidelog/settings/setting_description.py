"""Describes settings for DescribeConfigs: the value of a setting, its source, and the synonyms that could
also set it.

The rules are those of Kafka's `ConfigHelper`: the source is that of the first synonym that has a value, in
the order topic or group, this broker, all brokers, static, default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.group_settings import GROUP_SETTINGS, broker_synonym, group_settings
from tidelog.settings.other_kafka_settings import DYNAMIC_WITHOUT_EFFECT, no_effect_remark
from tidelog.settings.setting import Setting, SettingType, UpdateMode, Value
from tidelog.settings.topic_settings import BROKER_SYNONYMS, TOPIC_SETTINGS, broker_default


class ConfigSource(IntEnum):
    """The numbers of ConfigSource in DescribeConfigsResponse."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class SettingSynonym(NamedTuple):
    """A value of a setting or synonym from one source. The first synonym of a description is in effect."""

    name: str
    value: str | None
    source: ConfigSource


class SettingDescription(NamedTuple):
    """One entry of a DescribeConfigs response. `value` is None for secrets and for unset settings."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    type: SettingType
    doc: str
    synonyms: tuple[SettingSynonym, ...]


_SYNONYMS_OF_BROKER_SETTING = {
    name: names for names in BROKER_SYNONYMS.values() if len(names) > 1 for name in names
}
"""The broker settings for the same value, by each of their names. The first one that is set takes effect."""


def describe_broker(broker: BrokerSettings, names: Collection[str] | None = None) -> list[SettingDescription]:
    """Describes every setting of the broker, or those in `names` that exist."""
    descriptions = []
    for name, definition in _selected(BROKER_SETTINGS, names):
        if definition.is_internal and not _is_given(broker, name):
            continue
        group = _SYNONYMS_OF_BROKER_SETTING.get(name, (name,))
        synonyms = _from(name, _broker_synonyms(broker, group))
        is_read_only = definition.update_mode is UpdateMode.READ_ONLY
        value = broker.value_of(name)
        descriptions.append(_description(definition, value, synonyms, is_read_only=is_read_only))
    return descriptions + [
        _without_effect(broker, name)
        for name in sorted(broker.without_effect)
        if names is None or name in names
    ]


def _without_effect(broker: BrokerSettings, name: str) -> SettingDescription:
    """Describes a setting of Kafka that has no effect. It is described only if it is set."""
    layers = broker.layers
    synonyms = tuple(
        SettingSynonym(name, texts[name], source)
        for source, texts in (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, layers.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, layers.dynamic_default),
            (ConfigSource.STATIC_BROKER_CONFIG, layers.static),
        )
        if name in texts
    )
    definition = DYNAMIC_WITHOUT_EFFECT.get(name)
    return SettingDescription(
        name=name,
        value=synonyms[0].value,
        source=synonyms[0].source,
        is_read_only=definition is None,
        is_sensitive=False,
        type=SettingType.STRING if definition is None else definition.type,
        doc=no_effect_remark(name),
        synonyms=synonyms,
    )


def describe_cluster_default(
    broker: BrokerSettings, names: Collection[str] | None = None
) -> list[SettingDescription]:
    """Describes only the settings that AlterConfigs has set for all brokers (the broker resource without a
    name).
    """
    descriptions = []
    for name, definition in _selected({**BROKER_SETTINGS, **DYNAMIC_WITHOUT_EFFECT}, names):
        text = broker.layers.dynamic_default.get(name)
        if text is not None:
            if name in DYNAMIC_WITHOUT_EFFECT:
                definition = replace(definition, doc=no_effect_remark(name))
            synonym = SettingSynonym(
                name, _shown(definition, text), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            )
            value = definition.parse(text)
            descriptions.append(_description(definition, value, [synonym], is_read_only=False))
    return descriptions


def describe_topic(
    broker: BrokerSettings, overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[SettingDescription]:
    """Describes every setting of a topic with these `overrides`, or those in `names` that exist."""
    descriptions = []
    for name, definition in _selected(TOPIC_SETTINGS, names):
        text = overrides.get(name)
        if text is None and definition.is_internal:
            continue
        broker_names = BROKER_SYNONYMS.get(name, ())
        synonyms = _from(broker_names[0], _broker_synonyms(broker, broker_names)) if broker_names else []
        if text is None:
            value = broker_default(broker, name)
        else:
            value = definition.parse(text)
            own = SettingSynonym(name, _shown(definition, text), ConfigSource.DYNAMIC_TOPIC_CONFIG)
            synonyms.insert(0, own)
        descriptions.append(_description(definition, value, synonyms, is_read_only=False))
    return descriptions


def describe_group(
    broker: BrokerSettings, overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[SettingDescription]:
    """Describes every setting of a group with these `overrides`, or those in `names` that exist. The values
    are those in effect.
    """
    effective = group_settings(broker, overrides)
    descriptions = []
    for name, definition in _selected(GROUP_SETTINGS, names):
        synonym = broker_synonym(name)
        if synonym is None:
            default = definition.format(definition.default)
            synonyms = [SettingSynonym(name, default, ConfigSource.DEFAULT_CONFIG)]
        else:
            synonyms = _from(synonym, _broker_synonyms(broker, (synonym,)))
        text = overrides.get(name)
        if text is not None:
            synonyms.insert(0, SettingSynonym(name, text, ConfigSource.DYNAMIC_GROUP_CONFIG))
        value = getattr(effective, definition.attribute)
        descriptions.append(_description(definition, value, synonyms, is_read_only=False))
    return descriptions


def _selected(
    definitions: Mapping[str, Setting], names: Collection[str] | None
) -> Iterable[tuple[str, Setting]]:
    if names is None:
        return definitions.items()
    return [(name, definitions[name]) for name in dict.fromkeys(names) if name in definitions]


def _description(
    definition: Setting, value: Value, synonyms: list[SettingSynonym], *, is_read_only: bool
) -> SettingDescription:
    return SettingDescription(
        name=definition.name,
        value=None if definition.is_sensitive else definition.format(value),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_read_only=is_read_only,
        is_sensitive=definition.is_sensitive,
        type=definition.type,
        doc=definition.doc,
        synonyms=tuple(synonyms),
    )


def _broker_synonyms(broker: BrokerSettings, names: tuple[str, ...]) -> list[SettingSynonym]:
    layers = broker.layers
    synonyms = [
        SettingSynonym(name, _shown(BROKER_SETTINGS[name], texts[name]), source)
        for source, texts in (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, layers.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, layers.dynamic_default),
            (ConfigSource.STATIC_BROKER_CONFIG, layers.static),
        )
        for name in names
        if name in texts
    ]
    for name in names:
        definition = BROKER_SETTINGS[name]
        if definition.default is not None:
            default = None if definition.is_sensitive else definition.format(definition.default)
            synonyms.append(SettingSynonym(name, default, ConfigSource.DEFAULT_CONFIG))
    return synonyms


def _from(name: str, synonyms: list[SettingSynonym]) -> list[SettingSynonym]:
    """Returns the synonyms from the first entry of `name` on.

    Therefore a retention.ms that the broker takes only from log.retention.hours is shown without synonyms and
    as a default, as in Kafka.
    """
    for index, synonym in enumerate(synonyms):
        if synonym.name == name:
            return synonyms[index:]
    return []


def _is_given(broker: BrokerSettings, name: str) -> bool:
    layers = broker.layers
    return any(name in texts for texts in (layers.static, layers.dynamic_default, layers.dynamic))


def _shown(definition: Setting, text: str) -> str | None:
    return None if definition.is_sensitive else text
