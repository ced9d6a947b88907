"""The clients that push metrics: which metrics, how often, and whether a request comes at the right time.

This is a pure core with the rules of Kafka's `ClientMetricsManager`. Times and ids are arguments. A broker
remembers at most MAX_INSTANCES clients, which share them fairly. The requests of a client that it does not
remember are answered, too; only their times are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID
from zlib import crc32

from tidelog.kernel.instants import MonotonicMs
from tidelog.model.client_metrics import ALL_METRICS, DEFAULT_INTERVAL_MS, MetricsSubscription
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.fair_budget import ANY_TIME_S, NEVER_S, FairBudget, Holding

MAX_INSTANCES: Final = 16_384
"""The clients whose state a broker keeps. It is Kafka's number."""
SILENT_INTERVALS: Final = 3
"""A client that is silent for this many intervals is forgotten."""
COMPRESSION_TYPES: Final = (4, 3, 1, 2)
"""The accepted codecs in the order of preference: zstd, lz4, gzip, snappy. 0, none, is always accepted."""
ZERO_ID: Final = UUID(int=0)


class Plan(NamedTuple):
    """The metrics that a client pushes, and how often. The id changes whenever the rest does."""

    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


class ClientInstance:
    """One client that asked for its subscription or pushed metrics. `place` is its part of the budget."""

    __slots__ = (
        "attributes",
        "has_ended",
        "has_pushed",
        "heard_ms",
        "instance_id",
        "is_forgiven",
        "place",
        "plan",
        "version",
    )

    def __init__(
        self, instance_id: UUID, attributes: Mapping[str, str], plan: Plan, version: int, place: Holding
    ) -> None:
        self.instance_id = instance_id
        self.place = place
        self.attributes = attributes
        self.plan = plan
        self.version = version  # of the subscriptions from which the plan was made
        self.heard_ms: MonotonicMs | None = None
        self.is_forgiven = False  # the next request may come early, because the last one was refused
        self.has_pushed = False
        """Whether the client has pushed since it asked. The first push may be early (KIP-714)."""
        self.has_ended = False

    def is_early(self, now_ms: MonotonicMs) -> bool:
        return (
            self.heard_ms is not None
            and not self.is_forgiven
            and now_ms - self.heard_ms < self.plan.interval_ms
        )


class ClientInstances:
    """The clients of one broker and the subscriptions of the cluster."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.places = FairBudget(MAX_INSTANCES, stalled_s=NEVER_S)
        self._instances: dict[UUID, ClientInstance] = {}
        self._subscriptions: tuple[MetricsSubscription, ...] = ()
        self._version = 0

    def __len__(self) -> int:
        return len(self._instances)

    def set_subscriptions(self, subscriptions: Sequence[MetricsSubscription]) -> None:
        """Replaces the subscriptions. Clients learn their new ones at their next request."""
        self._subscriptions = tuple(subscriptions)
        self._version += 1

    def ask(
        self, instance_id: UUID, new_id: UUID, owner: str, attributes: Mapping[str, str], now_ms: MonotonicMs
    ) -> ClientInstance:
        """Returns the client of a GetTelemetrySubscriptions. A client without an id becomes `new_id`. `owner`
        is its key in fair budgets.

        Raises KafkaError(THROTTLING_QUOTA_EXCEEDED) if it asks before its interval is over.
        """
        instance = self._find(new_id if instance_id == ZERO_ID else instance_id, owner, attributes)
        if instance.is_early(now_ms):
            raise _early(instance)
        instance.heard_ms, instance.is_forgiven, instance.has_ended = now_ms, False, False
        instance.has_pushed = False
        return instance

    def take_push(
        self,
        instance_id: UUID,
        owner: str,
        attributes: Mapping[str, str],
        subscription_id: int,
        compression: int,
        size: int,
        now_ms: MonotonicMs,
        *,
        is_last: bool,
    ) -> ClientInstance:
        """Returns the client of a PushTelemetry whose metrics the broker takes.

        Raises KafkaError: INVALID_REQUEST (no id, or the client has ended), THROTTLING_QUOTA_EXCEEDED,
        UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE.
        """
        if instance_id == ZERO_ID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The client instance id is missing.")
        instance = self._find(instance_id, owner, attributes)
        if instance.has_ended:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The client instance is terminating already.")
        if instance.is_early(now_ms) and instance.has_pushed and not is_last:
            raise _early(instance)
        instance.has_pushed = True
        instance.heard_ms, instance.is_forgiven, instance.has_ended = now_ms, False, is_last
        if subscription_id != instance.plan.subscription_id:
            instance.is_forgiven = True
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "The subscription has changed.")
        if compression and compression not in COMPRESSION_TYPES:
            instance.is_forgiven = True
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown codec {compression}.")
        if size > self.max_bytes:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, f"More than {self.max_bytes} bytes of metrics.")
        return instance

    def forget_silent(self, now_ms: MonotonicMs) -> None:
        """Removes the clients that were silent for SILENT_INTERVALS."""
        silent = [
            instance.instance_id
            for instance in self._instances.values()
            if instance.heard_ms is not None
            and now_ms - instance.heard_ms > SILENT_INTERVALS * instance.plan.interval_ms
        ]
        for instance_id in silent:
            self.places.forget(self._instances.pop(instance_id).place, ANY_TIME_S)

    def _find(self, instance_id: UUID, owner: str, attributes: Mapping[str, str]) -> ClientInstance:
        known = self._instances.get(instance_id)
        if known is not None and known.version == self._version:
            return known
        told = {**attributes, "client_instance_id": str(instance_id)}
        plan = _plan(instance_id, [each for each in self._subscriptions if each.matches(told)])
        if known is None:
            place = Holding(lambda: self._instances.pop(instance_id))
            known = ClientInstance(instance_id, told, plan, self._version, place)
            if self.places.resize(place, owner, 1, ANY_TIME_S):
                self._instances[instance_id] = known
        else:
            known.is_forgiven = known.is_forgiven or known.plan != plan
            known.plan, known.version = plan, self._version
        return known


def _plan(instance_id: UUID, subscriptions: Iterable[MetricsSubscription]) -> Plan:
    """Returns what a client with these subscriptions pushes: all their metrics, at the shortest interval."""
    metrics: dict[str, None] = {}
    interval_ms = None
    for subscription in subscriptions:
        metrics.update(dict.fromkeys(subscription.metrics))
        interval_ms = min(interval_ms or subscription.interval_ms, subscription.interval_ms)
    names = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
    interval_ms = interval_ms or DEFAULT_INTERVAL_MS
    checksum = crc32(f"{instance_id}/{interval_ms}/{','.join(names)}".encode())
    return Plan(checksum - (1 << 32) if checksum >= 1 << 31 else checksum, names, interval_ms)


def _early(instance: ClientInstance) -> KafkaError:
    return KafkaError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        f"Client instance {instance.instance_id} asks before its interval of {instance.plan.interval_ms} ms"
        " is over.",
    )
