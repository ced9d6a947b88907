"""Finds the quotas of a client and counts what the client uses (KIP-55, KIP-124, KIP-546, KIP-599).

Pure: the caller passes the time. A quota applies to a broker, as in Kafka: a client that uses three brokers
may have three times its quota. The rates and the time for which a client above its limit must wait are those
of Kafka's `Rate`, `SampledStat` and `QuotaUtils`.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.kernel.instants import MonotonicMs
from tidelog.model.topics import MAX_REMEMBERED_NAME_CHARS

if TYPE_CHECKING:
    from tidelog.metadata.entries import ClientQuotaEntry
    from tidelog.model.acl import Principal
    from tidelog.settings.broker_settings import BrokerSettings

MAX_SENSORS: Final = 10_000
"""The sensors of a broker. A further one replaces those that count nothing now, or else some others."""
ROOM_SHARE: Final = 4
"""A quarter of the sensors is removed at a time, so that the search for them is rare."""
MAX_KNOWN_CLIENTS: Final = 10_000
"""The pairs of user and client id whose quotas a broker remembers."""
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_ANY: Final = ""
"""Stands for the part that an entity does not have. No user and no client id of an entity is empty."""
MS_PER_S: Final = 1000
MAX_THROTTLE_MS: Final = 2**31 - 1
"""The longest throttle time that a response can state, in ms. The time until a client is within a tiny limit
may be no finite number.
"""


class QuotaKind(StrEnum):
    """The kinds of quotas of users and client ids, by Kafka's names of their settings."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"


class Quota(NamedTuple):
    """The limit of a client. All connections with this user and client id share it. An empty name matches
    every name.
    """

    user: str
    client_id: str
    limit: float


class QuotaLimits:
    """The quotas of one snapshot, which finds the quota of a client without a search."""

    def __init__(self, entries: Mapping[str, ClientQuotaEntry]) -> None:
        self._entries: Mapping[str, ClientQuotaEntry] = {}
        self._by_kind: dict[QuotaKind, dict[tuple[str | None, str | None], float]] = {}
        self._connection_rates: dict[str | None, float] = {}
        self._client_ids: Counter[str | None] = Counter()
        self.update(entries)

    def update(self, entries: Mapping[str, ClientQuotaEntry]) -> None:
        """Takes the quotas of another snapshot. Entries that are the same objects as before cost little."""
        before, self._entries = self._entries, entries
        for key in before.keys() - entries.keys():
            self._remove(before[key])
        for key, entry in entries.items():
            known = before.get(key)
            if known is entry:
                continue
            if known is not None:
                self._remove(known)
            self._add(entry)

    def _add(self, entry: ClientQuotaEntry) -> None:
        parts = dict(entry.entity.parts)
        if _IP in parts:
            for limit in entry.values.values():
                self._connection_rates[parts[_IP]] = limit
            return
        entity = (parts.get(_USER, _ANY), parts.get(_CLIENT_ID, _ANY))
        self._client_ids[entity[1]] += 1
        for name, limit in entry.values.items():
            self._by_kind.setdefault(QuotaKind(name), {})[entity] = limit

    def _remove(self, entry: ClientQuotaEntry) -> None:
        parts = dict(entry.entity.parts)
        if _IP in parts:
            self._connection_rates.pop(parts[_IP], None)
            return
        entity = (parts.get(_USER, _ANY), parts.get(_CLIENT_ID, _ANY))
        self._client_ids[entity[1]] -= 1
        if not self._client_ids[entity[1]]:
            del self._client_ids[entity[1]]
        for kind in map(QuotaKind, entry.values):
            limits = self._by_kind[kind]
            del limits[entity]
            if not limits:
                del self._by_kind[kind]

    @property
    def is_empty(self) -> bool:
        """Whether no user and no client id has a quota."""
        return not self._by_kind

    def names(self, client_id: str) -> bool:
        """Returns whether a quota is for this client id."""
        return client_id in self._client_ids

    def connection_rate(self, host: str) -> float | None:
        """Returns the connections per second that an address may open, None without a quota (KIP-612)."""
        return self._connection_rates.get(host, self._connection_rates.get(None))

    def find(self, kind: QuotaKind, user: str, client_id: str) -> Quota | None:
        """Returns the quota of a client: that of the most specific entity that has one."""
        limits = self._by_kind.get(kind)
        if limits is None:
            return None
        for entity in _entities(user, client_id):
            limit = limits.get(entity)
            if limit is not None:
                shared_by_user, shared_by_client = entity
                return Quota(
                    _ANY if shared_by_user == _ANY else user,
                    _ANY if shared_by_client == _ANY else client_id,
                    limit,
                )
        return None


def _entities(user: str, client_id: str) -> Iterator[tuple[str | None, str | None]]:
    """Yields the entities to which a client belongs in the order of KIP-55. None is the default of a type.
    A client without an id has no quota of a client id.
    """
    if client_id:
        yield user, client_id
        yield user, None
    yield user, _ANY
    if client_id:
        yield None, client_id
        yield None, None
    yield None, _ANY
    if client_id:
        yield _ANY, client_id
        yield _ANY, None


class Samples(NamedTuple):
    """The number and the length of the samples over which rates are measured: `quota.window.num` and
    `quota.window.size.seconds`, or `controller.quota.window.num` and `.size.seconds`.
    """

    sample_count: int
    sample_ms: int

    @classmethod
    def of_clients(cls, settings: BrokerSettings) -> Samples:
        """Returns the samples of bytes and request time."""
        return cls(settings.quota_window_num, settings.quota_window_size_seconds * MS_PER_S)

    @classmethod
    def of_mutations(cls, settings: BrokerSettings) -> Samples:
        """Returns the samples of topic changes."""
        return cls(
            settings.controller_quota_window_num, settings.controller_quota_window_size_seconds * MS_PER_S
        )


class WindowedRate:
    """The rate of a quantity over the last `sample_count` samples of `sample_ms` each.

    Until `sample_count - 1` samples have passed, the rate is that over as many samples, so that the first
    requests of a client do not count as a high rate.
    """

    __slots__ = ("_min_window_ms", "_sample_count", "_sample_ms", "_samples", "_total")

    def __init__(self, sample_count: int, sample_ms: int) -> None:
        self._sample_count = sample_count
        self._sample_ms = sample_ms
        self._min_window_ms = max(sample_count - 1, 1) * sample_ms
        self._samples: deque[tuple[MonotonicMs, float]] = deque()  # the start of each sample, and its sum
        self._total = 0.0

    def record(self, value: float, now_ms: MonotonicMs) -> None:
        """Adds a value, which may be negative in order to take back an earlier one."""
        self._expire(now_ms)
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._sample_ms:
            started_ms, total = samples[-1]
            samples[-1] = (started_ms, total + value)
        else:
            samples.append((now_ms, value))
        self._total += value

    def per_s(self, now_ms: MonotonicMs) -> float:
        """Returns the rate per second."""
        self._expire(now_ms)
        return self._total * MS_PER_S / self._window_ms(now_ms)

    def seen_per_s(self, now_ms: MonotonicMs) -> float:
        """Returns the rate per second, approximately, and changes nothing. Any thread may call it."""
        samples, age_ms = tuple(self._samples), self._sample_count * self._sample_ms
        recent = [(started_ms, total) for started_ms, total in samples if now_ms - started_ms < age_ms]
        if not recent:
            return 0.0
        window_ms = max(now_ms - recent[0][0], self._min_window_ms)
        return sum(total for _, total in recent) * MS_PER_S / window_ms

    def throttle_ms(self, limit_per_s: float, now_ms: MonotonicMs) -> int:
        """Returns the time after which the rate is within the limit if nothing is recorded, 0 if it is now.
        It is at most MAX_THROTTLE_MS.

        This is `QuotaUtils.throttleTime`.
        """
        rate = self.per_s(now_ms)
        if rate <= limit_per_s:
            return 0
        return round(min((rate - limit_per_s) / limit_per_s * self._window_ms(now_ms), MAX_THROTTLE_MS))

    def is_idle(self, now_ms: MonotonicMs) -> bool:
        """Returns whether nothing was recorded within the window."""
        self._expire(now_ms)
        return not self._samples

    def _window_ms(self, now_ms: MonotonicMs) -> int:
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        return max(elapsed_ms, self._min_window_ms)

    def _expire(self, now_ms: MonotonicMs) -> None:
        samples, age_ms = self._samples, self._sample_count * self._sample_ms
        while samples and now_ms - samples[0][0] >= age_ms:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0  # without the rounding errors of the sums


class MutationBucket:
    """Kafka's `TokenBucket` (KIP-599): a client may change topics while tokens are left, and the changes of
    one request may exceed them. A full bucket has the tokens of all samples.
    """

    __slots__ = ("_burst_s", "_is_new", "_tokens", "_updated_ms")

    def __init__(self, sample_count: int, sample_ms: int) -> None:
        self._burst_s = sample_count * sample_ms / MS_PER_S
        self._tokens = 0.0
        self._updated_ms = MonotonicMs(0)
        self._is_new = True

    def record(self, mutations: int, limit_per_s: float, now_ms: MonotonicMs) -> None:
        """Takes tokens for changes of that many partitions."""
        self._refill(limit_per_s, now_ms)
        self._tokens -= mutations

    def throttle_ms(self, limit_per_s: float, now_ms: MonotonicMs) -> int:
        """Returns the time after which tokens are left, 0 if there are some now. It is at most
        MAX_THROTTLE_MS.
        """
        self._refill(limit_per_s, now_ms)
        if self._tokens >= 0:
            return 0
        return round(min(-self._tokens * MS_PER_S / limit_per_s, MAX_THROTTLE_MS))

    def is_idle(self, limit_per_s: float, now_ms: MonotonicMs) -> bool:
        """Returns whether the bucket is full, so that nothing is lost if it is forgotten."""
        self._refill(limit_per_s, now_ms)
        return self._tokens >= limit_per_s * self._burst_s

    def _refill(self, limit_per_s: float, now_ms: MonotonicMs) -> None:
        full = limit_per_s * self._burst_s
        if self._is_new:
            self._is_new = False
            self._tokens = full
        else:
            self._tokens = min(self._tokens + (now_ms - self._updated_ms) * limit_per_s / MS_PER_S, full)
        self._updated_ms = now_ms


class Throttles:
    """Counts how often clients were throttled for one kind of quota, and for how long."""

    __slots__ = ("count", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0


class Sensor:
    """Counts what the sharers of one quota use. The limit may change while it counts."""

    __slots__ = ("limit", "rate", "throttles")

    def __init__(self, limit: float, samples: Samples, throttles: Throttles) -> None:
        self.limit = limit
        self.rate = WindowedRate(*samples)
        self.throttles = throttles

    def take(self, value: float, now_ms: MonotonicMs) -> int:
        """Records a value. Returns the time in ms for which the client must wait, 0 if within the quota."""
        self.rate.record(value, now_ms)
        return self.rate.throttle_ms(self.limit, now_ms)


class MutationSensor:
    """Counts the partitions that the sharers of one quota create and delete."""

    __slots__ = ("bucket", "limit", "throttles")

    def __init__(self, limit: float, samples: Samples, throttles: Throttles) -> None:
        self.limit = limit
        self.bucket = MutationBucket(*samples)
        self.throttles = throttles

    def take(self, mutations: int, now_ms: MonotonicMs) -> None:
        """Records changes of that many partitions."""
        self.bucket.record(mutations, self.limit, now_ms)

    def throttle_ms(self, now_ms: MonotonicMs) -> int:
        """Returns the time in ms for which the client must wait, 0 if it may change topics now."""
        return self.bucket.throttle_ms(self.limit, now_ms)


class ClientSensors(NamedTuple):
    """The sensors of one client; None where it has no quota."""

    produce: Sensor | None
    fetch: Sensor | None
    request: Sensor | None
    mutation: MutationSensor | None


class Usage(NamedTuple):
    """The use of a quota per second by those who share it, and its limit."""

    kind: QuotaKind
    user: str
    client_id: str
    rate: float
    limit: float


_SensorKey = tuple[QuotaKind, str, str]


class ClientQuotas:
    """The quotas and the use of all clients of one broker."""

    def __init__(self, samples: Samples, mutation_samples: Samples) -> None:
        self.is_enforced = False
        """Whether any user or client id has a quota. If not, callers need not ask about a client."""
        self.limits = QuotaLimits({})
        self._entries: Mapping[str, ClientQuotaEntry] | None = None
        self.samples = samples
        self.throttles = {kind: Throttles() for kind in QuotaKind}
        self._mutation_samples = mutation_samples
        self._known: dict[tuple[Principal, str], ClientSensors] = {}
        self._sensors: dict[_SensorKey, Sensor | MutationSensor] = {}

    def update(self, entries: Mapping[str, ClientQuotaEntry]) -> None:
        """Puts the quotas of a new snapshot in force. What clients have used remains counted."""
        if entries is self._entries:
            return  # another part of the snapshot has changed
        self._entries = entries
        self.limits.update(entries)
        self.is_enforced = not self.limits.is_empty
        self._known.clear()
        if not self.is_enforced:
            self._sensors.clear()

    def of_client(self, principal: Principal, client_id: str, now_ms: MonotonicMs) -> ClientSensors:
        """Returns the sensors of a client."""
        if len(client_id) > MAX_REMEMBERED_NAME_CHARS and not self.limits.names(client_id):
            client_id = _abbreviated(client_id)
        known = self._known.get((principal, client_id))
        if known is None:
            if len(self._known) >= MAX_KNOWN_CLIENTS:
                self._known.clear()
            user = principal.partition(":")[2]
            known = ClientSensors(
                self._sensor(QuotaKind.PRODUCE, user, client_id, now_ms),
                self._sensor(QuotaKind.FETCH, user, client_id, now_ms),
                self._sensor(QuotaKind.REQUEST, user, client_id, now_ms),
                self._mutation_sensor(user, client_id, now_ms),
            )
            self._known[principal, client_id] = known
        return known

    def busiest(self, count: int, now_ms: MonotonicMs) -> list[Usage]:
        """Returns the use of the sensors that are nearest to their limit. Any thread may call it."""
        found = [
            Usage(*key, sensor.rate.seen_per_s(now_ms), sensor.limit)
            for key, sensor in tuple(self._sensors.items())
            if isinstance(sensor, Sensor)
        ]
        return heapq.nlargest(count, found, key=lambda usage: usage.rate / usage.limit)

    @property
    def sensor_count(self) -> int:
        return len(self._sensors)

    def _sensor(self, kind: QuotaKind, user: str, client_id: str, now_ms: MonotonicMs) -> Sensor | None:
        quota = self.limits.find(kind, user, client_id)
        if quota is None:
            return None
        key = (kind, quota.user, quota.client_id)
        sensor = self._sensors.get(key)
        if not isinstance(sensor, Sensor):
            self._make_room(now_ms)
            sensor = self._sensors[key] = Sensor(quota.limit, self.samples, self.throttles[kind])
        sensor.limit = quota.limit
        return sensor

    def _mutation_sensor(self, user: str, client_id: str, now_ms: MonotonicMs) -> MutationSensor | None:
        quota = self.limits.find(QuotaKind.MUTATION, user, client_id)
        if quota is None:
            return None
        key = (QuotaKind.MUTATION, quota.user, quota.client_id)
        sensor = self._sensors.get(key)
        if not isinstance(sensor, MutationSensor):
            self._make_room(now_ms)
            sensor = self._sensors[key] = MutationSensor(
                quota.limit, self._mutation_samples, self.throttles[QuotaKind.MUTATION]
            )
        sensor.limit = quota.limit
        return sensor

    def _make_room(self, now_ms: MonotonicMs) -> None:
        """Removes sensors if there are too many: those that count nothing now. If these are few, it also
        removes others, and begins with those of client ids, because a client may choose any number of ids.
        """
        if len(self._sensors) < MAX_SENSORS:
            return
        removed = [key for key, sensor in self._sensors.items() if _is_idle(sensor, now_ms)]
        if len(removed) < MAX_SENSORS // ROOM_SHARE:
            removed = sorted(self._sensors, key=lambda key: not key[2])[: MAX_SENSORS // ROOM_SHARE]
        for key in removed:
            del self._sensors[key]
        self._known.clear()  # they refer to sensors that no longer exist


def _abbreviated(client_id: str) -> str:
    """Returns a short text for a long client id, which stands for no other id."""
    digest = hashlib.sha256(client_id.encode()).hexdigest()
    return f"{client_id[: MAX_REMEMBERED_NAME_CHARS - len(digest)]}{digest}"


def _is_idle(sensor: Sensor | MutationSensor, now_ms: MonotonicMs) -> bool:
    if isinstance(sensor, MutationSensor):
        return sensor.bucket.is_idle(sensor.limit, now_ms)
    return sensor.rate.is_idle(now_ms)
