"""All settings of a broker, under Kafka's names and with Kafka's defaults.

A chain of slotted classes declares the settings, one class for each subject: LogSettings,
CoordinatorSettings, ShareSettings, StreamsSettings, NetworkSettings, SaslSettings, ClusterSettings,
TracingSettings and, for the rest, BrokerSettings. It is a chain because slotted classes cannot be combined.
All code uses `BrokerSettings`.

These defaults differ from Kafka 4.3 on purpose: `sasl.enabled.mechanisms` and
`sasl.mechanism.inter.broker.protocol` are SCRAM-SHA-512, because tidelog has no GSSAPI; `node.id` is 1 (Kafka
has none); `broker.session.timeout.ms` is 6000 (Kafka: 9000), because it is also the duration of the broker's
lease; `replica.socket.receive.buffer.bytes` is 262144 (Kafka: 65536), because larger reads save a tenth of
the CPU of replication; `socket.receive.buffer.bytes` is -1 (Kafka: 102400), because Linux sizes the buffer
for the path of each connection. The limits of connections have defaults (Kafka: none).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidelog.model.acl import parse_principals
from tidelog.settings import other_kafka_settings
from tidelog.settings.cluster_settings import TracingSettings
from tidelog.settings.listeners import ListenerPlan, plan_listeners
from tidelog.settings.network_settings import REPLICA_SELECTORS
from tidelog.settings.sasl_settings import LISTENER_PREFIX, plan_sasl, split_listener_setting
from tidelog.settings.setting import (
    CLUSTER_WIDE,
    HIGH,
    INT_MAX,
    LONG_MAX,
    LOW,
    MAX_INTEGER_CHARS,
    MAX_SHOWN_CHARS,
    MEDIUM,
    Setting,
    SettingError,
    Value,
    at_least,
    between,
    boolean,
    integer,
    long,
    one_of,
    optional_string,
    settings_of,
    string,
)
from tidelog.settings.tls_settings import AUTHORITY, plan_tls

_OF_LISTENERS = ("sasl.", "ssl.", "connections.max.reauth.ms")
"""The beginnings of the names of settings that a listener may override."""
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's own authorizer, whose behaviour tidelog has. Other Java classes cannot be loaded."""
_NODE_ID = "node.id"
_BROKER_ID = "broker.id"


@dataclass(frozen=True, slots=True)
class SettingLayers:
    """The texts of settings by their source. A later layer overrides an earlier one."""

    static: Mapping[str, str] = field(default_factory=dict)
    """From the command line and files: STATIC_BROKER_CONFIG."""
    dynamic_default: Mapping[str, str] = field(default_factory=dict)
    """From AlterConfigs for all brokers: DYNAMIC_DEFAULT_BROKER_CONFIG."""
    dynamic: Mapping[str, str] = field(default_factory=dict)
    """From AlterConfigs for this broker: DYNAMIC_BROKER_CONFIG."""


_NO_LAYERS = SettingLayers()


@dataclass(frozen=True, slots=True)
class BrokerSettings(TracingSettings):
    """All settings as plain attributes: `log.retention.ms` is `log_retention_ms`."""

    # Identity and cluster.
    node_id: int = integer(
        1, HIGH, "Id of the broker in the cluster. broker.id is another name for it.", at_least(0)
    )
    broker_id: int = integer(-1, HIGH, "Older name of node.id; both always have the same value.")
    tidelog_node_name: str | None = optional_string(
        MEDIUM,
        "Name that no other node of the same kind has, such as the name of its pod. If neither "
        "node.id nor broker.id is set, node.id is derived from it. For controllers and coordinators.",
    )
    broker_rack: str | None = optional_string(
        MEDIUM, "Rack of the broker. Replicas of a partition are spread over racks."
    )
    broker_session_timeout_ms: int = integer(
        6_000,
        MEDIUM,
        "Time to live of the broker's lease. A broker that does not renew it for this long is "
        "considered dead.",
    )
    broker_heartbeat_interval_ms: int = integer(2_000, MEDIUM, "Interval between two renewals of the lease.")
    controlled_shutdown_enable: bool = boolean(
        True, MEDIUM, "Whether the broker hands leadership over before a clean shutdown."
    )
    auto_leader_rebalance_enable: bool = boolean(
        True, HIGH, "Whether the controller periodically returns leadership to preferred leaders."
    )
    leader_imbalance_check_interval_seconds: int = long(
        300, HIGH, "Interval between two checks whether preferred leaders lead.", at_least(1)
    )
    leader_imbalance_per_broker_percentage: int = integer(
        10,
        HIGH,
        "Percentage of a broker's preferred partitions that others may lead before the controller "
        "returns leadership to the broker, as in Kafka before 4.0.",
        between(0, 100),
    )

    # Authorization; super.users and allow.everyone.if.no.acl.found belong to Kafka's authorizer.
    authorizer_class_name: str = string(
        "",
        LOW,
        f"{STANDARD_AUTHORIZER} makes the broker check ACLs. If empty, every client may do everything.",
    )
    super_users: str = string(
        "",
        MEDIUM,
        "Principals that may do everything, separated by semicolons, such as User:alice;User:bob.",
    )
    allow_everyone_if_no_acl_found: bool = boolean(
        False,
        MEDIUM,
        "Whether everyone may use a resource for which no ACL exists. Only super users may, if false.",
    )

    # Throttles of reassignments; only dynamic in Kafka.
    leader_replication_throttled_rate: int = long(
        LONG_MAX,
        MEDIUM,
        "Limit of the bytes per second that the broker sends to throttled replicas.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    follower_replication_throttled_rate: int = long(
        LONG_MAX,
        MEDIUM,
        "Limit of the bytes per second that throttled replicas on the broker fetch.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )

    # Settings that Kafka does not have.
    tidelog_validate_records: bool = boolean(
        False,
        LOW,
        "Whether the broker checks each record of a batch when it appends the batch, not only the "
        "batch's header.",
        mode=CLUSTER_WIDE,
    )
    tidelog_metrics_listener: str = string(
        "", MEDIUM, "Address (host:port) of the endpoint for Prometheus. If empty, no metrics are served."
    )
    tidelog_probes_listener: str = string(
        "",
        MEDIUM,
        "Address (host:port) of an endpoint that answers only the probes /livez and /readyz. The endpoint "
        "for Prometheus answers them, too, but its readers can delay them. If empty, there is none.",
    )
    tidelog_log_format: str = string(
        "auto",
        LOW,
        "Format of the log of the process: text, json, or auto (text on a terminal, json otherwise).",
        one_of("auto", "text", "json"),
    )
    tidelog_log_level: str = string(
        "info",
        LOW,
        "Lowest level of messages in the log of the process.",
        one_of("debug", "info", "warning", "error"),
    )
    tidelog_connection_max_in_flight_requests: int = integer(
        64,
        MEDIUM,
        "Limit of unanswered requests on one connection. The broker does not read further requests "
        "until it has answered some.",
        at_least(1),
    )

    layers: SettingLayers = field(default=_NO_LAYERS, repr=False, compare=False)
    without_effect: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """The names of settings that were given, that Kafka knows and that have no effect here."""

    of_listeners: Mapping[str, Value] = field(default_factory=dict, repr=False, compare=False)
    """The settings of single listeners, by their names in lower case (`listener.name.NAME.SETTING`)."""

    def __post_init__(self) -> None:
        if self.broker_id != self.node_id:
            object.__setattr__(self, "broker_id", self.node_id)

    @classmethod
    def parse(
        cls,
        static: Mapping[str, str],
        *,
        dynamic_default: Mapping[str, str] | None = None,
        dynamic: Mapping[str, str] | None = None,
    ) -> BrokerSettings:
        """Returns the settings for these texts. Raises SettingError for the first invalid one, with one line
        that names the setting.
        """
        layers = SettingLayers(static, dynamic_default or {}, dynamic or {})
        values: dict[str, Any] = {}  # each of the type of its field
        without_effect: dict[str, None] = {}
        of_listeners: dict[str, Value] = {}
        for layer in (layers.static, layers.dynamic_default, layers.dynamic):
            for name, text in layer.items():
                definition = known_setting(name, text)
                if definition is not None and name.startswith(LISTENER_PREFIX):
                    of_listeners[name.lower()] = definition.parse(text)
                elif definition is None:
                    without_effect[name] = None
                else:
                    values[definition.attribute] = definition.parse(text)
        _agree_on_node_id(values)
        settings = cls(
            **values, layers=layers, without_effect=tuple(without_effect), of_listeners=of_listeners
        )
        check_settings_together(settings)
        return settings

    def with_dynamic(
        self, *, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]
    ) -> BrokerSettings:
        """Returns these settings with other dynamic layers, as after AlterConfigs."""
        return BrokerSettings.parse(self.layers.static, dynamic_default=dynamic_default, dynamic=dynamic)

    def value_of(self, name: str) -> Value:
        """Returns a value by Kafka's name. Raises KeyError if there is no such setting."""
        value: Value = getattr(self, BROKER_SETTINGS[name].attribute)
        return value

    def listener_value(self, listener_name: str, name: str, mechanism: str = "") -> Value:
        """Returns the value of a setting for one listener and SASL mechanism: the most specific one that is
        set.
        """
        prefix = f"{LISTENER_PREFIX}{listener_name.lower()}."
        for specific in (f"{prefix}{mechanism.lower()}.{name}", f"{prefix}{name}"):
            if specific in self.of_listeners:
                return self.of_listeners[specific]
        return self.value_of(name)

    def listener_plan(self) -> ListenerPlan:
        """The parsed listeners. `parse` has checked them."""
        return plan_listeners(self)

    def connection_limits_per_ip(self) -> dict[str, int]:
        """The limits of `max.connections.per.ip.overrides` by host."""
        return _connection_limits(self.max_connections_per_ip_overrides)


BROKER_SETTINGS: Mapping[str, Setting] = settings_of(BrokerSettings)


def known_setting(name: str, text: str) -> Setting | None:
    """Returns the definition of `name`, or None if it is a setting of Kafka that has no effect here. Raises
    SettingError for any other name.
    """
    definition = BROKER_SETTINGS.get(name)
    if definition is not None:
        return definition
    of_listener = split_listener_setting(name)
    if of_listener is not None:
        return _listener_setting(name, of_listener[2])
    refusal = other_kafka_settings.reason_refused(name)
    if refusal is not None:
        if other_kafka_settings.is_harmless(name, text):
            return None
        raise SettingError(name, f"{name}: {refusal}")
    if other_kafka_settings.reason_without_effect(name) is not None:
        return None
    hint = other_kafka_settings.nearest_name(name, BROKER_SETTINGS)
    raise SettingError(name, f"Unknown setting {name}{hint}")


def _listener_setting(name: str, base_name: str) -> Setting:
    """Returns the definition of `listener.name.NAME.<base_name>`. Raises SettingError."""
    base = BROKER_SETTINGS.get(base_name)
    if base is None or not base_name.startswith(_OF_LISTENERS):
        raise SettingError(name, f"{name}: {base_name} cannot be set for one listener")
    return replace(base, name=name)


_RULES_BETWEEN: Final[tuple[tuple[str, Callable[[BrokerSettings], bool], str], ...]] = (
    ("log.retention.ms", lambda its: its.retention_ms != 0, "must be -1 (forever) or at least 1"),
    ("log.roll.ms", lambda its: its.roll_ms >= 1, "must be at least 1"),
    ("log.roll.jitter.ms", lambda its: its.roll_jitter_ms >= 0, "must be at least 0"),
    (
        "log.cleaner.min.compaction.lag.ms",
        lambda its: its.log_cleaner_min_compaction_lag_ms <= its.log_cleaner_max_compaction_lag_ms,
        "must not be greater than log.cleaner.max.compaction.lag.ms",
    ),
    (
        "max.connections.per.ip",
        lambda its: its.max_connections_per_ip > 0 or bool(its.connection_limits_per_ip()),
        "can be 0 only if max.connections.per.ip.overrides is set",
    ),
    (
        "queued.max.request.bytes",
        lambda its: not 0 < its.queued_max_request_bytes < its.socket_request_max_bytes,
        "must be at least socket.request.max.bytes ({its.socket_request_max_bytes})",
    ),
    (
        "replica.fetch.wait.max.ms",
        lambda its: its.replica_fetch_wait_max_ms <= its.replica_lag_time_max_ms,
        "must not be greater than replica.lag.time.max.ms",
    ),
    (
        "replica.socket.timeout.ms",
        lambda its: its.replica_socket_timeout_ms >= its.replica_fetch_wait_max_ms,
        "must be at least replica.fetch.wait.max.ms",
    ),
    (
        "replica.selector.class",
        lambda its: its.replica_selector_class in (None, *REPLICA_SELECTORS),
        f"only Kafka's own classes can be used: {', '.join(REPLICA_SELECTORS[:2])}",
    ),
    (
        "authorizer.class.name",
        lambda its: its.authorizer_class_name in ("", STANDARD_AUTHORIZER),
        f"only Kafka's own authorizer can be used: {STANDARD_AUTHORIZER}",
    ),
    (
        "group.coordinator.rebalance.protocols",
        lambda its: "classic" in its.group_coordinator_rebalance_protocols,
        "must contain classic",
    ),
    (
        "group.min.session.timeout.ms",
        lambda its: its.group_min_session_timeout_ms <= its.group_max_session_timeout_ms,
        "must not be greater than group.max.session.timeout.ms",
    ),
    (
        "tidelog.rpc.advertised.address",
        lambda its: its.has_rpc_address,
        "other services cannot connect to a wildcard; set it to an address that they can reach",
    ),
    (
        "broker.heartbeat.interval.ms",
        lambda its: its.broker_heartbeat_interval_ms * 2 <= its.broker_session_timeout_ms,
        "must be at most half of broker.session.timeout.ms; otherwise, the broker loses its lease",
    ),
)
"""The rules that concern several settings: the setting that a refusal names, the rule, and the refusal."""


def check_settings_together(settings: BrokerSettings) -> None:
    """Checks the rules between settings (Kafka's `KafkaConfig.validateValues`)."""
    _check_listeners(settings)
    _check_group_bounds(settings)
    try:
        parse_principals(settings.super_users)
    except ValueError as error:
        raise SettingError("super.users", f"super.users: {error}") from error
    _check_only_values(settings)
    _check_consumer_groups(settings)
    settings.connection_limits_per_ip()  # raises SettingError
    for name, holds, problem in _RULES_BETWEEN:
        if not holds(settings):
            raise SettingError(name, f"{name}: {problem.format(its=settings)}")


def _check_only_values(settings: BrokerSettings) -> None:
    if len(settings.data_dirs) > 1:
        name = "log.dirs" if settings.log_dirs else "log.dir"
        raise SettingError(name, f"{name}: a broker uses one data directory, so give one")
    for name in BROKER_SETTINGS:
        problem = other_kafka_settings.problem_of_value(name, settings.value_of(name))
        if problem is not None:
            raise SettingError(name, problem)


def _check_consumer_groups(settings: BrokerSettings) -> None:
    """Checks the rules of Kafka's `GroupCoordinatorConfig` for the times of consumer groups."""
    times_ms = (
        (
            "group.consumer.session.timeout.ms",
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        ),
        (
            "group.consumer.heartbeat.interval.ms",
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        ),
    )
    for name, least_ms, value_ms, most_ms in times_ms:
        if not least_ms <= value_ms <= most_ms:
            raise SettingError(
                name, f"{name}: must be between group.consumer.min.* ({least_ms}) and .max.* ({most_ms})"
            )
    if settings.group_consumer_heartbeat_interval_ms >= settings.group_consumer_session_timeout_ms:
        raise SettingError(
            "group.consumer.heartbeat.interval.ms",
            "group.consumer.heartbeat.interval.ms: must be less than group.consumer.session.timeout.ms",
        )


def _check_group_bounds(settings: BrokerSettings) -> None:
    """Checks that the defaults of groups are within the bounds of what a group may set."""
    for protocol, rest in (
        ("consumer", "assignment.interval.ms"),
        ("share", "session.timeout.ms"),
        ("share", "heartbeat.interval.ms"),
        ("share", "assignment.interval.ms"),
        ("share", "delivery.count.limit"),
        ("share", "record.lock.duration.ms"),
        ("share", "partition.max.record.locks"),
        ("streams", "session.timeout.ms"),
        ("streams", "heartbeat.interval.ms"),
        ("streams", "assignment.interval.ms"),
    ):
        name = f"group.{protocol}.{rest}"
        bounds = (f"group.{protocol}.min.{rest}", f"group.{protocol}.max.{rest}")
        value, least, most = (settings.value_of(known) for known in (name, *bounds))
        assert isinstance(value, int)  # all of them are
        assert isinstance(least, int)
        assert isinstance(most, int)
        if not least <= value <= most:
            raise SettingError(
                name, f"{name}: must be between {bounds[0]} ({least}) and {bounds[1]} ({most})"
            )
    for name, session_ms, heartbeat_ms in (
        ("share", settings.group_share_session_timeout_ms, settings.group_share_heartbeat_interval_ms),
        ("streams", settings.group_streams_session_timeout_ms, settings.group_streams_heartbeat_interval_ms),
    ):
        if session_ms <= heartbeat_ms:
            setting = f"group.{name}.session.timeout.ms"
            raise SettingError(setting, f"{setting}: must be greater than group.{name}.heartbeat.interval.ms")
    most_replicas = settings.group_streams_max_standby_replicas
    if settings.group_streams_num_standby_replicas > most_replicas:
        setting = "group.streams.num.standby.replicas"
        raise SettingError(
            setting, f"{setting}: must be at most group.streams.max.standby.replicas ({most_replicas})"
        )


def _check_listeners(settings: BrokerSettings) -> None:
    plan = plan_listeners(settings)
    for endpoint in plan.bind:
        if endpoint.security_protocol.startswith("SASL_"):
            plan_sasl(endpoint.listener_name, settings.listener_value)
        if endpoint.security_protocol.endswith("SSL"):
            plan_tls(endpoint.listener_name, settings.listener_value)
    names = {endpoint.listener_name for endpoint in plan.bind}
    for name in settings.of_listeners:
        of_listener = split_listener_setting(name)
        if of_listener is not None and of_listener[0] not in names:
            raise SettingError(name, f"{name}: there is no listener {of_listener[0]} in listeners")


def certificate_files(settings: BrokerSettings) -> dict[str, str]:
    """Returns the files with the process's own certificates and its authorities, by their use: `rpc`, `etcd`,
    the name of a listener, or `rpc-authority` and `etcd-authority`.
    """
    files = {
        "rpc": settings.tidelog_rpc_tls_cert_file or "",
        f"rpc{AUTHORITY}": settings.tidelog_rpc_tls_ca_file or "",
        "etcd": settings.tidelog_etcd_tls_cert_file or "",
        f"etcd{AUTHORITY}": settings.tidelog_etcd_tls_ca_file or "",
    }
    for endpoint in plan_listeners(settings).bind:
        if endpoint.security_protocol.endswith("SSL"):
            plan = plan_tls(endpoint.listener_name, settings.listener_value)
            files[endpoint.listener_name] = plan.keystore_location or ""
    return {use: path for use, path in files.items() if path}


def _agree_on_node_id(values: dict[str, Any]) -> None:  # each of the type of its field
    node_id, broker_id = values.get("node_id"), values.get("broker_id")
    if node_id is None and broker_id is not None and broker_id >= 0:
        values["node_id"] = broker_id
    elif node_id is None and values.get("tidelog_node_name"):
        values["node_id"] = zlib.crc32(values["tidelog_node_name"].encode()) & INT_MAX
    elif node_id is not None and broker_id is not None and node_id != broker_id:
        raise SettingError(_NODE_ID, f"{_NODE_ID}: must be the same as {_BROKER_ID} ({broker_id})")


def _connection_limits(text: str) -> dict[str, int]:
    name = "max.connections.per.ip.overrides"
    limits: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, separator, number = entry.rpartition(":")
        number = number.strip()
        if not separator or not host or not number.isdecimal() or len(number) > MAX_INTEGER_CHARS:
            raise SettingError(name, f"{name}: {entry[:MAX_SHOWN_CHARS]} does not have the form host:number")
        limits[host.strip().strip("[]")] = int(number)
    return limits
