"""Kafka's broker settings that tidelog has no use for: which are passed over, and which are refused.

A file written for Kafka should start a tidelog broker, so what tunes something that isn't there (threads,
KRaft) is passed over and named in one warning. What a user relies on for safety (TLS, SASL, authorisation,
policies), or for data to be somewhere, is refused for as long as it can't be honoured.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_KRAFT = "cluster metadata is not kept by KRaft"
_THREADS = "one event loop does this work"
_PURGE = "finished operations are never left in the purgatory"
_TIERED = "there is no tiered storage yet"
_SHARE = "there are no share groups yet"
_STREAMS = "there are no streams groups yet"

# A name, or a prefix that ends with a dot.
_WITHOUT_EFFECT: dict[str, str] = {
    "add.partitions.to.txn.retry.backoff.max.ms": "producers are not held up by a retry on the broker",
    "add.partitions.to.txn.retry.backoff.ms": "producers are not held up by a retry on the broker",
    "alter.log.dirs.replication.quota.": "replicas are not moved between directories yet",
    "background.threads": _THREADS,
    "controller.listener.names": _KRAFT,
    "controller.performance.": _KRAFT,
    "controller.quorum.": _KRAFT,
    "controller.socket.timeout.ms": _KRAFT,
    "delete.records.purgatory.purge.interval.requests": _PURGE,
    "fetch.purgatory.purge.interval.requests": _PURGE,
    "follower.fetch.last.tiered.offset.enable": _TIERED,
    "group.consumer.assignment.interval.ms": "assignments are computed when they are needed",
    "group.consumer.max.assignment.interval.ms": "assignments are computed when they are needed",
    "group.consumer.min.assignment.interval.ms": "assignments are computed when they are needed",
    "group.consumer.regex.refresh.interval.ms": "patterns are matched again when topics change",
    "group.coordinator.background.threads": _THREADS,
    "group.coordinator.cached.buffer.max.bytes": "no buffers are kept for reuse",
    "group.coordinator.threads": _THREADS,
    "group.share.": _SHARE,
    "group.streams.": _STREAMS,
    "initial.broker.registration.timeout.ms": _KRAFT,
    "internal.metadata.": _KRAFT,
    "kafka.metrics.": "metrics are served to Prometheus, see tidelog.metrics.listener",
    "metadata.": _KRAFT,
    "metric.reporters": "metrics are served to Prometheus, see tidelog.metrics.listener",
    "metrics.": "metrics are served to Prometheus, see tidelog.metrics.listener",
    "num.io.threads": _THREADS,
    "num.network.threads": _THREADS,
    "num.replica.alter.log.dirs.threads": "replicas are not moved between directories yet",
    "process.roles": _KRAFT,
    "producer.purgatory.purge.interval.requests": _PURGE,
    "remote.": _TIERED,
    "server.max.startup.time.ms": _KRAFT,
    "share.": _SHARE,
    "socket.connection.setup.timeout.max.ms": "request.timeout.ms bounds connecting, too",
    "socket.connection.setup.timeout.ms": "request.timeout.ms bounds connecting, too",
    "telemetry.max.bytes": "clients' metrics are not collected yet",
    "tidelog.session.": "coordinators' sessions use tidelog.rpc.listener",
    "unclean.leader.election.interval.ms": "it is looked for a leader whenever a replica comes back",
    "unstable.": "there are no unstable versions",
}

_TLS = "TLS is not supported yet, listeners are PLAINTEXT only"
_SASL = "SASL is not supported yet, listeners are PLAINTEXT only"
_JAVA = "it names a Java class, which can't be loaded"

_REFUSED: dict[str, str] = {
    "alter.config.policy.class.name": _JAVA,
    "authorizer.class.name": "authorisation is not supported yet",
    "client.quota.callback.class": _JAVA,
    "config.providers": "values can't be taken from configuration providers",
    "connection.failed.authentication.delay.ms": _SASL,
    "connections.max.reauth.ms": _SASL,
    "cordoned.log.dirs": "data directories can't be cordoned yet",
    "create.topic.policy.class.name": _JAVA,
    "delegation.token.": "delegation tokens are not supported yet",
    "early.start.listeners": "authorisation is not supported yet",
    "listener.name.": "settings of one listener are not supported yet",
    "principal.builder.class": _JAVA,
    "remote.log.storage.system.enable": _TIERED,
    "sasl.": _SASL,
    "security.providers": _JAVA,
    "ssl.": _TLS,
    "super.users": "authorisation is not supported yet",
}

# What means "off" for a setting that is refused otherwise.
_HARMLESS_VALUES: dict[str, frozenset[str]] = {
    "connections.max.reauth.ms": frozenset({"0"}),
    "remote.log.storage.system.enable": frozenset({"false"}),
}


def _lookup(table: dict[str, str], name: str) -> str | None:
    reason = table.get(name)
    if reason is not None:
        return reason
    return next((text for key, text in table.items() if key.endswith(".") and name.startswith(key)), None)


def reason_without_effect(name: str) -> str | None:
    """Why Kafka's setting `name` does nothing here; None if it isn't one of those."""
    return None if reason_refused(name) else _lookup(_WITHOUT_EFFECT, name)


def reason_refused(name: str) -> str | None:
    """Why Kafka's setting `name` can't be honoured and so must not be given; None if it can or isn't one."""
    return _lookup(_REFUSED, name)


def is_harmless(name: str, text: str) -> bool:
    """Whether `text` leaves off what the refused setting `name` would turn on."""
    stripped = text.strip().lower()
    return not stripped or stripped in _HARMLESS_VALUES.get(name, frozenset())


def nearest_name(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` for an unknown name, or nothing where no known one is like it."""
    nearest = get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"; did you mean {nearest[0]}?" if nearest else ""
