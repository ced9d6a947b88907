"""Broker settings of Kafka that have no effect in tidelog. Some of them are ignored, others are refused.

A file written for Kafka should start a tidelog broker. Therefore a setting that tunes something that tidelog
does not have (threads, KRaft) is ignored, and one warning names it. A setting that users rely on for safety
(TLS, SASL, authorization, policies), or for the place of their data, is refused as long as tidelog cannot
honor it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_KRAFT = "cluster metadata is not kept by KRaft"
_THREADS = "one event loop does this work"
_PURGE = "finished operations are never left in the purgatory"
_TIERED = "there is no tiered storage yet"
_PREALLOCATE = "the space of segments is not reserved"
_LOADING = "shards are read in small pieces, so that the replay of one never holds up the others"

# The reasons, by name or by a prefix that ends with a dot.
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
    "group.consumer.regex.refresh.interval.ms": "patterns are matched again when topics change",
    "group.coordinator.append.linger.ms": "the records of one turn of the event loop are appended together",
    "group.coordinator.background.threads": _THREADS,
    "group.coordinator.cached.buffer.max.bytes": "no buffers are kept for reuse",
    "group.coordinator.threads": _THREADS,
    "group.streams.assignor.offload.enable": "the event loop computes assignments",
    "initial.broker.registration.timeout.ms": _KRAFT,
    "internal.metadata.": _KRAFT,
    "kafka.metrics.": "metrics are served to Prometheus, see tidelog.metrics.listener",
    "log.dir.failure.timeout.ms": "a broker stops as soon as its data directory fails",
    "metadata.": _KRAFT,
    "metric.reporters": "metrics are served to Prometheus, see tidelog.metrics.listener",
    "metrics.": "metrics are served to Prometheus, see tidelog.metrics.listener",
    "num.io.threads": _THREADS,
    "num.network.threads": _THREADS,
    "num.replica.alter.log.dirs.threads": "replicas are not moved between directories yet",
    "offsets.load.buffer.size": _LOADING,
    "offsets.topic.compression.codec": "the records of __consumer_offsets are not compressed",
    "process.roles": _KRAFT,
    "delegation.token.expiry.check.interval.ms": "the creation of a token removes the expired ones",
    "sasl.mechanism.controller.protocol": _KRAFT,
    "producer.purgatory.purge.interval.requests": _PURGE,
    "queued.max.requests": "there is no queue; see tidelog.connection.max.in.flight.requests",
    "remote.": _TIERED,
    "replication.quota.window.": "replication is throttled by a token bucket, which has no samples",
    "server.max.startup.time.ms": _KRAFT,
    "share.coordinator.append.linger.ms": "appends are collected for one turn of the event loop",
    "share.coordinator.cached.buffer.max.bytes": "no buffers are kept for reuse",
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
    "early.start.listeners": "all listeners start when the ACLs are loaded",
    "group.share.persister.class.name": _JAVA,
    "principal.builder.class": _JAVA,
    "remote.log.storage.system.enable": _TIERED,
    "sasl.client.callback.handler.class": _JAVA,
    "sasl.kerberos.": "tidelog has no GSSAPI",
    "sasl.login.": _SASL,
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
    return None if reason_refused(name) else _lookup(_WITHOUT_EFFECT, name)


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
