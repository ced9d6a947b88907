"""Connections to the brokers of a cluster, and the locations of its topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final
from uuid import UUID

from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.connection import DEFAULT_TIMEOUT_S, BrokerConnection
from tidelog.client.core.cluster_view import in_parts
from tidelog.client.errors import (
    AdvertisedUnreachableError,
    AuthenticationFailedError,
    BrokerGoneError,
    ClientError,
    LeaderNotAvailableError,
    TopicExistsError,
    UnknownTopicError,
    UnreachableError,
    error_with,
    request_error,
)
from tidelog.client.security import NO_SECURITY, ClientSecurity
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import topic_name_problem
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)


def topic_error_of(code: int, name: str, message: str | None = None) -> KafkaError:
    """Returns the exception for a topic. The most frequent errors have messages of their own."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopicError(f"topic '{name}' does not exist")
    if code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return TopicExistsError(f"topic '{name}' already exists")
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        message = message or topic_name_problem(name)
    return request_error(code, f"topic '{name}'", message)


_OF_A_GROUP: Final[Mapping[int, str]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: "does not exist",
    ErrorCode.NON_EMPTY_GROUP: "has members",
    ErrorCode.INVALID_GROUP_ID: "has an invalid name",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "is not accessible to this user: no ACL allows it",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "has no coordinator at present",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "is still being loaded by its coordinator",
    ErrorCode.NOT_COORDINATOR: "has moved to another coordinator",
}


def group_error_of(code: int, name: str, message: str | None = None) -> KafkaError:
    """Returns the exception for a group. The most frequent errors have messages of their own."""
    sentence = _OF_A_GROUP.get(code)
    if sentence is not None:
        return error_with(ErrorCode(code), f"group '{name}' {sentence}")
    return request_error(code, f"group '{name}'", message)


def raise_on_group_error(code: int, name: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise group_error_of(code, name, message)


def raise_on_error(code: int, subject: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise request_error(code, subject, message)


def raise_on_topic_error(code: int, name: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise topic_error_of(code, name, message)


RETRY_BACKOFF_S: Final = 0.1
CREATION_WAIT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Broker:
    broker_id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. `leader` is -1 if the partition has none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


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

        `timeout_s` limits a connection attempt, the wait for each response, and all retries of one call.
        """
        self._addresses = parse_bootstrap(bootstrap)
        self.bootstrap = bootstrap
        self.client_id = client_id
        self.security = security
        self.timeout_s = timeout_s
        self._connections: dict[int, BrokerConnection] = {}
        self._brokers: dict[int, Broker] = {}
        # The addresses at which brokers have answered. They are at most those of all brokers there have been.
        self._reached: set[Address] = set()
        self._seed = self._connect_first()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._seed.close()

    def any_broker(self) -> BrokerConnection:
        """Returns a connection for requests that any broker can answer."""
        if self._seed.is_closed:
            self._seed = self._connect_first()
        return self._seed

    def broker(self, broker_id: int) -> BrokerConnection:
        """Returns the connection to a broker. Raises KafkaError BROKER_NOT_AVAILABLE, ClientError."""
        connection = self._connections.get(broker_id)
        if connection is not None and not connection.is_closed:
            return connection
        if broker_id not in self._brokers:
            self.describe()
        broker = self._brokers.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no live broker {broker_id}")
        try:
            connection = self._connect(broker.address)
        except UnreachableError as error:
            if broker.address in self._reached:
                raise BrokerGoneError(f"broker {broker_id} no longer answers: {error}") from error
            raise AdvertisedUnreachableError(
                f"broker {broker_id} advertises {broker.address}, which can't be reached: {error}"
            ) from error
        self._connections[broker_id] = connection
        return connection

    def controller(self) -> BrokerConnection:
        """Returns a connection for the controller's requests: to the broker in Metadata, or else to any."""
        controller_id = self.describe().controller_id
        return self.broker(controller_id) if controller_id in self._brokers else self.any_broker()

    def describe(self) -> ClusterView:
        """Returns the current brokers and controller."""
        return self._view_of(self._ask(()))

    def describe_with_topics(self) -> tuple[ClusterView, dict[str, Topic]]:
        """Returns the current brokers, the controller and all topics by name, with one request."""
        answer = self._ask(None)
        return self._view_of(answer), _topics_of(answer)

    def topics(self, names: Iterable[str] | None = None, *, seen_by: int | None = None) -> dict[str, Topic]:
        """Returns the existing ones of the named topics, by name; `names` None means all topics.

        The request goes to the broker `seen_by`, or to any broker. It never creates topics.
        """
        if names is None:
            return _topics_of(self._ask(None, asked=seen_by))
        found: dict[str, Topic] = {}
        for part in list(in_parts(names)) or [[]]:
            found |= _topics_of(self._ask(tuple(part), asked=seen_by))
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
            if found.partitions and all(p.leader != NO_LEADER for p in found.partitions):
                return found
            if waited_s > self.timeout_s:
                raise LeaderNotAvailableError(f"topic '{name}' has partitions without a leader")
            time.sleep(RETRY_BACKOFF_S)

    def note_reached(self, addresses: Iterable[Address]) -> None:
        """Notes that brokers have answered another client of this process at these addresses."""
        self._reached.update(addresses)

    # -- connections and metadata

    def _connect(self, address: Address) -> BrokerConnection:
        connection = BrokerConnection(
            address, client_id=self.client_id, timeout_s=self.timeout_s, security=self.security
        )
        self._reached.add(address)
        return connection

    def _connect_first(self) -> BrokerConnection:
        failures: list[ClientError] = []
        for address in self._addresses:
            try:
                return self._connect(address)
            except AuthenticationFailedError:  # as in Kafka's clients, the next broker is not asked
                raise
            except ClientError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise UnreachableError("no broker answers: " + "; ".join(map(str, failures)))

    def _ask(
        self, names: tuple[str, ...] | None, *, creates: bool = False, asked: int | None = None
    ) -> MetadataResponse:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=creates)
        # Before version 4, a Metadata request could always create the topic.
        connection = self.any_broker() if asked is None else self.broker(asked)
        answer = connection.call(request, MetadataResponse, at_least=4)
        if answer.error_code:
            raise request_error(answer.error_code, "metadata")
        self._brokers = {
            row.node_id: Broker(row.node_id, Address(row.host, row.port), row.rack)
            for row in sorted(answer.brokers, key=lambda row: row.node_id)
        }
        return answer

    def _view_of(self, answer: MetadataResponse) -> ClusterView:
        return ClusterView(answer.cluster_id, answer.controller_id, tuple(self._brokers.values()))


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
