"""The sender of a producer: it carries out what the core decides, over the connections to brokers.

It has the core and its lock. A Produce request is written after all earlier ones to the same broker.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Final

from tidelog.client.core.cluster_view import PartitionLeader
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.producing.producer_batch import (
    CompleteBatch,
    Effect,
    Event,
    MetadataFailed,
    PartitionAnswer,
    ProduceAnswered,
    ProduceFailed,
    ProducerBatch,
    ProducerIdReceived,
    ProducerIdRefused,
    RequestMetadata,
    RequestProducerId,
    SendProduce,
)
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import ClientError, ClosedError, request_error
from tidelog.client.shell.connection import AsyncConnection, Reply
from tidelog.client.shell.consuming.group_calls import PERMANENT_ERRORS
from tidelog.client.shell.network import Network
from tidelog.client.shell.producing.delivery import finished
from tidelog.client.shell.tasks import CoreTasks, HomeProcess, now_ms
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import UNKNOWN_OFFSET
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.compression import Compression
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

logger: Final = logging.getLogger("tidelog.client")
_NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1
_CANCELLED: Final = "the request was cancelled"
_PRODUCE_SINCE: Final = 3
_PRODUCE_OF_TRANSACTIONS_SINCE: Final = 12
_ZSTD_SINCE: Final = 7
_LAST_PRODUCE_BY_NAME: Final = 12


class Sender:
    """The part of a producer that drives its core. Other threads may call `schedule` and `closed_error`, and
    use the core under `lock`.
    """

    def __init__(self, core: ProducerCore, network: Network, settings: ProducerSettings) -> None:
        self.core: ProducerCore = core
        self.lock: threading.Lock = threading.Lock()
        """Held while the core works, because the producer for threads appends from other threads."""
        self.tasks: CoreTasks = CoreTasks("producer", self.pump)
        self.home: HomeProcess = HomeProcess("producer")
        self.is_closed: bool = False
        self.is_pump_scheduled: bool = False
        self._network = network
        self._settings = settings
        self._thread_id = 0
        self._outboxes: dict[int, deque[SendProduce]] = {}
        """The requests that wait for a connection, by broker."""
        self._progress: asyncio.Future[None] | None = None
        self._flush_count = 0

    def start(self) -> None:
        """Takes the running event loop. Raises ClosedError in a forked child."""
        self.home.check()
        self.tasks.start()
        self._thread_id = threading.get_ident()

    async def stop(self) -> None:
        """Ends all records without an outcome, and states their number in the log."""
        with self.lock:  # a thread that appends has added its record now, or gets an error
            if self.is_closed:
                return
            self.is_closed = True
            left_count = self.core.unacknowledged_count()
            effects = self.core.fail_all(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed"))
        if left_count:
            logger.error(
                "the producer was closed before %d of its records were acknowledged, and they may be lost",
                left_count,
            )
        self._wake_blocked()
        self.perform(effects)
        try:
            await self.tasks.stop()
        finally:
            await self._network.close()

    def after_fork(self) -> None:
        """Ends the copy of the records in a forked child. The parent sends them."""
        self.lock = threading.Lock()  # another thread of the parent may have held it
        self.is_closed = True
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION, str(self.home.error()))
        for batch in self.core.pending_batches():
            batch.callbacks.clear()  # the parent calls them
            batch.finish(error=error)

    def closed_error(self) -> ClosedError:
        return ClosedError("the producer is closed") if self.home.is_current else self.home.error()

    async def flush(self) -> None:
        """Sends all batches now and waits until the outcome of each earlier record is known."""
        self.home.check()
        self._flush_count += 1
        try:
            with self.lock:
                pending = self.core.pending_batches()
                self.core.is_flushing = True
            self.pump()
            for batch in pending:
                await finished(batch)
        finally:
            self._flush_count -= 1
            self.core.is_flushing = self._flush_count > 0

    async def progress(self, timeout_s: float) -> None:
        """Waits until the core has made progress, for at most `timeout_s`."""
        if self._progress is None or self._progress.done():
            self._progress = asyncio.get_running_loop().create_future()
        self.pump()
        await asyncio.wait([self._progress], timeout=timeout_s)

    def _wake_blocked(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def schedule(self) -> None:
        """Runs the pump soon. Any thread may call this while it holds the lock, so that a close waits and the
        loop is still open. It cannot deadlock, because the calls of the loop only add to its queue.
        """
        if self.tasks.loop is None:
            raise ClosedError("the producer was not started: use `async with`, or await `start`")
        self.is_pump_scheduled = True
        if threading.get_ident() == self._thread_id:
            self.tasks.loop.call_soon(self.pump)
        else:
            self.tasks.loop.call_soon_threadsafe(self.pump)

    def pump(self) -> None:
        self.is_pump_scheduled = False
        if self.is_closed:
            return
        with self.lock:
            effects = self.core.poll(now_ms())
        self.perform(effects)

    def step(self, event: Event) -> None:
        if self.is_closed:
            return
        with self.lock:
            effects = self.core.step(event, now_ms())
        self.perform(effects)
        self._wake_blocked()

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendProduce():
                    self._produce(effect)
                case CompleteBatch(batch):
                    self._complete(batch)
                case RequestMetadata(known, wanted):
                    self.tasks.spawn(self._request_metadata(known, wanted))
                case RequestProducerId():
                    self.tasks.spawn(self._request_producer_id())
        at_ms = now_ms()
        with self.lock:
            wake_ms = self.core.next_wake_ms(at_ms)
        self.tasks.wake_in(None if wake_ms is None else max(0, wake_ms - at_ms))

    def _complete(self, batch: ProducerBatch) -> None:
        is_unheard = not batch.callbacks and batch.whole is None and not self.is_closed
        if batch.error is not None and is_unheard:  # a close states the number of all
            logger.error(
                "%d records were not delivered and nobody waits for them: %s", batch.count, batch.error
            )
        for callback in batch.take_callbacks():
            try:
                callback(batch)
            except Exception:  # the other callbacks must run
                logger.exception("a delivery callback failed")
        self._wake_blocked()

    def _produce(self, effect: SendProduce) -> None:
        """Writes a request after all earlier ones to the same broker."""
        waiting = self._outboxes.setdefault(effect.node_id, deque())
        connection = self._network.ready(effect.node_id)
        if connection is not None and not waiting:
            self._write(effect, connection)
            return
        waiting.append(effect)
        if len(waiting) == 1:
            self.tasks.spawn(self._connect_and_write(effect.node_id, waiting))

    async def _connect_and_write(self, node_id: int, waiting: deque[SendProduce]) -> None:
        try:
            connection = await self._network.broker(node_id)
        except ClientError as error:
            self._fail(waiting, str(error), is_permanent=isinstance(error, PERMANENT_ERRORS))
            return
        except asyncio.CancelledError:  # whoever cancelled all tasks of the loop may still wait for records
            self._fail(waiting, _CANCELLED)
            raise
        while waiting:
            self._write(waiting.popleft(), connection)

    def _fail(self, waiting: deque[SendProduce], reason: str, *, is_permanent: bool = False) -> None:
        failed = list(waiting)
        waiting.clear()  # a step may add requests
        for effect in failed:
            self.step(ProduceFailed(effect.request_id, False, reason, is_permanent))

    def _write(self, effect: SendProduce, connection: AsyncConnection) -> None:
        batches = effect.unfinished
        if not batches:
            self._later(ProduceFailed(effect.request_id, False, "all batches ended before the request"))
            return
        try:
            request, version = produce_request(connection, batches, self._settings)
        except ClientError as error:
            self._later(ProduceFailed(effect.request_id, False, str(error), is_permanent=True))
            return
        if self._settings.required_acks:
            reply = connection.send(request, version, self._network.timeout_s)
            reply.add_done_callback(lambda done: self._replied(effect, connection, request, version, done))
            return
        try:
            connection.send_unanswered(request, version)
        except ClientError as error:
            self._later(ProduceFailed(effect.request_id, True, str(error)))
            return
        stored = PartitionAnswer(ErrorCode.NONE, UNKNOWN_OFFSET, -1, None, None)
        self._later(ProduceAnswered(effect.request_id, {batch.place: stored for batch in batches}))

    def _later(self, event: Event) -> None:
        """Gives the core an event after the effects that it has just returned."""
        assert self.tasks.loop is not None
        self.tasks.loop.call_soon(self.step, event)

    def _replied(
        self,
        effect: SendProduce,
        connection: AsyncConnection,
        request: ProduceRequest,
        version: int,
        reply: asyncio.Future[Reply],
    ) -> None:
        if self.is_closed:
            if not reply.cancelled():
                reply.exception()  # asyncio reports an error that nobody looks at
            return
        event: Event
        try:
            answers = produce_answers(request, connection.decode(request, version, reply.result()))
            event = ProduceAnswered(effect.request_id, answers)
        except ClientError as error:
            event = ProduceFailed(effect.request_id, True, str(error))
        self.step(event)

    async def _request_metadata(self, known: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        try:
            received = await self._network.metadata(wanted or known, creates=bool(wanted))
            if wanted and known:
                others = await self._network.metadata(known)
                received = others._replace(topics=received.topics + others.topics)
        except ClientError as error:
            logger.info("no metadata: %s", error)
            self.step(MetadataFailed())
            return
        except asyncio.CancelledError:
            self.step(MetadataFailed())
            raise
        self.step(received)

    async def _request_producer_id(self) -> None:
        request = InitProducerIdRequest(None, _NO_TRANSACTION_TIMEOUT_MS)
        try:
            answer: InitProducerIdResponse = await self._network.call_any(request)
        except ClientError as error:
            code = ErrorCode.NETWORK_EXCEPTION
            if isinstance(error, PERMANENT_ERRORS):
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            self.step(ProducerIdRefused(KafkaError(code, f"no producer id: {error}")))
            return
        except asyncio.CancelledError:
            self.step(ProducerIdRefused(KafkaError(ErrorCode.NETWORK_EXCEPTION, _CANCELLED)))
            raise
        if answer.error_code:
            self.step(ProducerIdRefused(request_error(answer.error_code, "no producer id")))
        else:
            self.step(ProducerIdReceived(answer.producer_id, answer.producer_epoch))


def produce_request(
    connection: AsyncConnection, batches: tuple[ProducerBatch, ...], settings: ProducerSettings
) -> tuple[ProduceRequest, int]:
    """Returns the request and its version. Raises ClientError."""
    is_transactional = settings.transactional_id is not None
    topics: dict[str, TopicProduceData] = {}
    has_ids = True
    for batch in batches:
        name = batch.place.topic
        topic = topics.get(name)
        if topic is None:
            has_ids = has_ids and batch.topic_id != ZERO_TOPIC_ID
            topic = topics[name] = TopicProduceData(name, batch.topic_id)
        data = batch.encode(is_transactional=is_transactional)
        topic.partition_data.append(PartitionProduceData(batch.place.partition, data))
    request = ProduceRequest(
        settings.transactional_id,
        settings.required_acks,
        settings.request_timeout_ms,
        list(topics.values()),
    )
    at_least = _ZSTD_SINCE if settings.compression is Compression.ZSTD else _PRODUCE_SINCE
    version = connection.version_for(
        request,
        at_least=_PRODUCE_OF_TRANSACTIONS_SINCE if is_transactional else at_least,
        at_most=None if has_ids else _LAST_PRODUCE_BY_NAME,
    )
    if version <= _LAST_PRODUCE_BY_NAME:  # a topic that was created again may store the batches
        for batch in batches:
            batch.topic_id = ZERO_TOPIC_ID
    return request, version


def produce_answers(
    request: ProduceRequest, response: ProduceResponse
) -> dict[TopicPartition, PartitionAnswer]:
    """Returns the answers by name. The request names the ids: metadata may have forgotten them since."""
    names = {topic.topic_id: topic.name for topic in request.topic_data}
    answers: dict[TopicPartition, PartitionAnswer] = {}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id, "")
        for row in topic.partition_responses:
            leader = row.current_leader
            answers[TopicPartition(name, row.index)] = PartitionAnswer(
                row.error_code,
                row.base_offset,
                row.log_append_time_ms,
                _details(row),
                None
                if leader is None or leader.leader_id < 0
                else PartitionLeader(leader.leader_id, leader.leader_epoch),
            )
    return answers


def _details(row: PartitionProduceResponse) -> str | None:
    texts = [row.error_message or ""]
    texts += [f"record {error.batch_index}: {error.batch_index_error_message}" for error in row.record_errors]
    return "; ".join(text for text in texts if text) or None
