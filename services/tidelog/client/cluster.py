"""The blocking face of the client: a cluster and its brokers, for callers in other threads than its loop.

Admin functions, commands and the console use it. The connections and the Metadata request are those of
`Network`, which producers and consumers use as well. They work in one thread of the process.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from tidelog.client.address import Address
from tidelog.client.calls import Call
from tidelog.client.core.cluster_view import Partition, in_parts
from tidelog.client.core.connection_settings import ConnectionSettings
from tidelog.client.errors import (
    AdvertisedUnreachableError,
    BrokerGoneError,
    ClientError,
    LeaderNotAvailableError,
    UnreachableError,
    raise_on_error,
    topic_error_of,
)
from tidelog.client.security import NO_SECURITY, ClientSecurity
from tidelog.client.shell.connection import AsyncConnection, Reply, VersionRange, choose_version
from tidelog.client.shell.network import Network
from tidelog.client.threads.loop_thread import LoopThread
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseTopic,
)
from tidelog.wire.schema import Message

DEFAULT_TIMEOUT_S: Final = 30.0
RETRY_BACKOFF_S: Final = 0.1
CREATION_WAIT_S: Final = 3.0
R = TypeVar("R", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Broker:
    broker_id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `partitions` are in the order of their indexes."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[Partition, ...]


def holders(topics: Iterable[Topic]) -> set[int]:
    """Returns the brokers that have replicas, whether they are alive or not."""
    return {
        broker_id for topic in topics for partition in topic.partitions for broker_id in partition.replicas
    }


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The brokers that are registered. `controller_id` is the broker for admin requests, which need not be a
    controller; `admin/brokers.py` reads which controllers there are.
    """

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]


class Cluster:
    """A client of one cluster, which opens connections on demand. It is not thread-safe.

    ClientError means that no response arrived; KafkaError means that the response is an error.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tidelog",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """Connects to the first address that answers.

        `timeout_s` limits each attempt to connect, the wait for each response, and all retries of one call.
        A closed cluster stays closed: further calls raise ClosedError.
        """
        self.bootstrap = bootstrap
        self.client_id = client_id
        self.security = security
        self.timeout_s = timeout_s
        self.timeout_ms: int = max(1, round(timeout_s * 1000))
        settings = ConnectionSettings(
            client_id=client_id,
            request_timeout_ms=self.timeout_ms,
            socket_connection_setup_timeout_ms=self.timeout_ms,
            reconnect_backoff_ms=0,  # a caller who tries again does not wait
        )
        self._network = Network(bootstrap, settings, security)
        self._thread = thread_of_calls(os.getpid())
        self._thread.call(self._network.start())

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.home.is_current:
            self._thread.call(self._network.close())

    def any_broker(self) -> BrokerConnection:
        """Returns a connection for requests that any broker can answer."""
        return self._face(self._thread.call(self._network.any_broker()))

    def broker(self, broker_id: int) -> BrokerConnection:
        """Returns the connection to a broker. Raises KafkaError BROKER_NOT_AVAILABLE, ClientError."""
        if broker_id not in self._network.nodes:
            self.describe()
        node = self._network.nodes.get(broker_id)
        if node is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no live broker {broker_id}")
        address = Address(node.host, node.port)
        try:
            return self._face(self._thread.call(self._network.broker(broker_id)))
        except UnreachableError as error:
            if address in self._network.reached:
                raise BrokerGoneError(f"broker {broker_id} no longer answers: {error}") from error
            raise AdvertisedUnreachableError(
                f"broker {broker_id} advertises {address}, which can't be reached: {error}"
            ) from error

    def _face(self, connection: AsyncConnection) -> BrokerConnection:
        return BrokerConnection(self._thread, connection, self.timeout_s)

    def controller(self) -> BrokerConnection:
        """Returns a connection for the controller's requests: to the broker in Metadata, or else to any."""
        controller_id = self.describe().controller_id
        return self.broker(controller_id) if controller_id in self._network.nodes else self.any_broker()

    def describe(self) -> ClusterView:
        """Returns the current brokers and controller."""
        return _view_of(self._ask(()))

    def describe_with_topics(self) -> tuple[ClusterView, dict[str, Topic]]:
        """Returns the current brokers, the controller and all topics by name, with one request."""
        answer = self._ask(None)
        return _view_of(answer), _topics_of(answer)

    def topics(self, names: Iterable[str] | None = None, *, seen_by: int | None = None) -> dict[str, Topic]:
        """Returns the existing ones of the named topics, by name; `names` None means all topics.

        The request goes to the broker `seen_by`, or to any broker. It never creates topics.
        """
        if names is None:
            return _topics_of(self._ask(None, seen_by=seen_by))
        found: dict[str, Topic] = {}
        for part in list(in_parts(names)) or [[]]:
            found |= _topics_of(self._ask(part, seen_by=seen_by))
        return dict(sorted(found.items()))

    def topic(self, name: str, *, creates: bool = False) -> Topic:
        """Returns a topic when all its partitions have leaders, and waits for them until the timeout.

        With `creates`, a broker with auto.create.topics.enable creates a missing topic. Raises KafkaError
        UNKNOWN_TOPIC_OR_PARTITION if the topic does not exist, LEADER_NOT_AVAILABLE at the timeout.
        """
        began_s = time.monotonic()
        while True:
            topic = self._ask((name,), creates=creates).topics[0]
            code = topic.error_code
            waited_s = time.monotonic() - began_s
            if creates and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and waited_s < CREATION_WAIT_S:
                time.sleep(RETRY_BACKOFF_S)  # Kafka also returns this error while it creates the topic
                continue
            if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise topic_error_of(code, name)
            found = _topic_of(topic)
            if found.partitions and not any(p.is_offline for p in found.partitions):
                return found
            if waited_s > self.timeout_s:
                raise LeaderNotAvailableError(f"topic '{name}' has partitions without a leader")
            time.sleep(RETRY_BACKOFF_S)

    def note_reached(self, addresses: Iterable[Address]) -> None:
        """Notes that brokers have answered another client of this process at these addresses."""
        self._network.reached.update(addresses)

    def _ask(
        self, names: Sequence[str] | None, *, creates: bool = False, seen_by: int | None = None
    ) -> MetadataResponse:
        if seen_by is not None:
            self.broker(seen_by)  # its errors name the broker
        answer = self._thread.call(self._network.ask_metadata(names, creates=creates, node_id=seen_by))
        raise_on_error(answer.error_code, "metadata")
        return answer


def _view_of(answer: MetadataResponse) -> ClusterView:
    rows = sorted(answer.brokers, key=lambda row: row.node_id)
    brokers = tuple(Broker(row.node_id, Address(row.host, row.port), row.rack) for row in rows)
    return ClusterView(answer.cluster_id, answer.controller_id, brokers)


def _topics_of(answer: MetadataResponse) -> dict[str, Topic]:
    """Returns the topics that exist, by name. Raises KafkaError."""
    found: dict[str, Topic] = {}
    for topic in answer.topics:
        code = topic.error_code
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            continue
        if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise topic_error_of(code, topic.name or "")
        found[topic.name or ""] = _topic_of(topic)
    return dict(sorted(found.items()))


def _topic_of(topic: MetadataResponseTopic) -> Topic:
    return Topic(
        topic.name or "",
        topic.topic_id,
        topic.is_internal,
        tuple(
            Partition(
                row.partition_index,
                row.leader_id,
                row.leader_epoch,
                tuple(row.replica_nodes),
                tuple(row.isr_nodes),
                tuple(row.offline_replicas),
            )
            for row in sorted(topic.partitions, key=lambda row: row.partition_index)
        ),
    )


class PendingAnswer(NamedTuple):
    """A request whose response has not been read."""

    request: Message
    version: int
    reply: asyncio.Future[Reply]


class BrokerConnection:
    """A connection. A ClientError of `call` or `receive` closes it, except UnsupportedApiError. The pool of a
    cluster closes it if it is not used for minutes, or if its broker has moved.
    """

    def __init__(self, thread: LoopThread, connection: AsyncConnection, timeout_s: float) -> None:
        self.address: Address = connection.address
        self._thread = thread
        self._connection = connection
        self._timeout_s = timeout_s

    @classmethod
    def open(
        cls,
        address: Address,
        *,
        client_id: str = "tidelog",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        security: ClientSecurity = NO_SECURITY,
    ) -> BrokerConnection:
        """Connects outside of a pool, requests the broker's versions and authenticates. `timeout_s` limits
        these and every later response.

        Raises UnreachableError, NotTrustedError, NoAnswerError, ConnectionLostError, NotKafkaError,
        AuthenticationFailedError.
        """
        thread = thread_of_calls(os.getpid())
        opened = AsyncConnection.open(address, client_id=client_id, security=security, timeout_s=timeout_s)
        return cls(thread, thread.call(opened), timeout_s)

    def __enter__(self) -> BrokerConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        async def work() -> None:
            self._connection.close()

        if self._thread.home.is_current and not self.is_closed:
            self._thread.call(work())

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    @property
    def served(self) -> Mapping[int, VersionRange]:
        """The versions that the broker serves, by API key."""
        return self._connection.served.versions

    @property
    def peer_certificate(self) -> bytes | None:
        """The broker's certificate in DER, None if the connection is not encrypted."""
        return self._connection.peer_certificate

    def version_for(self, api_key: int, *, at_least: int = 0, at_most: int | None = None) -> int:
        """Returns the newest version within the bounds that both sides know. Raises UnsupportedApiError."""
        return choose_version(self.served, self.address, api_key, at_least=at_least, at_most=at_most)

    def call(
        self,
        request: Message,
        answer: type[R],
        *,
        at_least: int = 0,
        at_most: int | None = None,
        wait_ms: int = 0,
        timeout_s: float | None = None,
    ) -> R:
        """Sends a request and returns the response. Raises ClientError.

        `wait_ms` is added to the connection's timeout, because the broker may wait that long. `timeout_s`
        replaces the connection's timeout. The caller has to check error codes in the response.
        """
        limit_s = (self._timeout_s if timeout_s is None else timeout_s) + wait_ms / 1000

        async def work() -> Any:
            await self._connection.renew_login(self._timeout_s)
            return await self._connection.call(request, limit_s, at_least=at_least, at_most=at_most)

        return self._run(work(), answer)

    def send(
        self, request: Message, *, at_least: int = 0, at_most: int | None = None, wait_ms: int = 0
    ) -> PendingAnswer:
        """Sends a request that has a response, and does not wait for it. Raises ClientError."""

        async def work() -> PendingAnswer:
            connection = self._connection
            await connection.renew_login(self._timeout_s)
            version = connection.version_for(request, at_least=at_least, at_most=at_most)
            reply = connection.send(request, version, self._timeout_s + wait_ms / 1000)
            # A caller that has lost its connection does not ask for the other responses. Without this look at
            # their errors, asyncio would log each.
            reply.add_done_callback(lambda done: done.cancelled() or done.exception())
            return PendingAnswer(request, version, reply)

        return self._thread.call(work())

    def receive(self, pending: PendingAnswer, answer: type[R]) -> R:
        """Returns the response to a request of `send`. Raises ClientError."""

        async def work() -> Any:
            return self._connection.decode(pending.request, pending.version, await pending.reply)

        return self._run(work(), answer)

    def _run(self, work: Coroutine[Any, Any, Any], answer: type[R]) -> R:
        message = self._thread.call(work)
        assert isinstance(message, answer)
        return message


def until_answered(
    cluster: Cluster,
    ask: Callable[[], T],
    *,
    tolerates: tuple[type[ClientError], ...] = (),
    look_up: Callable[[], None] | None = None,
) -> T:
    """Repeats a call while its error is temporary, until the cluster's timeout. Raises KafkaError and
    ClientError.

    A ClientError is temporary only if it is one of `tolerates`: a command ends where a consumer waits for a
    broker. `look_up` finds the new place of what the call asks for, before each repetition.
    """
    deadline_s = time.monotonic() + cluster.timeout_s
    while True:
        try:
            return ask()
        except (KafkaError, ClientError) as error:
            is_temporary = (
                error.is_retriable if isinstance(error, KafkaError) else isinstance(error, tolerates)
            )
            if not is_temporary or time.monotonic() > deadline_s:
                raise
        time.sleep(RETRY_BACKOFF_S)
        if look_up is not None:
            look_up()


def answer_of(connection: BrokerConnection, call: Call[T]) -> T:
    """Sends a request and returns what the response means. Raises KafkaError, ClientError."""
    answer = connection.call(call.request, call.answer, at_least=call.at_least, at_most=call.at_most)
    return call.read(answer)


@functools.cache
def thread_of_calls(process_id: int) -> LoopThread:
    """Returns the thread in which the blocking calls of a process wait for their responses. A forked child
    does not have its parent's thread. Two threads that ask first at the same time may make one each, which
    harms nothing.
    """
    return LoopThread("tidelog-calls")
