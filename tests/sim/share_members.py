"""Members of a share group (KIP-932) over the client's connections, and what must be true of the deliveries.

The members are applications with tidelog's share consumer, whose requests and responses the checks see.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from brokerlab.client_parts import ClientParts
from sim.application import CONNECTIONS, Application
from sim.broker_node import broker_name
from sim.disk import SimFileRange, scan_range
from sim.histories import Fail, TransactionHistory, transaction_name
from sim.loop import PROCESS
from sim.plan import TOPIC
from tidelog.broker.share import log_reader
from tidelog.broker.share.deliveries import AcquiredRange
from tidelog.client.core.consuming.consumer_events import AcknowledgeType
from tidelog.client.core.consuming.records import SharedRecord
from tidelog.client.core.consuming.share_consumer import (
    SendAcknowledgements,
    SendShareFetch,
    ShareAnswered,
    SharedPartition,
)
from tidelog.client.core.settings import ACQUIRE_MODES
from tidelog.client.shell.consuming.share_calls import Batches
from tidelog.client.shell.consuming.share_consumer import ShareConsumer
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader, iterate_headers

if TYPE_CHECKING:
    from sim.invariants import CommittedLog, Invariants
    from sim.world import World

POLL_S: Final = 0.5
STAYS_S: Final = 15.0
"""The mean time for which an application is a member before it leaves and joins again."""
MAX_WORK_S: Final = 4.0
"""The longest time for which a slow application works on records. Locks are shorter."""
FORGET_SHARE: Final = 0.03
ROUND_S: Final = 0.2
"""The longest mean time of a fetch and the acknowledgement of its records. Ten seeds with one record a fetch
needed 0.04 to 0.08 s for each record, and two of them 0.02 s at most without the late messages of a healed
network. A round that waits for the end of a lock takes at least 1 s.
"""
ACCEPT: Final = AcknowledgeType.ACCEPT
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


class Backlog:
    """The progress of a share group through the records that its members have left."""

    def __init__(self, records_a_fetch: int) -> None:
        self._records_a_fetch = records_a_fetch
        self._first: dict[TopicPartition, int] = {}
        self._reached: dict[TopicPartition, int] = {}

    def reached(self, topic_partition: TopicPartition, start_offset: int) -> None:
        """Records where the share partition starts at its leader."""
        self._first.setdefault(topic_partition, start_offset)
        self._reached[topic_partition] = max(start_offset, self._reached.get(topic_partition, 0))

    @property
    def finished(self) -> int:
        """The number of offsets that have become final. An offset counts once, whatever happens to it."""
        return sum(self._reached.values()) - sum(self._first.values())

    @property
    def due_s(self) -> float:
        """The time that these offsets may have taken."""
        return self.finished / self._records_a_fetch * ROUND_S


class ShareMember(Application):
    """A member of a share group with tidelog's share consumer. With explicit acknowledgements it accepts most
    records and rejects or releases some. It is sometimes so slow that locks end, and sometimes goes away
    without acknowledgements.
    """

    def __init__(
        self,
        name: str,
        world: World,
        chance: random.Random,
        deliveries: ShareDeliveries,
        *,
        max_poll_interval_ms: int,
    ) -> None:
        super().__init__(name, world, chance)
        self._deliveries = deliveries
        self._is_explicit = chance.random() < 0.7
        acquire_mode = chance.choice(ACQUIRE_MODES)
        self.records_a_fetch = chance.randint(1, 20)
        self._settings = {
            **CONNECTIONS,
            "group.id": deliveries.group,
            "share.acknowledgement.mode": "explicit" if self._is_explicit else "implicit",
            "share.acquire.mode": acquire_mode,
            "max.poll.records": self.records_a_fetch,
            "max.poll.interval.ms": max_poll_interval_ms,
            "fetch.max.wait.ms": 300,
            "fetch.max.bytes": 4_000,
            "default.api.timeout.ms": 10_000,
        }

    def has_gone_on(self) -> bool:
        return self._deliveries.delivered_since_healing > 0

    async def live(self) -> None:
        self.next_life()

        def told(place: TopicPartition, offsets: list[int], error: KafkaError | None) -> None:
            if error is None:
                watch.was_told(place, offsets)
            else:
                self.note(error)

        consumer = ShareConsumer[bytes, bytes](self.bootstrap, self._settings, on_acknowledged=told)
        watch = _Watch(self, consumer, self._deliveries)
        loop = asyncio.get_running_loop()
        async with consumer:
            consumer.subscribe([TOPIC])
            leaves_s = loop.time() + self.chance.expovariate(1 / STAYS_S)
            while self.is_stopped or loop.time() < leaves_s:
                records = await consumer.poll(POLL_S, max_records=self.chance.randint(1, 20))
                if not records:
                    continue
                for record in records:
                    self._deliveries.was_delivered(record.place, record.offset, record.offset)
                if not self.is_stopped and self.chance.random() < FORGET_SHARE:
                    await consumer.close(commits=False)
                    return
                await self._deal_with(consumer, watch, records)

    async def _deal_with(
        self, consumer: ShareConsumer[bytes, bytes], watch: _Watch, records: list[SharedRecord[bytes, bytes]]
    ) -> None:
        chance = self.chance
        if not self.is_stopped and chance.random() < 0.3:
            await asyncio.sleep(chance.random() * MAX_WORK_S)
        for record in records:
            kind = ACCEPT if self.is_stopped or not self._is_explicit else chance.choice(_TYPES)
            watch.said[record.place, record.offset] = kind
            if self._is_explicit:
                consumer.acknowledge(record, kind)
        if chance.random() < 0.4:
            with contextlib.suppress(KafkaError):
                await consumer.commit()


class _Watch:
    """The requests of a share consumer and their responses, as they pass between its core and its network."""

    def __init__(
        self, member: ShareMember, consumer: ShareConsumer[bytes, bytes], deliveries: ShareDeliveries
    ) -> None:
        self.said: dict[tuple[TopicPartition, int], AcknowledgeType] = {}
        """The fate that the application gave each record last."""
        self._member = member
        self._invariants = member.world.invariants
        self._deliveries = deliveries
        self._calls = ClientParts(consumer).calls
        self._fetch, self._acknowledge = self._calls.fetch, self._calls.acknowledge
        self._end_session = self._calls.end_session
        self._answered: tuple[str, dict[tuple[TopicPartition, int], int]] = ("", {})
        """The broker of the last response, and the acknowledgements in its request."""
        patched: Any = self._calls  # the methods of this one object
        patched.fetch, patched.acknowledge = self.fetch, self.acknowledge
        patched.end_session = self.end_session

    async def fetch(self, effect: SendShareFetch) -> ShareAnswered:
        self._offer(effect.acknowledgements)
        answer = await self._fetch(effect)
        for place, row in answer.partitions.items():
            self._received(place, row)
        self._judge(effect, answer)
        return answer

    async def acknowledge(self, effect: SendAcknowledgements) -> ShareAnswered:
        self._offer(effect.acknowledgements)
        answer = await self._acknowledge(effect)
        self._judge(effect, answer)
        return answer

    async def end_session(self, node_id: int, batches: Batches) -> None:
        self._offer(batches)
        await self._end_session(node_id, batches)

    def was_told(self, place: TopicPartition, offsets: list[int]) -> None:
        """The application was told that acknowledgements are stored, which the last response said."""
        broker, sent = self._answered
        for offset in offsets:
            if sent.get((place, offset)) == ACCEPT:
                self._deliveries.was_accepted(broker, place, self._calls.member_id, offset, offset)

    def _offer(self, batches: Batches) -> None:
        for (place, offset), kind in _types_of(batches).items():
            if kind not in (ACCEPT, AcknowledgeType.REJECT):
                continue
            if self.said.get((place, offset)) != kind:
                self._invariants.fail(
                    "the application decides about records",
                    f"{self._member.name} {place} {offset}: {AcknowledgeType(kind).name} is sent",
                )
            self._deliveries.was_offered(place, offset, offset)

    def _received(self, place: TopicPartition, row: SharedPartition) -> None:
        name = self._member.name
        ends = []
        for position, header in iterate_headers(row.records):
            data = bytes(row.records[position : position + header.size_bytes])
            self._invariants.shown(place, header, data, name)
            ends.append((header.base_offset, header.last_offset))
        for first, last, _ in row.acquired:
            if not any(start <= first <= end for start, end in ends):
                self._invariants.fail("acquired records are sent", f"{name} {place} {first} of {ends}")
            self._deliveries.was_delivered(place, first, last)

    def _judge(self, effect: SendShareFetch | SendAcknowledgements, answer: ShareAnswered) -> None:
        sent = _types_of(effect.acknowledgements)
        self._answered = broker_name(effect.node_id), sent
        if answer.error_code:
            return
        for place in effect.acknowledgements:
            if place not in answer.partitions:
                self._invariants.fail("acknowledgements are answered", f"{self._member.name}: {place}")
            elif answer.partitions[place].acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE:
                for (where, offset), kind in sent.items():
                    if where == place and kind in (ACCEPT, AcknowledgeType.REJECT):
                        self._deliveries.was_refused(place, offset, offset)


def _types_of(batches: Batches) -> dict[tuple[TopicPartition, int], int]:
    return {
        (place, offset): batch.types[at if len(batch.types) > 1 else 0]
        for place, found in batches.items()
        for batch in found
        for at, offset in enumerate(range(batch.first_offset, batch.last_offset + 1))
    }


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
