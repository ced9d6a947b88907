"""Charges each request to the quotas of its client, and holds back a client that is above them.

As in Kafka (KIP-219), the response leaves at once and states `throttle_time_ms`, and the broker then reads
nothing from the connection for that time. A Fetch above the quota gets an empty response. Deviation: the
request time (KIP-124) is the time on the event loop, without the work of other threads.

`MutationQuotas` limits how many partitions a client creates and deletes (KIP-599). As in Kafka, a request in
a recent version gets THROTTLING_QUOTA_EXCEEDED for each topic that is above the quota, and the client sends
it again. Topics of a request in an older version are changed in any case, and the client is throttled
afterwards. Deviation: each broker has a quota of its own. Kafka's controller has one.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.broker.requests.error_responses import item_error, items_of
from tidelog.broker.security.client_quotas import MS_PER_S, ClientSensors, MutationSensor, Sensor
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.cluster.view import CurrentSettings, MetadataView
    from tidelog.broker.requests.request import EncodedBody, Reply, RequestCharge, RequestContext
    from tidelog.broker.security.client_quotas import ClientQuotas
    from tidelog.broker.security.security_snapshot import SecuritySnapshot
    from tidelog.wire.schema import Message

MAX_FETCH_BYTES: Final = 2**31 - 1
"""The most bytes that a Fetch can ask for."""
PERCENT_PER_S: Final = 100.0
"""One second of one thread's time within a second is a request percentage of 100."""
EXEMPT_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.WRITE_TXN_MARKERS})
"""The APIs of brokers and of logins, whose time is not charged."""
_NO_QUOTAS: Final = ClientSensors(None, None, None, None)
MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""The controller refuses to create more partitions with one request."""
_EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
_MESSAGE: Final = "The throttling quota has been exceeded."
_FIRST_STRICT_VERSION: Final[dict[int, int]] = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.CREATE_PARTITIONS: 3,
}
"""The APIs that change topics, with the first version whose clients know THROTTLING_QUOTA_EXCEEDED."""


def now_ms() -> MonotonicMs:
    return MonotonicMs(int(monotonic() * MS_PER_S))


class Charge:
    """The charge of one request."""

    __slots__ = (
        "_began_at",
        "_is_time_charged",
        "_loop_s",
        "_quotas",
        "_request_bytes",
        "_sensors",
        "_throttle_ms",
    )

    def __init__(self, quotas: ClientQuotas, sensors: ClientSensors, request_bytes: int) -> None:
        self._quotas = quotas
        self._sensors = sensors
        self._request_bytes = request_bytes
        self._began_at: float | None = monotonic()  # None while the request waits
        self._loop_s = 0.0
        self._is_time_charged = False
        self._throttle_ms = 0

    def pause(self) -> None:
        """Stops the time of a request that waits."""
        if self._began_at is not None:
            self._loop_s += monotonic() - self._began_at
            self._began_at = None

    def resume(self) -> None:
        """Continues the time of a request."""
        self._began_at = monotonic()

    def timed(self, work: Coroutine[Any, Any, Reply]) -> Coroutine[Any, Any, Reply]:
        """Returns a coroutine that does `work` and counts only the time in which it runs."""
        self.pause()
        return _run(_Timed(self, work))

    @property
    def max_fetch_bytes(self) -> int | None:
        """The most bytes that one response may have so that the client's quota is not exceeded for longer
        than its window, None without a quota.
        """
        fetch = self._sensors.fetch
        if fetch is None:
            return None
        samples = self._quotas.samples
        window_s = max(samples.sample_count - 1, 1) * samples.sample_ms / MS_PER_S
        return int(min(fetch.limit * window_s, MAX_FETCH_BYTES))

    @property
    def is_above_fetch_quota(self) -> bool:
        """Whether the client has used up its quota before this request."""
        fetch = self._sensors.fetch
        return fetch is not None and fetch.rate.throttle_ms(fetch.limit, now_ms()) > 0

    def exceeds_fetch_quota(self, size_bytes: int) -> bool:
        """Charges a response with that many bytes of records. Returns whether the client must get an empty
        response instead, which is then not charged.
        """
        fetch, instant_ms = self._sensors.fetch, now_ms()
        self._charge_time(instant_ms)
        if fetch is not None:
            fetch_ms = fetch.take(size_bytes, instant_ms)
            self._throttle(fetch, fetch_ms)
            if self._throttle_ms:
                fetch.rate.record(-size_bytes, instant_ms)
        return self._throttle_ms > 0

    def fetched(self, size_bytes: int) -> None:
        """Charges a response with that many bytes of records, which is sent in any case."""
        fetch, instant_ms = self._sensors.fetch, now_ms()
        self._charge_time(instant_ms)
        if fetch is not None:
            self._throttle(fetch, fetch.take(size_bytes, instant_ms))

    def answered(self, context: RequestContext, message: Message | EncodedBody) -> Message | EncodedBody:
        """Charges a request whose response is ready. Returns the response with its throttle time, and holds
        the connection back for that time.
        """
        self._settle(context)
        if not self._throttle_ms:
            return message
        context.connection.mute(self._throttle_ms / MS_PER_S)
        return context.route.with_throttle_time(message, self._throttle_ms)

    def not_answered(self, context: RequestContext) -> None:
        """Charges a request that wants no response."""
        self._settle(context)
        if self._throttle_ms:
            context.connection.mute(self._throttle_ms / MS_PER_S)

    @property
    def has_mutation_quota(self) -> bool:
        """Whether the client's changes of topics are limited."""
        return self._sensors.mutation is not None

    def may_mutate(self, partitions: int) -> bool:
        """Charges a change of that many partitions if the client is within its quota, and returns whether it
        is. If not, the client is throttled.
        """
        sensor = self._sensors.mutation
        if sensor is None or not partitions:
            return True
        instant_ms = now_ms()
        throttle_ms = sensor.throttle_ms(instant_ms)
        if throttle_ms:
            self._throttle(sensor, throttle_ms)
        else:
            sensor.take(partitions, instant_ms)
        return not throttle_ms

    def mutate(self, partitions: int) -> None:
        """Charges a change of that many partitions. The client is throttled if it is then above its quota."""
        sensor = self._sensors.mutation
        if sensor is not None and partitions:
            instant_ms = now_ms()
            sensor.take(partitions, instant_ms)
            self._throttle(sensor, sensor.throttle_ms(instant_ms))

    def _settle(self, context: RequestContext) -> None:
        api_key, instant_ms = context.route.api_key, now_ms()
        if api_key in EXEMPT_APIS:
            return
        if not self._is_time_charged:
            self._charge_time(instant_ms)
        produce = self._sensors.produce
        if api_key == ApiKey.PRODUCE and produce is not None:
            self._throttle(produce, produce.take(self._request_bytes, instant_ms))

    def _charge_time(self, instant_ms: MonotonicMs) -> None:
        self._is_time_charged = True
        request = self._sensors.request
        if request is None:
            return
        self.pause()
        throttle_ms = request.take(self._loop_s * PERCENT_PER_S, instant_ms)
        self._throttle(request, min(throttle_ms, self._quotas.samples.sample_ms))

    def _throttle(self, sensor: Sensor | MutationSensor, throttle_ms: int) -> None:
        if throttle_ms:
            sensor.throttles.count += 1
            sensor.throttles.total_ms += throttle_ms
            self._throttle_ms = max(self._throttle_ms, throttle_ms)


class RequestQuotas:
    """The quotas of a broker's clients, as the dispatcher uses them."""

    __slots__ = ("is_enforced", "quotas")

    def __init__(self, quotas: ClientQuotas) -> None:
        self.quotas = quotas
        self.is_enforced = quotas.is_enforced
        """Whether any user or client id has a quota. If not, requests are not charged."""

    def security_changed(self, snapshot: SecuritySnapshot) -> None:
        """Puts the quotas of a new snapshot in force."""
        self.quotas.update(snapshot.quotas)
        self.is_enforced = self.quotas.is_enforced

    def charge(self, context: RequestContext, request_bytes: int) -> Charge | None:
        """Returns the charge of a request, None if its client has no quota."""
        sensors = self.quotas.of_client(context.principal, context.client_id or "", now_ms())
        return None if sensors == _NO_QUOTAS else Charge(self.quotas, sensors, request_bytes)


class _Timed:
    """Runs a coroutine and charges each of its steps."""

    def __init__(self, charge: Charge, work: Coroutine[Any, Any, Any]) -> None:
        self._charge = charge
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        charge, work = self._charge, self._work
        sent: Any = None
        failure: BaseException | None = None
        while True:
            charge.resume()
            try:
                awaited = work.send(sent) if failure is None else work.throw(failure)
            except StopIteration as result:
                return result.value
            finally:
                charge.pause()
            sent, failure = None, None
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - passed on into the coroutine
                failure = error


async def _run(timed: _Timed) -> Reply:
    result: Reply = await timed
    return result


class Split(NamedTuple):
    """A request whose topics are split by the quota of the client: the part that is within it, or None if
    nothing is, and the results of the other topics with the field of the response to which they belong.
    """

    allowed: Any  # the request of the API
    field: str
    results: list[Any]

    def complete(self, response: Any) -> None:
        """Adds the results of the topics that are above the quota."""
        if self.results:
            getattr(response, self.field).extend(self.results)


class MutationQuotas:
    """Charges changes of topics to the quotas of clients."""

    __slots__ = ("_metadata", "_settings")

    def __init__(self, metadata: MetadataView, settings: CurrentSettings) -> None:
        self._metadata = metadata
        self._settings = settings

    def split(self, api_key: int, request: Any, charge: RequestCharge, version: int) -> Split:
        """Charges the topics of a request, and splits it by the quota."""
        first_strict_version = _FIRST_STRICT_VERSION.get(api_key)
        items = items_of(api_key, version)
        if first_strict_version is None or items is None:
            return Split(request, "", [])
        topics = getattr(request, items.asked)
        if version < first_strict_version:
            for topic in topics:
                charge.mutate(self._mutations(api_key, topic))
            return Split(request, "", [])
        allowed: list[Any] = []
        results: list[Any] = []
        for topic in topics:
            if charge.may_mutate(self._mutations(api_key, topic)):
                allowed.append(topic)
            else:
                results.append(item_error(api_key, version, topic, _EXCEEDED, _MESSAGE))
        if not results:
            return Split(request, "", [])
        changed = replace(request, **{items.asked: allowed}) if allowed else None
        return Split(changed, items.answered, results)

    def _mutations(self, api_key: int, topic: Any) -> int:
        """Returns how many partitions the change of a topic creates or deletes; 0 if it must fail."""
        name = topic if isinstance(topic, str) else topic.name
        if name is None:
            name = self._metadata.topic_names.get(topic.topic_id, "")
        known = self._metadata.topics.get(name)
        if api_key == ApiKey.CREATE_TOPICS:
            if known is not None:
                return 0
            stated: int = max(topic.num_partitions, 0)
            added = stated or len(topic.assignments) or self._settings.broker.num_partitions
        elif known is None:
            return 0
        elif api_key == ApiKey.DELETE_TOPICS:
            return len(known.partitions)
        else:
            added = max(topic.count - len(known.partitions), 0)
        return added if added <= MAX_PARTITIONS_PER_REQUEST else 0
