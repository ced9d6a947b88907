"""A transaction core with a log in memory, and the requests of its clients."""

from __future__ import annotations

from typing import Any  # Any: generated messages have no common base

from grouplab.shards import completed
from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    ClusterImage,
    CoordinatorRecord,
    EndTransaction,
    ReplayedRecord,
    ShardDecision,
    ShardRequest,
)
from tidelog.group_coordinator.transactions.answers import WaitTimer
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.settings.coordinator_settings import CoordinatorSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import request_decoder, request_encoder, response_decoder, response_encoder
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidelog.wire.messages.end_txn import EndTxnRequest
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest

NO_TOPICS = ClusterImage(1, {}, {})


class TransactionLab:
    """A core whose appends are replicated at once. `crash` loads the log into a new core."""

    def __init__(self, settings: CoordinatorSettings | None = None) -> None:
        self.settings = settings or CoordinatorSettings()
        self.log: list[CoordinatorRecord] = []
        self.now_ms = 1_000_000
        self.epoch = 0
        self.next_producer_id = 1_000
        self.replies: dict[int, Any] = {}
        self.unfinished: list[EndTransaction] = []
        self.ids_at_once = True
        self.is_patient = False
        """Whether requests wait for markers. Otherwise their wait times out at once."""
        self.awaited: list[AllocateProducerId] = []
        self._requests = 0
        self.core: TransactionCore
        self.load()

    def load(self, records: int | None = None) -> None:
        """Lets a new owner load the first `records` of the log. The other records are lost."""
        if records is not None:
            del self.log[records:]
        self.epoch += 1
        self.unfinished.clear()
        self.awaited.clear()
        self.core = TransactionCore(self.epoch, self.settings)
        for offset, (key, value) in enumerate(self.log):
            self.core.replay(ReplayedRecord(key, value, self.now_ms, None), offset)
        self.take(self.core.activate(NO_TOPICS, self.now_ms))

    def take(self, decision: ShardDecision) -> None:
        self.log += decision.records
        for reply_to, message, _ in decision.replies:
            assert isinstance(reply_to, int)
            assert reply_to not in self.replies
            self.replies[reply_to] = completed(message)
        for effect in decision.effects:
            if isinstance(effect, EndTransaction):
                self.unfinished.append(effect)
            elif self.ids_at_once:
                self.tell_producer_id(effect)
            else:
                self.awaited.append(effect)

    def tell_producer_id(self, effect: AllocateProducerId) -> None:
        self.next_producer_id += 1
        self.take(self.core.effect_done(effect, self.next_producer_id, self.now_ms))

    def ask(self, api_key: ApiKey, version: int, message: Any) -> Any:
        """Returns the response as the client decodes it, or None if there is none yet."""
        body = b"".join(request_encoder(api_key, version)(message))
        decoded = request_decoder(api_key, version)(body, 0)[0]
        self._requests += 1
        number = self._requests
        self.take(self.core.handle(ShardRequest(number, api_key, version, decoded), self.now_ms))
        if number not in self.replies and not self.is_patient:
            self.take(self.core.timer_fired(WaitTimer(self.named_by(decoded)), self.now_ms))
        if number not in self.replies:
            return None
        return self.as_read(api_key, version, self.replies[number])

    @staticmethod
    def named_by(message: Any) -> str:
        if isinstance(message, AddPartitionsToTxnRequest):
            asked = message.transactions
            return asked[0].transactional_id if asked else message.v3_and_below_transactional_id
        name: str = getattr(message, "transactional_id", None) or ""
        return name

    def as_read(self, api_key: ApiKey, version: int, message: Any) -> Any:
        body = b"".join(response_encoder(api_key, version)(message))
        return response_decoder(api_key, version)(body, 0)[0]

    def newest_reply(self) -> Any:
        return self.replies[max(self.replies)]

    def write_markers(self) -> list[EndTransaction]:
        written, self.unfinished = self.unfinished, []
        for effect in written:
            self.take(self.core.effect_done(effect, None, self.now_ms))
        return written

    def pass_time(self, ms: int, timer: str) -> None:
        self.now_ms += ms
        self.take(self.core.timer_fired(timer, self.now_ms))

    # -- requests of clients

    def init(
        self,
        name: str | None = "t",
        *,
        named: tuple[int, int] = (-1, -1),
        version: int = 5,
        timeout_ms: int = 60_000,
    ) -> Any:
        return self.ask(
            ApiKey.INIT_PRODUCER_ID, version, InitProducerIdRequest(name, timeout_ms, named[0], named[1])
        )

    def add(
        self,
        producer: tuple[int, int],
        partitions: dict[str, list[int]],
        *,
        name: str = "t",
        version: int = 5,
        verify: bool = False,
    ) -> dict[tuple[str, int], int]:
        """Returns the error codes by partition."""
        topics = [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in partitions.items()]
        if version < 4:
            request = AddPartitionsToTxnRequest([], name, producer[0], producer[1], topics)
            results = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request).results_by_topic_v3_and_below
        else:
            asked = AddPartitionsToTxnTransaction(name, producer[0], producer[1], verify, topics)
            answer = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, AddPartitionsToTxnRequest([asked]))
            (result,) = answer.results_by_transaction
            assert result.transactional_id == name
            results = result.topic_results
        return {
            (topic.name, partition.partition_index): partition.partition_error_code
            for topic in results
            for partition in topic.results_by_partition
        }

    def add_offsets(self, producer: tuple[int, int], group: str, *, name: str = "t", version: int = 4) -> int:
        request = AddOffsetsToTxnRequest(name, producer[0], producer[1], group)
        error: int = self.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, request).error_code
        return error

    def end(self, producer: tuple[int, int], commit: bool, *, name: str = "t", version: int = 5) -> Any:
        return self.ask(ApiKey.END_TXN, version, EndTxnRequest(name, producer[0], producer[1], commit))
