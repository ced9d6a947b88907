"""Broker settings of Kafka for parts that tidelog does not have. Some have no effect, others are refused.

A file written for Kafka should start a tidelog broker, and tools that configure Kafka should work. Therefore
a setting that endangers nothing (threads, KRaft, Kerberos) has no effect: the broker names it in one warning,
stores a dynamic change of it, and describes it with this remark. A value that would falsely promise safety
(durability, identity, access, deletion) or another place of data is refused (ADR 0071).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from tidelog.settings.setting import (
    CLUSTER_WIDE,
    HIGH,
    LONG_MAX,
    LOW,
    MEDIUM,
    PER_BROKER,
    Setting,
    at_least,
    boolean,
    double,
    integer,
    long,
    optional_string,
    settings_of,
    short,
    string,
    strings,
)

_KRAFT = "cluster metadata is not kept by KRaft"
_THREADS = "one event loop does this work"
_PURGE = "finished operations are never left in the purgatory"
_TIERED = "there is no tiered storage yet"
_KERBEROS = "tidelog has no GSSAPI"
_NO_LOGIN = "brokers do not log in with tokens"
_NO_BUFFERS = "no buffers are kept for reuse"
_METRICS = "metrics are served to Prometheus, see tidelog.metrics.listener"
_PREALLOCATE = "the space of segments is not reserved"
_LOADING = "shards are read in small pieces, so that the replay of one never holds up the others"


@dataclass(frozen=True, slots=True)
class _DynamicWithoutEffect:
    """The settings without effect that Kafka's brokers can change while they run. Names, types, accepted
    values and update modes are those of Kafka, and the text is the reason.
    """

    background_threads: int = integer(10, HIGH, _THREADS, at_least(1), mode=CLUSTER_WIDE)
    follower_fetch_last_tiered_offset_enable: bool = boolean(False, MEDIUM, _TIERED, mode=CLUSTER_WIDE)
    group_coordinator_cached_buffer_max_bytes: int = integer(
        1_048_588, MEDIUM, _NO_BUFFERS, at_least(524_288), mode=CLUSTER_WIDE
    )
    metric_reporters: tuple[str, ...] = strings(
        ("org.apache.kafka.common.metrics.JmxReporter",), LOW, _METRICS, mode=CLUSTER_WIDE
    )
    num_io_threads: int = integer(8, HIGH, _THREADS, at_least(1), mode=CLUSTER_WIDE)
    num_network_threads: int = integer(3, HIGH, _THREADS, at_least(1), mode=CLUSTER_WIDE)
    remote_fetch_max_wait_ms: int = integer(500, MEDIUM, _TIERED, at_least(1), mode=CLUSTER_WIDE)
    remote_list_offsets_request_timeout_ms: int = long(
        30_000, MEDIUM, _TIERED, at_least(1), mode=CLUSTER_WIDE
    )
    remote_log_index_file_cache_total_size_bytes: int = long(
        1_073_741_824, LOW, _TIERED, at_least(1), mode=CLUSTER_WIDE
    )
    remote_log_manager_copier_thread_pool_size: int = integer(
        10, MEDIUM, _TIERED, at_least(1), mode=CLUSTER_WIDE
    )
    remote_log_manager_copy_max_bytes_per_second: int = long(
        LONG_MAX, MEDIUM, _TIERED, at_least(1), mode=CLUSTER_WIDE
    )
    remote_log_manager_expiration_thread_pool_size: int = integer(
        10, MEDIUM, _TIERED, at_least(1), mode=CLUSTER_WIDE
    )
    remote_log_manager_fetch_max_bytes_per_second: int = long(
        LONG_MAX, MEDIUM, _TIERED, at_least(1), mode=CLUSTER_WIDE
    )
    remote_log_manager_follower_thread_pool_size: int = integer(
        2, MEDIUM, _TIERED, at_least(1), mode=CLUSTER_WIDE
    )
    remote_log_reader_threads: int = integer(10, MEDIUM, _TIERED, at_least(1), mode=CLUSTER_WIDE)
    sasl_kerberos_kinit_cmd: str = string("/usr/bin/kinit", MEDIUM, _KERBEROS, mode=PER_BROKER)
    sasl_kerberos_min_time_before_relogin: int = long(60_000, MEDIUM, _KERBEROS, mode=PER_BROKER)
    sasl_kerberos_service_name: str | None = optional_string(MEDIUM, _KERBEROS, mode=PER_BROKER)
    sasl_kerberos_ticket_renew_jitter: float = double(0.05, MEDIUM, _KERBEROS, mode=PER_BROKER)
    sasl_kerberos_ticket_renew_window_factor: float = double(0.8, MEDIUM, _KERBEROS, mode=PER_BROKER)
    sasl_login_refresh_buffer_seconds: int = short(300, MEDIUM, _NO_LOGIN, mode=PER_BROKER)
    sasl_login_refresh_min_period_seconds: int = short(60, MEDIUM, _NO_LOGIN, mode=PER_BROKER)
    sasl_login_refresh_window_factor: float = double(0.8, MEDIUM, _NO_LOGIN, mode=PER_BROKER)
    sasl_login_refresh_window_jitter: float = double(0.05, MEDIUM, _NO_LOGIN, mode=PER_BROKER)
    share_coordinator_cached_buffer_max_bytes: int = integer(
        1_048_588, MEDIUM, _NO_BUFFERS, at_least(524_288), mode=CLUSTER_WIDE
    )


DYNAMIC_WITHOUT_EFFECT: Final[Mapping[str, Setting]] = settings_of(_DynamicWithoutEffect)

# The reasons for the other settings without effect, by name or by a prefix that ends with a dot.
_WITHOUT_EFFECT: dict[str, str] = {
    "add.partitions.to.txn.retry.backoff.max.ms": "producers are not held up by a retry on the broker",
    "add.partitions.to.txn.retry.backoff.ms": "producers are not held up by a retry on the broker",
    "alter.log.dirs.replication.quota.": "replicas are not moved between directories yet",
    "controller.listener.names": _KRAFT,
    "controller.performance.": _KRAFT,
    "controller.quorum.": _KRAFT,
    "controller.socket.timeout.ms": _KRAFT,
    "delete.records.purgatory.purge.interval.requests": _PURGE,
    "fetch.purgatory.purge.interval.requests": _PURGE,
    "early.start.listeners": "all listeners start when the ACLs are loaded",
    "group.consumer.regex.refresh.interval.ms": "patterns are matched again when topics change",
    "group.coordinator.append.linger.ms": "the records of one turn of the event loop are appended together",
    "group.coordinator.background.threads": _THREADS,
    "group.coordinator.threads": _THREADS,
    "group.streams.assignor.offload.enable": "the event loop computes assignments",
    "initial.broker.registration.timeout.ms": _KRAFT,
    "internal.metadata.": _KRAFT,
    "kafka.metrics.": _METRICS,
    "log.dir.failure.timeout.ms": "a broker stops as soon as its data directory fails",
    "metadata.": _KRAFT,
    "metrics.": _METRICS,
    "num.replica.alter.log.dirs.threads": "replicas are not moved between directories yet",
    "offsets.load.buffer.size": _LOADING,
    "offsets.topic.compression.codec": "the records of __consumer_offsets are not compressed",
    "process.roles": _KRAFT,
    "delegation.token.expiry.check.interval.ms": "the creation of a token removes the expired ones",
    "sasl.login.connect.timeout.ms": _NO_LOGIN,
    "sasl.login.read.timeout.ms": _NO_LOGIN,
    "sasl.login.retry.backoff.max.ms": _NO_LOGIN,
    "sasl.login.retry.backoff.ms": _NO_LOGIN,
    "sasl.mechanism.controller.protocol": _KRAFT,
    "producer.purgatory.purge.interval.requests": _PURGE,
    "queued.max.requests": "there is no queue; see tidelog.connection.max.in.flight.requests",
    "remote.": _TIERED,
    "replication.quota.window.": "replication is throttled by a token bucket, which has no samples",
    "server.max.startup.time.ms": _KRAFT,
    "share.coordinator.append.linger.ms": "appends are collected for one turn of the event loop",
    "share.coordinator.load.buffer.size": "the size of reads is fixed",
    "share.coordinator.state.topic.compression.codec": "the coordinator does not compress its records",
    "share.coordinator.threads": _THREADS,
    "share.coordinator.write.timeout.ms": "the end of an attachment bounds the wait for replicas",
    "share.fetch.purgatory.purge.interval.requests": _PURGE,
    "socket.connection.setup.timeout.max.ms": "request.timeout.ms bounds connecting, too",
    "socket.connection.setup.timeout.ms": "request.timeout.ms bounds connecting, too",
    "transaction.state.log.load.buffer.size": _LOADING,
    "tidelog.session.": "coordinators' sessions use tidelog.rpc.listener",
    "unclean.leader.election.interval.ms": "an election is tried whenever a replica comes back",
    "unstable.": "there are no unstable versions",
}

_TLS = "OpenSSL has no such setting"
_SASL = "this part of SASL is not supported yet"
_JAVA = "it names a Java class, which cannot be loaded"

_REFUSED: dict[str, str] = {
    "alter.config.policy.class.name": _JAVA,
    "client.quota.callback.class": _JAVA,
    "config.providers": "values cannot be taken from configuration providers",
    "cordoned.log.dirs": "data directories cannot be cordoned yet",
    "create.topic.policy.class.name": _JAVA,
    "group.share.persister.class.name": _JAVA,
    "principal.builder.class": _JAVA,
    "remote.log.storage.system.enable": _TIERED,
    "sasl.client.callback.handler.class": _JAVA,
    "sasl.kerberos.principal.to.local.rules": _KERBEROS,
    "sasl.login.callback.handler.class": _JAVA,
    "sasl.login.class": _JAVA,
    "sasl.oauthbearer.assertion.": _SASL,
    "sasl.oauthbearer.client.credentials.": _SASL,
    "sasl.oauthbearer.jwt.retriever.class": _JAVA,
    "sasl.oauthbearer.jwt.validator.class": _JAVA,
    "sasl.oauthbearer.scope": _SASL,
    "sasl.oauthbearer.scope.claim.name": _SASL,
    "sasl.oauthbearer.token.endpoint.url": _SASL,
    "sasl.server.callback.handler.class": _JAVA,
    "security.providers": _JAVA,
    "ssl.allow.dn.changes": _TLS,
    "ssl.allow.san.changes": _TLS,
    "ssl.endpoint.identification.algorithm": "brokers always check the names in each other's certificates",
    "ssl.engine.factory.class": _TLS,
    "ssl.keymanager.algorithm": _TLS,
    "ssl.provider": _TLS,
    "ssl.secure.random.implementation": _TLS,
    "ssl.trustmanager.algorithm": _TLS,
    "transaction.two.phase.commit.enable": "there is no two-phase commit (KIP-939) yet",
}

# The values that turn off a setting that is refused otherwise.
_HARMLESS_VALUES: dict[str, frozenset[str]] = {
    "group.share.persister.class.name": frozenset(
        {"org.apache.kafka.server.share.persister.defaultstatepersister"}
    ),
    "remote.log.storage.system.enable": frozenset({"false"}),
    "sasl.kerberos.principal.to.local.rules": frozenset({"default"}),
    "ssl.endpoint.identification.algorithm": frozenset({"https"}),
    "transaction.two.phase.commit.enable": frozenset({"false"}),
}

# Settings of brokers and topics that accept one value only, because tidelog lacks the feature that other
# values need: the accepted value and the reason.
_ONLY_VALUES: dict[str, tuple[bool | int | tuple[str, ...], str]] = {
    "group.share.assignors": (("simple",), "share groups have one assignor"),
    "local.retention.bytes": (-2, _TIERED),
    "local.retention.ms": (-2, _TIERED),
    "log.local.retention.bytes": (-2, _TIERED),
    "log.local.retention.ms": (-2, _TIERED),
    "log.preallocate": (False, _PREALLOCATE),
    "preallocate": (False, _PREALLOCATE),
    "remote.log.copy.disable": (False, _TIERED),
    "remote.log.delete.on.disable": (False, _TIERED),
    "remote.storage.enable": (False, _TIERED),
}


def problem_of_value(name: str, value: object) -> str | None:
    """Returns the sentence that refuses this value of a setting that has one value only, or None."""
    only = _ONLY_VALUES.get(name)
    if only is None or value == only[0]:
        return None
    shown = ",".join(only[0]) if isinstance(only[0], tuple) else str(only[0]).lower()
    return f"{name}: only {shown} is accepted, because {only[1]}"


def _lookup(table: dict[str, str], name: str) -> str | None:
    reason = table.get(name)
    if reason is not None:
        return reason
    return next((text for key, text in table.items() if key.endswith(".") and name.startswith(key)), None)


def reason_without_effect(name: str) -> str | None:
    """Returns why Kafka's setting `name` has no effect here, or None."""
    if reason_refused(name):
        return None
    dynamic = DYNAMIC_WITHOUT_EFFECT.get(name)
    return dynamic.doc if dynamic is not None else _lookup(_WITHOUT_EFFECT, name)


def no_effect_remark(name: str) -> str:
    """Returns the sentence that describes a setting without effect."""
    reason = reason_without_effect(name) or "it only turns off what tidelog does not have"
    return f"This setting has no effect in tidelog: {reason}."


def reason_refused(name: str) -> str | None:
    """Returns why Kafka's setting `name` is refused, or None."""
    return _lookup(_REFUSED, name)


def is_harmless(name: str, text: str) -> bool:
    """Returns whether `text` turns off the refused setting `name`."""
    stripped = text.strip().lower()
    return not stripped or stripped in _HARMLESS_VALUES.get(name, frozenset())


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.75) -> str:
    """Returns `; did you mean ...?` for an unknown name, or an empty string if no known name is similar."""
    nearest = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {nearest[0]}?" if nearest else ""
