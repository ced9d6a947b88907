"""The connections of one client to the brokers of a cluster, and its Metadata request.

`tidelog.client.cluster` is its face for blocking callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.core.cluster_view import (
    MetadataReceived,
    Node,
    PartitionLeader,
    TopicView,
    in_parts,
)
from tidelog.client.core.connection_settings import BOOTSTRAP, ConnectionSettings, Properties, security_texts
from tidelog.client.errors import (
    AuthenticationFailedError,
    ClientError,
    ClosedError,
    NoAnswerError,
    UnreachableError,
)
from tidelog.client.security import NO_SECURITY, ClientSecurity, parse_security
from tidelog.client.shell.connection import AsyncConnection
from tidelog.client.shell.tasks import HomeProcess
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.wire.schema import Message

IDLE_CHECK_S: Final = 1.0
_METADATA_SINCE: Final = 4
"""The first version in which a Metadata request says whether it may create topics."""


class Network:
    """Opens connections on demand and closes unused ones. A node can have several, one for each `lane`."""

    def __init__(
        self, bootstrap: str, settings: ConnectionSettings, security: ClientSecurity = NO_SECURITY
    ) -> None:
        """Raises BadAddressError."""
        self._bootstrap = parse_bootstrap(bootstrap)
        self.home: HomeProcess = HomeProcess("client")
        self._settings = settings
        self._security = security
        self.nodes: dict[int, Node] = {}
        self.reached: set[Address] = set()
        """The addresses at which brokers have answered."""
        self._connections: dict[tuple[int, str], AsyncConnection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[AsyncConnection]] = {}
        self._seed: AsyncConnection | None = None
        self._seed_lock = asyncio.Lock()
        self._backoff = settings.reconnect_backoff(random.random)
        self._attempts: dict[int, int] = {}
        self._not_before_s: dict[int, float] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._is_closed = False
        self.timeout_s: float = settings.request_timeout_ms / 1000

    @classmethod
    def of(
        cls,
        bootstrap: str,
        properties: Properties,
        settings: ConnectionSettings,
        security: ClientSecurity | None = None,
    ) -> Network:
        """Returns the network of a client with these properties. `bootstrap` and `security` precede them.
        Raises BadAddressError, SecurityConfigError.
        """
        return cls(
            bootstrap or str(properties.get(BOOTSTRAP, "")),
            settings,
            parse_security(security_texts(properties)) if security is None else security,
        )

    async def start(self) -> None:
        """Connects to the first address that answers. Raises ClientError; in a forked child, ClosedError."""
        self._is_closed = False
        await self.any_broker()
        self._keeper = asyncio.create_task(self._close_idle())

    async def close(self) -> None:
        """Closes all connections. Calls that still want one raise ClosedError."""
        self._is_closed = True
        keeper, self._keeper = self._keeper, None
        tasks = [task for task in (keeper, *self._opening.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in (*self._connections.values(), self._seed):
            if connection is not None:
                connection.close()
        self._connections.clear()
        self._seed = None

    def ready(self, node_id: int, lane: str = "") -> AsyncConnection | None:
        """Returns the open connection to a broker, None if `broker` has to open it or to log in again."""
        found = self._connections.get((node_id, lane))
        return None if found is None or found.is_closed or found.must_renew_login else found

    async def broker(self, node_id: int, lane: str = "") -> AsyncConnection:
        """Returns a connection to a broker, after a pause if the last attempt failed. Raises ClientError."""
        self.home.check()
        found = self._connections.get((node_id, lane))
        if found is not None and not found.is_closed:
            await found.renew_login(self.timeout_s)
            return found
        key = (node_id, lane)
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._open(node_id, lane))
            task.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(task)

    async def any_broker(self) -> AsyncConnection:
        """Returns a connection for requests that any broker answers. Raises ClientError."""
        self.home.check()
        async with self._seed_lock:
            if self._seed is not None and not self._seed.is_closed:
                await self._seed.renew_login(self.timeout_s)
                return self._seed
            known = [Address(node.host, node.port) for node in self.nodes.values()]
            # A cluster may advertise addresses that lead nowhere, through a tunnel for example. Those that
            # have answered come first, and those that have not after the ones of the user.
            known = random.sample(known, len(known))
            reached = [address for address in known if address in self.reached]
            failures: list[ClientError] = []
            for address in dict.fromkeys((*reached, *self._bootstrap, *known)):
                try:
                    self._seed = await self._connect(address)
                    return self._seed
                except AuthenticationFailedError:  # as in Kafka's clients, the next broker is not asked
                    raise
                except ClientError as error:
                    failures.append(error)
            if len(failures) == 1:
                raise failures[0]
            is_silence = all(isinstance(failure, NoAnswerError) for failure in failures)
            kind = NoAnswerError if is_silence else UnreachableError
            raise kind("no broker answers: " + "; ".join(map(str, failures)))

    async def call_any(self, request: Message) -> Any:
        """Sends a request to any broker and returns the response. Raises ClientError."""
        connection = await self.any_broker()
        return await connection.call(request, self.timeout_s)

    async def metadata(self, topics: Iterable[str] | None, *, creates: bool = False) -> MetadataReceived:
        """Returns the metadata of these topics, None for all. Raises ClientError."""
        if topics is None:
            return _received(await self.ask_metadata(None, creates=creates))
        answers = [await self.ask_metadata(part, creates=creates) for part in list(in_parts(topics)) or [[]]]
        parts = [_received(answer) for answer in answers]
        return parts[-1]._replace(topics=tuple(topic for part in parts for topic in part.topics))

    async def ask_metadata(
        self, topics: Sequence[str] | None, *, creates: bool = False, node_id: int | None = None
    ) -> MetadataResponse:
        """Requests the metadata of these topics, None for all, from a broker or from any, and takes the
        brokers of the response. Raises ClientError.
        """
        rows = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        connection = await (self.any_broker() if node_id is None else self.broker(node_id))
        answer: MetadataResponse = await connection.call(
            MetadataRequest(rows, creates), self.timeout_s, at_least=_METADATA_SINCE
        )
        self._learn_nodes(tuple(Node(row.node_id, row.host, row.port, row.rack) for row in answer.brokers))
        return answer

    def learn_node(self, node_id: int, host: str, port: int) -> None:
        """Takes the address of a broker that a response names."""
        if node_id not in self.nodes:
            self.nodes[node_id] = Node(node_id, host, port)

    def _learn_nodes(self, nodes: tuple[Node, ...]) -> None:
        if not nodes:
            return
        known, self.nodes = self.nodes, {node.node_id: node for node in nodes}
        for key, connection in self._connections.items():
            if key[0] in known and known[key[0]] != self.nodes.get(key[0]):
                connection.close()  # the broker has moved

    async def _connect(self, address: Address) -> AsyncConnection:
        if not self._is_closed:
            opened = await AsyncConnection.open(
                address,
                client_id=self._settings.client_id,
                security=self._security,
                timeout_s=self._settings.socket_connection_setup_timeout_ms / 1000,
            )
            self.reached.add(address)
            if not self._is_closed:
                return opened
            opened.close()
        raise ClosedError("the client was closed")

    async def _open(self, node_id: int, lane: str) -> AsyncConnection:
        wait_s = self._not_before_s.get(node_id, 0.0) - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        node = self.nodes.get(node_id)
        if node is None:
            raise UnreachableError(f"the cluster has no live broker {node_id}")
        connection = await self._connect(Address(node.host, node.port))
        self._connections[node_id, lane] = connection
        return connection

    def _opened(self, key: tuple[int, str], done: asyncio.Task[AsyncConnection]) -> None:
        self._opening.pop(key, None)
        node_id = key[0]
        if not done.cancelled() and done.exception() is None:
            self._attempts.pop(node_id, None)
            self._not_before_s.pop(node_id, None)
            return
        attempts = self._attempts[node_id] = self._attempts.get(node_id, 0) + 1
        delay_s = self._backoff.delay_ms(attempts) / 1000
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._not_before_s[node_id] = asyncio.get_running_loop().time() + delay_s

    async def _close_idle(self) -> None:
        limit_ms = self._settings.connections_max_idle_ms
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            now_s = asyncio.get_running_loop().time()
            for key, connection in list(self._connections.items()):
                is_idle = 0 <= limit_ms <= (now_s - connection.last_used_s) * 1000
                if is_idle and not connection.in_flight_count:
                    connection.close()
                if connection.is_closed:
                    del self._connections[key]


def _received(answer: MetadataResponse) -> MetadataReceived:
    """Returns what producers and consumers read from the metadata: brokers, leaders and replicas."""
    return MetadataReceived(
        tuple(Node(row.node_id, row.host, row.port, row.rack) for row in answer.brokers),
        tuple(
            TopicView(
                topic.name or "",
                topic.topic_id,
                tuple(PartitionLeader(row.leader_id, row.leader_epoch) for row in rows),
                topic.error_code,
                tuple(tuple(row.replica_nodes) for row in rows),
            )
            for topic in answer.topics
            for rows in (sorted(topic.partitions, key=lambda row: row.partition_index),)
        ),
    )
