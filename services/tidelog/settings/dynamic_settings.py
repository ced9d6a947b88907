"""Checks the changes that AlterConfigs may make to the settings of running brokers (KIP-226).

As in Kafka, the error code of a refusal is INVALID_REQUEST instead of INVALID_CONFIG (KAFKA-13609).
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.settings.broker_settings import BrokerSettings, known_setting
from tidelog.settings.other_kafka_settings import DYNAMIC_WITHOUT_EFFECT
from tidelog.settings.setting import SettingError, UpdateMode


def validate_broker_overrides(
    overrides: Mapping[str, str | None], *, per_broker: bool, broker: BrokerSettings | None = None
) -> BrokerSettings | None:
    """Raises KafkaError(INVALID_REQUEST) if these cannot be the dynamic settings of one broker, or of all
    brokers.

    With `broker`, they are also checked together with the broker's static settings. Returns the settings that
    the broker then has, None without `broker`.
    """
    given: dict[str, str] = {}
    for name, text in overrides.items():
        if text is None:
            raise _refusal(f"Null value not supported for broker configs: {name}")
        try:
            definition = known_setting(name, text) or DYNAMIC_WITHOUT_EFFECT.get(name)
            if definition is None:
                raise SettingError(name, f"Cannot update these configs dynamically: {name}")
            _check_update_mode(name, definition.update_mode, per_broker)
            definition.parse(text)
        except SettingError as error:
            raise _refusal(str(error)) from None
        given[name] = text
    if broker is None:
        return None
    layers = broker.layers
    try:
        return broker.with_dynamic(
            dynamic_default=layers.dynamic_default if per_broker else given,
            dynamic=given if per_broker else layers.dynamic,
        )
    except SettingError as error:
        raise _refusal(str(error)) from None


def _check_update_mode(name: str, mode: UpdateMode, per_broker: bool) -> None:
    if mode is UpdateMode.READ_ONLY:
        raise SettingError(name, f"Cannot update these configs dynamically: {name}")
    if mode is UpdateMode.PER_BROKER and not per_broker:
        raise SettingError(
            name,
            f"Cannot update these configs at default cluster level, broker id must be specified: {name}",
        )


def _refusal(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
