"""Members of a share group (KIP-932) over the client's connections, and what must be true of the deliveries.

The members are a part of the simulation and not tidelog's ShareConsumer. They forget records, and vary their
requests. They use the network and the coordinator lookup of tidelog's client.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from sim.application import CONNECTIONS, Application
from sim.broker_node import broker_name
from sim.disk import SimFileRange, scan_range
from sim.histories import Fail, TransactionHistory, transaction_name
from sim.loop import PROCESS
from sim.plan import TOPIC
from tidelog.broker.share import log_reader
from tidelog.broker.share.deliveries import AcknowledgeType, AcquiredRange
from tidelog.client.core.cluster_view import ClusterView
from tidelog.client.core.consumer_settings import ConsumerSettings
from tidelog.client.core.properties import parse_settings
from tidelog.client.errors import ClientError
from tidelog.client.shell.connection import AsyncConnection
from tidelog.client.shell.group_calls import GROUP, Coordinator
from tidelog.client.shell.network import Network
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.wire.messages import share_acknowledge, share_fetch
from tidelog.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

if TYPE_CHECKING:
    from sim.invariants import CommittedLog, Invariants
    from sim.world import World

LANE: Final = "share"
HEARTBEAT_S: Final = 0.5
FETCH_WAIT_MS: Final = 300
MAX_FETCH_BYTES: Final = 4_000
STAYS_S: Final = 15.0
LEAVES: Final = -1
_REJOIN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_TYPES: Final = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.ACCEPT,
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
)


class ShareDeliveries:
    """The deliveries of one share group, as its leaders made them, and the answers to its members."""

    def __init__(
        self,
        group: str,
        fail: Fail,
        log: Callable[[TopicPartition], CommittedLog],
        transactions: TransactionHistory,
        *,
        reads_committed: bool,
    ) -> None:
        self.group = group
        self.delivered_since_healing = 0
        self._fail = fail
        self._log = log
        self._transactions = transactions
        self._reads_committed = reads_committed
        self._accepted: dict[tuple[TopicPartition, int], int] = {}
        """The epoch of the leader that confirmed the acceptance of a record."""
        self._at_limit: set[tuple[TopicPartition, int]] = set()
        """Records that were delivered up to the limit."""
        self._offered: Counter[tuple[TopicPartition, int]] = Counter()
        """The acceptances and rejections of each record that were sent and not refused."""
        self._epochs: dict[tuple[str, str, TopicPartition, int], int] = {}
        """The epoch in which a broker delivered a record to a member."""

    def acquired(
        self,
        broker: str,
        topic_partition: TopicPartition,
        leader_epoch: int,
        member: str,
        ranges: Sequence[AcquiredRange],
        limit: int,
    ) -> None:
        """Records that a leader delivers records."""
        for first, last, count in ranges:
            for offset in range(first, last + 1):
                self.delivered_since_healing += 1
                accepted_in = self._accepted.get((topic_partition, offset))
                if accepted_in is not None and accepted_in <= leader_epoch:
                    self._fail(
                        "an accepted record never comes again",
                        f"{self.group} {topic_partition} {offset} by {broker} in epoch {leader_epoch}, was"
                        f" accepted in epoch {accepted_in}",
                    )
                if not 1 <= count <= limit:
                    self._fail(
                        "no record is delivered too often",
                        f"{self.group} {topic_partition} {offset} by {broker}: delivery {count} of {limit}",
                    )
                if count == limit:
                    self._at_limit.add((topic_partition, offset))
                self._epochs[broker, member, topic_partition, offset] = leader_epoch

    def was_delivered(self, topic_partition: TopicPartition, first: int, last: int) -> None:
        """Records that a member got records. The step in which its leader delivered them is over."""
        log = self._log(topic_partition)
        for offset in (first, last):
            found = log.at(offset)
            if found is None or not self._is_visible(topic_partition, *found):
                self._fail(
                    "share groups deliver committed records",
                    f"{self.group} {topic_partition} {offset}: {found}",
                )

    def _is_visible(self, topic_partition: TopicPartition, header: BatchHeader, data: bytes) -> bool:
        if header.is_control:
            return False
        if not self._reads_committed or not header.is_transactional:
            return True
        transaction = self._transactions.transactions[transaction_name(data)]
        return transaction.outcomes.get(topic_partition) is True

    def was_offered(self, topic_partition: TopicPartition, first: int, last: int) -> None:
        """Records that a member sends an acceptance or a rejection."""
        self._offered.update((topic_partition, offset) for offset in range(first, last + 1))

    def was_refused(self, topic_partition: TopicPartition, first: int, last: int) -> None:
        """Records that the leader refused an acceptance or a rejection, which therefore has no effect."""
        self._offered.subtract((topic_partition, offset) for offset in range(first, last + 1))

    def was_accepted(
        self, broker: str, topic_partition: TopicPartition, member: str, first: int, last: int
    ) -> None:
        """Records that a member was told that its acceptance is stored."""
        for offset in range(first, last + 1):
            epoch = self._epochs[broker, member, topic_partition, offset]
            self._accepted.setdefault((topic_partition, offset), epoch)

    def unfinished(self, topic_partition: TopicPartition, start_offset: int) -> int | None:
        """Returns the first record at or above the start of the share partition, None if there is none."""
        for header, data in self._log(topic_partition).batches_from(start_offset):
            if self._is_visible(topic_partition, header, data):
                return max(start_offset, header.base_offset)
        return None

    def check_end(self, topic_partition: TopicPartition) -> None:
        for header, data in self._log(topic_partition).batches:
            if not self._is_visible(topic_partition, header, data):
                continue
            for offset in range(header.base_offset, header.last_offset + 1):
                key = (topic_partition, offset)
                if not (key in self._accepted or key in self._at_limit or self._offered[key]):
                    self._fail(
                        "no record of a share group is lost", f"{self.group} {topic_partition} {offset}"
                    )
                    return


class _Held(NamedTuple):
    """Records that a member has, and what it does with them."""

    place: TopicPartition
    first: int
    last: int
    kind: AcknowledgeType


class _Session:
    """The share session of a member at one broker, which lives as long as its connection."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self.epoch = 0
        self.places: frozenset[TopicPartition] = frozenset()
        self.held: list[_Held] = []


class ShareMember(Application):
    """A member of a share group. It accepts most records, and rejects, releases or forgets some."""

    def __init__(self, name: str, world: World, chance: random.Random, deliveries: ShareDeliveries) -> None:
        super().__init__(name, world, chance)
        self._deliveries = deliveries
        self._settings = parse_settings(ConsumerSettings, dict(CONNECTIONS))
        self._member_id = ""
        self._assigned: frozenset[tuple[uuid.UUID, int]] = frozenset()
        self._view = ClusterView()
        self._sessions: dict[int, _Session] = {}
        self._topic_id = uuid.UUID(int=0)

    def has_gone_on(self) -> bool:
        return self._deliveries.delivered_since_healing > 0

    async def live(self) -> None:
        self.next_life()
        self._member_id = str(uuid.UUID(int=self.chance.getrandbits(128)))
        self._assigned, self._view, self._sessions = frozenset(), ClusterView(), {}
        network = Network(self.bootstrap, self._settings)
        await network.start()
        coordinator = Coordinator(network, GROUP, self._deliveries.group)
        membership = asyncio.create_task(self._keep_membership(network, coordinator))
        try:
            leaves_s = asyncio.get_running_loop().time() + self.chance.expovariate(1 / STAYS_S)
            while self.is_stopped or asyncio.get_running_loop().time() < leaves_s:
                await self._work(network)
        finally:
            membership.cancel()
            await asyncio.gather(membership, return_exceptions=True)
            with contextlib.suppress(ClientError, KafkaError):
                await self._heartbeat(network, coordinator, LEAVES)
            await network.close()

    # -- membership

    async def _heartbeat(self, network: Network, coordinator: Coordinator, epoch: int) -> Any:
        connection = await coordinator.connection()
        topics = [TOPIC] if epoch == 0 else None
        request = ShareGroupHeartbeatRequest(self._deliveries.group, self._member_id, epoch, None, topics)
        return await connection.call(request, network.timeout_s)

    async def _keep_membership(self, network: Network, coordinator: Coordinator) -> None:
        epoch = 0
        while True:
            try:
                answer = await self._heartbeat(network, coordinator, epoch)
            except (ClientError, KafkaError) as error:
                self.note(error)
                coordinator.forget()
            else:
                if answer.error_code in _REJOIN:
                    epoch, self._assigned = 0, frozenset()
                elif answer.error_code:
                    self.note(ErrorCode(answer.error_code).name)
                    coordinator.forget()
                else:
                    epoch = answer.member_epoch
                    if answer.assignment is not None:
                        self._assigned = frozenset(
                            (topic.topic_id, index)
                            for topic in answer.assignment.topic_partitions
                            for index in topic.partitions
                        )
            await asyncio.sleep(HEARTBEAT_S)

    # -- records

    async def _work(self, network: Network) -> None:
        """Fetches once from each leader."""
        by_leader: dict[int, set[TopicPartition]] = {}
        for topic_id, index in self._assigned:
            place = TopicPartition(TOPIC, index)
            self._topic_id = topic_id
            by_leader.setdefault(self._view.leader(place).leader, set()).add(place)
        if not by_leader or -1 in by_leader:
            await self._refresh(network)
        for node_id in sorted(by_leader):
            if node_id >= 0:
                try:
                    await self._fetch(network, node_id, frozenset(by_leader[node_id]))
                except ClientError as error:
                    self.note(error)
                    self._sessions.pop(node_id, None)
                    await self._refresh(network)

    async def _refresh(self, network: Network) -> None:
        await asyncio.sleep(0.05 + 0.1 * self.chance.random())
        with contextlib.suppress(ClientError):
            self._view.update(await network.metadata([TOPIC]))

    async def _fetch(self, network: Network, node_id: int, places: frozenset[TopicPartition]) -> None:
        connection = await network.broker(node_id, LANE)
        session = self._sessions.get(node_id)
        if session is None or session.connection is not connection:
            session = self._sessions[node_id] = _Session(connection)
        held, session.held = session.held, []
        if held and self.chance.random() < 0.4:
            if not await self._acknowledge(network, node_id, session, held):
                return
            held = []
        self._offer(held)
        chance = self.chance
        topics = self._topics(held, places - session.places)
        forgotten = session.places - places
        request = share_fetch.ShareFetchRequest(
            group_id=self._deliveries.group,
            member_id=self._member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_FETCH_BYTES,
            max_records=chance.randint(1, 20),
            batch_size=5,
            share_acquire_mode=chance.choice((0, 1)),
            topics=topics,
        )
        if forgotten:
            indexes = sorted(place.partition for place in forgotten)
            request.forgotten_topics_data = [share_fetch.ForgottenTopic(self._topic_id, indexes)]
        answer = await connection.call(request, network.timeout_s)
        if answer.error_code:
            self.note(ErrorCode(answer.error_code).name)
            del self._sessions[node_id]
            return
        session.epoch += 1
        session.places = places
        has_moved = False
        errors: dict[TopicPartition, int] = {}
        for topic in answer.responses:
            for row in topic.partitions:
                place = TopicPartition(TOPIC, row.partition_index)
                errors[place] = row.acknowledge_error_code
                if row.error_code:
                    has_moved = True
                    self.note(ErrorCode(row.error_code).name)
                self._received(place, row, session)
        self._acknowledged(node_id, held, errors)
        if has_moved:
            await self._refresh(network)
        if session.held and not self.is_stopped and chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 2)

    def _topics(self, held: list[_Held], added: frozenset[TopicPartition]) -> list[share_fetch.FetchTopic]:
        rows = [
            share_fetch.FetchPartition(
                place.partition,
                [
                    share_fetch.AcknowledgementBatch(each.first, each.last, [each.kind])
                    for each in held
                    if each.place == place
                ],
            )
            for place in sorted(added | {each.place for each in held})
        ]
        return [share_fetch.FetchTopic(self._topic_id, rows)] if rows else []

    def _received(self, place: TopicPartition, row: Any, session: _Session) -> None:
        chance, invariants = self.chance, self.world.invariants
        records = bytes(row.records or b"")
        ends = []
        for position, header in iterate_headers(records):
            data = records[position : position + header.size_bytes]
            invariants.shown(place, header, data, self.name)
            ends.append((header.base_offset, header.last_offset))
        for acquired in row.acquired_records:
            if not any(first <= acquired.first_offset <= last for first, last in ends):
                invariants.fail("acquired records are sent", f"{self.name} {place} {acquired} of {ends}")
            self._deliveries.was_delivered(place, acquired.first_offset, acquired.last_offset)
            if self.is_stopped:
                kind = AcknowledgeType.ACCEPT
            elif chance.random() < 0.1:
                continue  # the member forgets it, and its lock ends
            else:
                kind = chance.choice(_TYPES)
            session.held.append(_Held(place, acquired.first_offset, acquired.last_offset, kind))

    async def _acknowledge(
        self, network: Network, node_id: int, session: _Session, held: list[_Held]
    ) -> bool:
        """Acknowledges with a request of its own. Returns whether the session goes on."""
        rows = [
            share_acknowledge.AcknowledgePartition(
                place.partition,
                [
                    share_acknowledge.AcknowledgementBatch(each.first, each.last, [each.kind])
                    for each in held
                    if each.place == place
                ],
            )
            for place in sorted({each.place for each in held})
        ]
        self._offer(held)
        request = share_acknowledge.ShareAcknowledgeRequest(
            self._deliveries.group,
            self._member_id,
            session.epoch,
            topics=[share_acknowledge.AcknowledgeTopic(self._topic_id, rows)],
        )
        answer = await session.connection.call(request, network.timeout_s)
        if answer.error_code:
            self.note(ErrorCode(answer.error_code).name)
            del self._sessions[node_id]
            return False
        session.epoch += 1
        errors = {
            TopicPartition(TOPIC, row.partition_index): row.error_code
            for topic in answer.responses
            for row in topic.partitions
        }
        self._acknowledged(node_id, held, errors)
        return True

    def _offer(self, held: list[_Held]) -> None:
        for each in held:
            if each.kind is not AcknowledgeType.RELEASE:
                self._deliveries.was_offered(each.place, each.first, each.last)

    def _acknowledged(self, node_id: int, held: list[_Held], errors: dict[TopicPartition, int]) -> None:
        for each in held:
            if each.place not in errors:
                self.world.invariants.fail("acknowledgements are answered", f"{self.name}: {each}")
            elif errors[each.place]:
                self.note(ErrorCode(errors[each.place]).name)
                is_refused = errors[each.place] == ErrorCode.INVALID_RECORD_STATE
                if is_refused and each.kind is not AcknowledgeType.RELEASE:
                    self._deliveries.was_refused(each.place, each.first, each.last)
            elif each.kind is AcknowledgeType.ACCEPT:
                broker = broker_name(node_id)
                self._deliveries.was_accepted(broker, each.place, self._member_id, each.first, each.last)


@contextlib.contextmanager
def installed(invariants: Invariants) -> Iterator[None]:
    """Lets leaders read from simulated logs, and watches what they deliver."""
    acquire = log_reader.acquire

    def watched(replica: Any, core: Any, wanted: Any, *arguments: Any, **options: Any) -> Any:
        read = acquire(replica, core, wanted, *arguments, **options)
        found, process = invariants.share_deliveries, PROCESS.get()
        if read is not None and found is not None and process is not None:
            limits = arguments[-1]
            found.acquired(
                process.name,
                replica.topic_partition,
                replica.core.leader_epoch,
                wanted.member,
                read.acquired,
                limits.delivery_count,
            )
        return read

    with (
        patch.object(log_reader, "acquire", watched),
        patch.object(log_reader, "scan_headers", scan_range),
        patch.object(log_reader, "FileRange", SimFileRange.part),
    ):
        yield
