"""The brokers of a cluster and where its topics are: connections are made when needed and kept."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final
from uuid import UUID

from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.answers import error_of, topic_error_of
from tidelog.client.connection import DEFAULT_TIMEOUT_S, BrokerConnection
from tidelog.client.errors import AdvertisedUnreachableError, ClientError, UnreachableError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

NO_LEADER: Final = -1
RETRY_BACKOFF_S: Final = 0.1
CREATION_WAIT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Broker:
    broker_id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True)
class Partition:
    """`leader` is -1 while there is none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """`partitions` are in order of their index."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]


class Cluster:
    """Not thread-safe. ClientError means that there was no answer, KafkaError that the answer is an error."""

    def __init__(
        self, bootstrap: str, *, client_id: str = "tidelog", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Connects to the first address that answers.

        `timeout_s` is for connecting, for each answer, and for all retries of one call.
        """
        self._bootstrap = parse_bootstrap(bootstrap)
        self._client_id = client_id
        self.timeout_s = timeout_s
        self._connections: dict[int, BrokerConnection] = {}
        self._brokers: dict[int, Broker] = {}
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
        """A connection for what any broker can answer."""
        if self._seed.is_closed:
            self._seed = self._connect_first()
        return self._seed

    def broker(self, broker_id: int) -> BrokerConnection:
        """The connection to one broker. KafkaError BROKER_NOT_AVAILABLE if there is no such broker."""
        connection = self._connections.get(broker_id)
        if connection is not None and not connection.is_closed:
            return connection
        if broker_id not in self._brokers:
            self.describe()
        broker = self._brokers.get(broker_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {broker_id} that is alive"
            )
        try:
            connection = self._connect(broker.address)
        except UnreachableError as error:
            raise AdvertisedUnreachableError(
                f"broker {broker_id} tells its clients to come to {broker.address}, but: {error}"
            ) from error
        self._connections[broker_id] = connection
        return connection

    def controller(self) -> BrokerConnection:
        """For what brokers pass on to the controller: the broker that Metadata names, else any."""
        controller_id = self.describe().controller_id
        return self.broker(controller_id) if controller_id in self._brokers else self.any_broker()

    def describe(self) -> ClusterView:
        """Brokers and controller as of now."""
        answer = self._ask(())
        return ClusterView(answer.cluster_id, answer.controller_id, tuple(self._brokers.values()))

    def topics(self, names: Iterable[str] | None = None, *, seen_by: int | None = None) -> dict[str, Topic]:
        """The named topics that exist, None for all, by name, as the broker `seen_by` or any sees them.
        Nothing is created.
        """
        answer = self._ask(None if names is None else tuple(names), asked=seen_by)
        found: dict[str, Topic] = {}
        for topic in answer.topics:
            code = topic.error_code
            if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                continue
            if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise topic_error_of(code, topic.name or "")
            found[topic.name or ""] = _topic_of(topic)
        return dict(sorted(found.items()))

    def topic(self, name: str, *, creates: bool = False) -> Topic:
        """One topic whose partitions all have leaders; waits for them up to the timeout.

        `creates`: a broker with auto.create.topics.enable makes a missing one (that takes a bit). KafkaError
        UNKNOWN_TOPIC_OR_PARTITION if it does not exist, LEADER_NOT_AVAILABLE if leaders stay absent.
        """
        began_s = time.monotonic()
        while True:
            topic = self._ask((name,), creates=creates).topics[0]
            code = topic.error_code
            waited_s = time.monotonic() - began_s
            if creates and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and waited_s < CREATION_WAIT_S:
                time.sleep(RETRY_BACKOFF_S)  # Kafka says so too while the topic is being made
                continue
            if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise topic_error_of(code, name)
            found = _topic_of(topic)
            if found.partitions and all(p.leader != NO_LEADER for p in found.partitions):
                return found
            if waited_s > self.timeout_s:
                raise KafkaError(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"topic '{name}' has partitions without a leader"
                )
            time.sleep(RETRY_BACKOFF_S)

    # -- below: connections and metadata

    def _connect(self, address: Address) -> BrokerConnection:
        return BrokerConnection(address, client_id=self._client_id, timeout_s=self.timeout_s)

    def _connect_first(self) -> BrokerConnection:
        failures: list[ClientError] = []
        for address in self._bootstrap:
            try:
                return self._connect(address)
            except ClientError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise UnreachableError("none of the brokers answers: " + "; ".join(map(str, failures)))

    def _ask(
        self, names: tuple[str, ...] | None, *, creates: bool = False, asked: int | None = None
    ) -> MetadataResponse:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=creates)
        # From version 4 on: before, asking for a topic could always create it.
        connection = self.any_broker() if asked is None else self.broker(asked)
        answer = connection.call(request, MetadataResponse, at_least=4)
        if answer.error_code:
            raise error_of(answer.error_code, "metadata")
        self._brokers = {
            row.node_id: Broker(row.node_id, Address(row.host, row.port), row.rack)
            for row in sorted(answer.brokers, key=lambda row: row.node_id)
        }
        return answer


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
