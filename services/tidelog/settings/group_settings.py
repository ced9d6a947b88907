"""All settings of a group, under Kafka's names. A setting that the group does not override comes from the
broker's settings.

The definitions are those of Kafka's `GroupConfig`, and the bounds those of its `GroupConfig.validate`. Kafka
checks the prefix of a dead letter topic when the first record is copied; here it is also checked when the
topic is set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tidelog.kernel.instants import DAY_MS
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import topic_name_problem
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.other_kafka_settings import nearest_name
from tidelog.settings.setting import (
    LONG_MAX,
    MEDIUM,
    Setting,
    SettingError,
    Value,
    at_least,
    between,
    boolean,
    default_from,
    definitions,
    double,
    integer,
    long,
    one_of,
    settings_of,
    string,
)

BY_DURATION: Final = "by_duration:"
# ISO 8601 as Java's `Duration.parse` takes it, without a sign: only an offset in the past makes sense.
_DURATION: Final = re.compile(
    r"P(?=[0-9T])(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?",
    re.IGNORECASE,
)
MAX_DURATION_CHARS: Final = 64
BY_KEY: Final = "key"
_BROKER: Final = definitions(BrokerSettings)
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"


def _is_reset(value: str) -> str | None:
    if value in ("latest", "earliest"):
        return None
    if value.startswith(BY_DURATION) and duration_ms(value.removeprefix(BY_DURATION)) is not None:
        return None
    return "Value must be latest, earliest or by_duration:PnDTnHnMn.nS"


def _is_number(value: float) -> str | None:
    return "Value must be a number" if math.isnan(value) else None


def _is_dead_letter_topic(value: str) -> str | None:
    if value.startswith("__"):
        return "The name of a dead letter topic must not start with __"
    return topic_name_problem(value) if value else None


def duration_ms(text: str) -> int | None:
    """Returns the milliseconds of an ISO 8601 duration (PnDTnHnMn.nS), or None if `text` is not one."""
    match = _DURATION.fullmatch(text) if len(text) <= MAX_DURATION_CHARS else None
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    fraction_ms = int((match[5] or "0").ljust(9, "0")[:3])
    total_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms
    return total_ms if total_ms <= LONG_MAX else None


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """All settings as plain attributes: `share.session.timeout.ms` is `share_session_timeout_ms`."""

    consumer_session_timeout_ms: int = default_from(_BROKER.group_consumer_session_timeout_ms)
    consumer_heartbeat_interval_ms: int = default_from(_BROKER.group_consumer_heartbeat_interval_ms)
    consumer_assignment_interval_ms: int = default_from(_BROKER.group_consumer_assignment_interval_ms)
    share_session_timeout_ms: int = default_from(_BROKER.group_share_session_timeout_ms)
    share_heartbeat_interval_ms: int = default_from(_BROKER.group_share_heartbeat_interval_ms)
    share_assignment_interval_ms: int = default_from(_BROKER.group_share_assignment_interval_ms)
    share_record_lock_duration_ms: int = default_from(
        _BROKER.group_share_record_lock_duration_ms, rules=(at_least(1_000),)
    )
    share_delivery_count_limit: int = default_from(
        _BROKER.group_share_delivery_count_limit, rules=(at_least(2),)
    )
    share_partition_max_record_locks: int = default_from(
        _BROKER.group_share_partition_max_record_locks, rules=(at_least(100),)
    )
    share_auto_offset_reset: str = string(
        "latest",
        MEDIUM,
        "First offset of a share partition: latest, earliest, or by_duration:PnDTnHnMn.nS before now.",
        _is_reset,
    )
    share_isolation_level: str = string(
        "read_uncommitted",
        MEDIUM,
        "With read_committed, records of open and aborted transactions are not delivered.",
        one_of("read_committed", "read_uncommitted"),
    )
    share_renew_acknowledge_enable: bool = boolean(
        True, MEDIUM, "Whether consumers may renew the locks of their acquired records."
    )
    streams_session_timeout_ms: int = default_from(_BROKER.group_streams_session_timeout_ms)
    streams_heartbeat_interval_ms: int = default_from(_BROKER.group_streams_heartbeat_interval_ms)
    streams_num_standby_replicas: int = default_from(_BROKER.group_streams_num_standby_replicas)
    streams_initial_rebalance_delay_ms: int = default_from(_BROKER.group_streams_initial_rebalance_delay_ms)
    streams_assignment_interval_ms: int = default_from(_BROKER.group_streams_assignment_interval_ms)

    # Beyond Kafka (ADR 0053).
    tidelog_share_retry_backoff_ms: int = integer(
        0,
        MEDIUM,
        "Time for which a record waits after a first delivery without success; 0 for no wait, as in Kafka.",
        between(0, DAY_MS),
    )
    tidelog_share_retry_backoff_multiplier: float = double(
        2.0, MEDIUM, "Factor by which the wait grows with each further delivery.", between(1, 100), _is_number
    )
    tidelog_share_retry_backoff_max_ms: int = integer(
        3_600_000, MEDIUM, "Longest wait of a record between two deliveries.", between(1, DAY_MS)
    )
    tidelog_share_deliver_at_enable: bool = boolean(
        False,
        MEDIUM,
        "Whether a record waits until the time in its header tidelog-deliver-at, in ms since 1970.",
    )
    tidelog_share_deliver_at_max_ms: int = long(
        7 * DAY_MS,
        MEDIUM,
        "Longest time between a record's timestamp and its tidelog-deliver-at; a later one does not count.",
        between(1, 366 * DAY_MS),
    )
    tidelog_share_order: str = string(
        "none",
        MEDIUM,
        "With key, the records of each key are delivered one at a time, in the order of the log.",
        one_of("none", BY_KEY),
    )
    tidelog_share_breaker_failure_percentage: int = integer(
        0,
        MEDIUM,
        "Percentage of failed deliveries at which a share partition pauses; 0 for no pauses, as in Kafka.",
        between(0, 100),
    )
    tidelog_share_breaker_min_deliveries: int = integer(
        20, MEDIUM, "Fewest deliveries in the window at which it may pause.", between(1, 100_000)
    )
    tidelog_share_breaker_window_ms: int = integer(
        60_000, MEDIUM, "Time over which the failed deliveries are counted.", between(1_000, 3_600_000)
    )
    tidelog_share_breaker_pause_ms: int = integer(
        30_000, MEDIUM, "Time without deliveries after too many failures.", between(100, DAY_MS)
    )
    tidelog_share_breaker_probe_records: int = integer(
        1, MEDIUM, "Number of deliveries that must succeed after a pause.", between(1, 1_000)
    )

    # Dead letters (KIP-1191, ADR 0052).
    errors_deadletterqueue_topic_name: str = string(
        "",
        MEDIUM,
        "Topic to which the records that a share group gives up are copied. If empty, they are not copied.",
        _is_dead_letter_topic,
    )
    errors_deadletterqueue_copy_record_enable: bool = boolean(
        False,
        MEDIUM,
        "Whether a dead letter has the key, value and headers of its record, or only states where it is.",
    )


GROUP_SETTINGS: Final[Mapping[str, Setting]] = settings_of(GroupSettings)


def _bound(name: str, which: str) -> str | None:
    """Returns the broker setting that bounds a group setting, or None. Its name has no `num`."""
    protocol, _, rest = name.partition(".")
    bound = f"group.{protocol}.{which}.{rest.removeprefix('num.')}"
    return bound if bound in BROKER_SETTINGS else None


BOUNDS: Final[Mapping[str, tuple[str | None, str | None]]] = {
    name: (_bound(name, "min"), _bound(name, "max"))
    for name, definition in GROUP_SETTINGS.items()
    if definition.synonyms
}
"""The settings whose defaults are the broker's `group.*` settings, and the broker settings that bound them
from below and above.
"""


def broker_synonym(name: str) -> str | None:
    """Returns the broker setting that gives the default of a group setting, or None if there is none."""
    return next(iter(GROUP_SETTINGS[name].synonyms), None)


def _bounds(broker: BrokerSettings, name: str) -> tuple[int, int]:
    least, most = BOUNDS[name]
    return (
        0 if least is None else _number(broker, least),
        LONG_MAX if most is None else _number(broker, most),
    )


def _number(broker: BrokerSettings, name: str) -> int:
    value = broker.value_of(name)
    assert isinstance(value, int)  # every bound is a number
    return value


def validate_group_overrides(
    overrides: Mapping[str, str | None], broker: BrokerSettings | None = None
) -> None:
    """Raises KafkaError(INVALID_CONFIG) if these cannot be the overrides of a group.

    With `broker`, they are also checked against the bounds that its settings have.
    """
    values: dict[str, Value] = {}
    try:
        for name, text in overrides.items():
            definition = GROUP_SETTINGS.get(name)
            if definition is None:
                raise SettingError(
                    name, f"Unknown group config name: {name}{nearest_name(name, GROUP_SETTINGS)}"
                )
            if text is None:
                raise SettingError(name, f"Null value not supported for group configs: {name}")
            values[name] = definition.parse(text)
        if broker is not None:
            _check_bounds(values, broker)
    except SettingError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _check_bounds(values: Mapping[str, Value], broker: BrokerSettings) -> None:
    effective = _values(broker, values, clamp=False)
    for name, (lower, upper) in BOUNDS.items():
        least, most = _bounds(broker, name)
        value = effective[name]
        if name in values and not least <= value <= most:
            bound = lower if value < least else upper
            relation = "greater" if value < least else "less"
            raise SettingError(name, f"{name} must be {relation} than or equal to {bound}")
    topic, prefix = values.get(DEAD_LETTER_TOPIC), broker.errors_deadletterqueue_topic_name_prefix
    if topic and not str(topic).startswith(prefix):
        raise SettingError(
            DEAD_LETTER_TOPIC,
            f"{DEAD_LETTER_TOPIC} must start with {prefix} (errors.deadletterqueue.topic.name.prefix)",
        )
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if (session in values or heartbeat in values) and effective[session] <= effective[heartbeat]:
            raise SettingError(session, f"{session} must be greater than {heartbeat}")


def _values(broker: BrokerSettings, own: Mapping[str, Value], *, clamp: bool) -> dict[str, Any]:
    """Returns every setting of a group by its name. The values have the types of their settings."""
    values: dict[str, Any] = {}
    for name, definition in GROUP_SETTINGS.items():
        synonym = broker_synonym(name)
        value: Any = own.get(name, definition.default if synonym is None else broker.value_of(synonym))
        if clamp and synonym is not None and name in own:
            least, most = _bounds(broker, name)
            value = min(max(value, least), most)
        values[name] = value
    return values


def group_settings(broker: BrokerSettings, overrides: Mapping[str, str]) -> GroupSettings:
    """Returns the settings of a group. An override beyond the broker's bounds counts as the bound, because
    the bounds may have changed since. Overrides that this version does not know, or whose values it cannot
    read, are ignored: another version has checked them when they were set.
    """
    own: dict[str, Value] = {}
    for name, text in overrides.items():
        definition = GROUP_SETTINGS.get(name)
        if definition is not None:
            with suppress(SettingError):
                own[name] = definition.parse(text)
    values = _values(broker, own, clamp=True)
    return GroupSettings(**{name.replace(".", "_"): value for name, value in values.items()})


class GroupSettingsView:
    """The current settings of every group, on a broker or in a coordinator.

    `broker` returns the current broker settings, and `overrides_of` the texts that a group overrides.
    """

    def __init__(
        self,
        broker: Callable[[], BrokerSettings],
        overrides_of: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._broker = broker
        self._overrides_of = overrides_of
        self._default: tuple[BrokerSettings, GroupSettings] | None = None
        """The settings of groups without overrides, and the broker's settings from which they were made."""
        self._known: dict[str, tuple[BrokerSettings, Mapping[str, str], GroupSettings]] = {}
        """The settings of groups with overrides, and what they were made from."""

    def for_group(self, group_id: str) -> GroupSettings:
        """Returns the settings of a group, which need not exist. Any thread may call it."""
        broker, overrides = self._broker(), self._overrides_of(group_id)
        if not overrides:
            self._known.pop(group_id, None)
            default = self._default
            if default is None or default[0] is not broker:
                default = self._default = broker, group_settings(broker, {})
            return default[1]
        known = self._known.get(group_id)
        if known is None or known[0] is not broker or known[1] is not overrides:
            known = self._known[group_id] = broker, overrides, group_settings(broker, overrides)
        return known[2]
