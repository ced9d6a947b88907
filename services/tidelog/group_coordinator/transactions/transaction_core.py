"""The core of one transaction shard: a partition of `__transaction_state`.

Each request is decided on the newest state, whether or not this state is replicated yet. The runtime holds
back the response and the markers until it is. While a producer id is allocated, requests of the transactional
id get CONCURRENT_TRANSACTIONS, which clients retry. While markers are written, they get it after a short
wait. Source: KIP-98, KIP-360, KIP-890; Kafka's `TransactionCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    CancelTimer,
    ClusterImage,
    Effect,
    EffectOutcome,
    EndTransaction,
    Producer,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardDecision,
    ShardRequest,
)
from tidelog.group_coordinator.transactions.answers import (
    TransactionRequest,
    TransactionResponse,
    Waiting,
    WaitTimer,
    describe_transactions,
    id_to_wait_for,
    list_transactions,
    refusal,
)
from tidelog.group_coordinator.transactions.decisions import (
    FIRST_BATCHED_VERSION,
    Joiner,
    batched_response,
    bumps,
    decide_end,
    decide_initialization,
    decide_join,
    offsets_partition,
    partitions_of,
    result_of,
    verified,
    version_of,
)
from tidelog.group_coordinator.transactions.transaction import (
    AT_REST,
    PREPARED,
    TransactionDecision,
    TransactionMetadata,
    TransactionStatus,
    by_topic,
    check_transition,
    completed,
    fenced,
    read_record,
    transaction_record,
)
from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import GROUP_METADATA_TOPIC, TopicPartition, is_too_long
from tidelog.records.batch import NO_PRODUCER_EPOCH
from tidelog.settings.coordinator_settings import CoordinatorSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidelog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tidelog.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidelog.wire.messages.end_txn import EndTxnRequest
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest
from tidelog.wire.messages.list_transactions import ListTransactionsRequest

TIMEOUTS_TIMER: Final = "transaction-timeouts"
EXPIRY_TIMER: Final = "transactional-id-expiry"
MAX_EXPIRED_AT_ONCE: Final = 1_000
_NEXT_EXPIRY_MS: Final = 100
"""The delay before more transactional ids expire, if more than MAX_EXPIRED_AT_ONCE are due."""
MAX_TIMED_OUT_AT_ONCE: Final = 500
MAX_MARKERS_AT_ONCE: Final = 5_000
"""The transactions that time out together, and their markers, after which the other timeouts wait. A single
transaction may have more partitions.
"""
NEXT_TIMEOUTS_MS: Final = 100
"""The delay before more transactions time out."""

R = TypeVar("R", bound=TransactionResponse)

# The message's type depends on the key under which the handler is stored. A handler returns None while the
# request waits for a producer id.
_Handler: TypeAlias = Callable[
    [ShardRequest[Any], ShardDecision, WallMs], TransactionResponse | Steps[TransactionResponse] | None
]


class _Awaited(NamedTuple):
    """A request that continues when a producer id is allocated."""

    request: ShardRequest[InitProducerIdRequest | EndTxnRequest]
    transactional_id: str | None


class TransactionCore:
    """A ShardCore. `coordinator_epoch` is the shard epoch, which markers contain."""

    def __init__(self, coordinator_epoch: int, settings: CoordinatorSettings) -> None:
        self.coordinator_epoch: Final = coordinator_epoch
        self.settings: Final = settings
        self.transactions: Final[dict[str, TransactionMetadata]] = {}
        self.offsets_partition_count = settings.offsets_topic_num_partitions
        """The number of group shards. The setting applies only until `__consumer_offsets` exists."""
        self._ongoing: Final[set[str]] = set()
        self._loaded: dict[str, WallMs] = {}
        """The start of each transaction that was open when the shard was loaded."""
        self._loaded_ms = WallMs(0)
        """When the shard was loaded."""
        self._awaited: Final[dict[Hashable, _Awaited]] = {}
        self._awaiting_ids: Final[set[str]] = set()
        """Transactional ids for which a producer id is being allocated."""
        self._next_token = 0
        self._waiting: Final = Waiting()
        self._has_timeouts_timer = False
        self._handlers: Final[dict[int, _Handler]] = {
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.END_TXN: self._end,
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe,
            ApiKey.LIST_TRANSACTIONS: self._list,
        }

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        self._apply(*read_record(record))

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        """Does nothing, because this topic holds no markers."""

    def activate(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        self._apply_image(image)
        decision = ShardDecision()
        for transactional_id, transaction in self.transactions.items():
            if transaction.status in PREPARED:
                decision.effects.append(self._markers_of(transactional_id, transaction))
        self._loaded = {name: self.transactions[name].start_ms for name in self._ongoing}
        self._loaded_ms = now_ms
        self._update_timeouts_timer(decision)
        self._set_expiry_timer(decision)
        return decision

    def handle(self, request: ShardRequest[object], now_ms: WallMs) -> ShardDecision:
        decision = ShardDecision()
        # The runtime forwards only the APIs in `_handlers`.
        known = cast("ShardRequest[TransactionRequest]", request)
        message = self._handlers[request.api_key](known, decision, now_ms)
        if message is not None:
            self._answer(known, message, decision)
        self._update_timeouts_timer(decision)
        return decision

    def _answer(
        self,
        request: ShardRequest[TransactionRequest],
        message: TransactionResponse | Steps[TransactionResponse],
        decision: ShardDecision,
    ) -> None:
        """Replies, or lets the request wait if the markers of its transaction are being written."""
        if isinstance(message, Generator):
            decision.replies.append(Reply(request.reply_to, message))
            return
        transactional_id = id_to_wait_for(request, message)
        if transactional_id is not None:
            transaction = self.transactions.get(transactional_id)
            is_ending = transaction is not None and transaction.status in PREPARED
            if is_ending and self._waiting.add(transactional_id, request, message, decision):
                return
        decision.replies.append(Reply(request.reply_to, message))

    def timer_fired(self, key: Hashable, now_ms: WallMs) -> ShardDecision:
        decision = ShardDecision()
        if key == TIMEOUTS_TIMER:
            self._has_timeouts_timer = False
            if not self._abort_timed_out(decision, now_ms):
                decision.timers.append(SetTimer(TIMEOUTS_TIMER, NEXT_TIMEOUTS_MS))
                self._has_timeouts_timer = True
            self._update_timeouts_timer(decision)
        elif key == EXPIRY_TIMER:
            self._delete_expired(decision, now_ms)
        elif isinstance(key, WaitTimer):
            decision.replies += [
                Reply(request.reply_to, message)
                for request, message in self._waiting.overdue(key.transactional_id)
            ]
        return decision

    def effect_done(self, effect: Effect, outcome: EffectOutcome, now_ms: WallMs) -> ShardDecision:
        if isinstance(effect, EndTransaction):
            return self._markers_written(effect, now_ms)
        assert isinstance(effect, AllocateProducerId)  # a transaction shard has no other effects
        producer_id = outcome if isinstance(outcome, int) else None
        return self._producer_id_allocated(effect, producer_id, now_ms)

    def image_changed(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        self._apply_image(image)
        return ShardDecision()

    def deactivate(self) -> list[Reply]:
        replies = [
            Reply(awaited.request.reply_to, refusal(awaited.request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            for awaited in self._awaited.values()
        ]
        self._awaited.clear()
        self._awaiting_ids.clear()
        self._handlers.clear()
        return replies + [
            Reply(request.reply_to, refusal(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            for request in self._waiting.take_all()
        ]

    def _init_producer_id(
        self,
        request: ShardRequest[InitProducerIdRequest],
        decision: ShardDecision,
        now_ms: WallMs,
        producer_id: int | None = None,
    ) -> TransactionResponse | None:
        transactional_id = request.message.transactional_id
        if transactional_id is not None and is_too_long(transactional_id):
            return refusal(request, ErrorCode.INVALID_REQUEST)
        if transactional_id in self._awaiting_ids:
            return refusal(request, ErrorCode.CONCURRENT_TRANSACTIONS)
        current = None if transactional_id is None else self.transactions.get(transactional_id)
        verdict = decide_initialization(current, request.message, self.settings, producer_id, now_ms)
        return self._carry_out(verdict, transactional_id, request, decision, now_ms)

    def _end(
        self,
        request: ShardRequest[EndTxnRequest],
        decision: ShardDecision,
        now_ms: WallMs,
        producer_id: int | None = None,
    ) -> TransactionResponse | None:
        transactional_id = request.message.transactional_id
        if transactional_id in self._awaiting_ids:
            return refusal(request, ErrorCode.CONCURRENT_TRANSACTIONS)
        current = self.transactions.get(transactional_id)
        verdict = decide_end(current, request.message, request.api_version, producer_id, now_ms)
        return self._carry_out(verdict, transactional_id, request, decision, now_ms)

    def _carry_out(
        self,
        verdict: TransactionDecision[R],
        transactional_id: str | None,
        request: ShardRequest[InitProducerIdRequest | EndTxnRequest],
        decision: ShardDecision,
        now_ms: WallMs,
    ) -> TransactionResponse | None:
        """Applies a verdict and returns the response."""
        if verdict.needs_producer_id:
            self._await_producer_id(request, transactional_id, decision)
            return None
        if verdict.transaction is not None and transactional_id is not None:
            self._decide(transactional_id, verdict.transaction, decision, now_ms)
        if verdict.error is not ErrorCode.NONE:
            return refusal(request, verdict.error)
        return verdict.response

    def _add_partitions(
        self, request: ShardRequest[AddPartitionsToTxnRequest], decision: ShardDecision, now_ms: WallMs
    ) -> TransactionResponse:
        message = request.message
        if request.api_version < FIRST_BATCHED_VERSION:
            error = self._join(
                Joiner(
                    message.v3_and_below_transactional_id,
                    message.v3_and_below_producer_id,
                    message.v3_and_below_producer_epoch,
                ),
                partitions_of(message.v3_and_below_topics),
                version_of(request.api_version),
                decision,
                now_ms,
            )
            return refusal(request, error)
        results = []
        for asked in message.transactions:
            joiner = Joiner(asked.transactional_id, asked.producer_id, asked.producer_epoch)
            if asked.verify_only:
                errors = verified(
                    self.transactions.get(joiner.transactional_id), joiner, asked.topics, request.api_version
                )
                if joiner.transactional_id in self._awaiting_ids:
                    errors = dict.fromkeys(errors, ErrorCode.CONCURRENT_TRANSACTIONS)
            else:
                partitions = partitions_of(asked.topics)
                version = version_of(request.api_version)
                error = self._join(joiner, partitions, version, decision, now_ms)
                errors = dict.fromkeys(partitions, error)
            results.append(result_of(asked, errors))
        return batched_response(results)

    def _add_offsets(
        self, request: ShardRequest[AddOffsetsToTxnRequest], decision: ShardDecision, now_ms: WallMs
    ) -> TransactionResponse:
        message = request.message
        joiner = Joiner(message.transactional_id, message.producer_id, message.producer_epoch)
        if not message.group_id or is_too_long(message.group_id):
            return refusal(request, ErrorCode.INVALID_GROUP_ID)
        partition = offsets_partition(message.group_id, self.offsets_partition_count)
        version = version_of(0)
        return refusal(request, self._join(joiner, frozenset({partition}), version, decision, now_ms))

    def _join(
        self,
        joiner: Joiner,
        partitions: frozenset[TopicPartition],
        version: int,
        decision: ShardDecision,
        now_ms: WallMs,
    ) -> ErrorCode:
        """Adds partitions to a transaction."""
        if is_too_long(joiner.transactional_id):
            return ErrorCode.INVALID_REQUEST
        if joiner.transactional_id in self._awaiting_ids:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        current = self.transactions.get(joiner.transactional_id)
        error, joined = decide_join(current, joiner, partitions, version, now_ms)
        if joined is not None:
            self._decide(joiner.transactional_id, joined, decision, now_ms)
        return error

    def _describe(
        self, request: ShardRequest[DescribeTransactionsRequest], decision: ShardDecision, now_ms: WallMs
    ) -> Steps[TransactionResponse]:
        return describe_transactions(self.transactions, request.message)

    def _list(
        self, request: ShardRequest[ListTransactionsRequest], decision: ShardDecision, now_ms: WallMs
    ) -> Steps[TransactionResponse]:
        return list_transactions(self.transactions, request.message, now_ms)

    def _await_producer_id(
        self,
        request: ShardRequest[InitProducerIdRequest | EndTxnRequest],
        transactional_id: str | None,
        decision: ShardDecision,
    ) -> None:
        token = self._next_token
        self._next_token += 1
        self._awaited[token] = _Awaited(request, transactional_id)
        if transactional_id is not None:
            self._awaiting_ids.add(transactional_id)
        decision.effects.append(AllocateProducerId(token))

    def _producer_id_allocated(
        self, effect: AllocateProducerId, producer_id: int | None, now_ms: WallMs
    ) -> ShardDecision:
        decision = ShardDecision()
        awaited = self._awaited.pop(effect.token, None)
        if awaited is None:
            return decision
        if awaited.transactional_id is not None:
            self._awaiting_ids.discard(awaited.transactional_id)
        request = awaited.request
        response: TransactionResponse | None
        if producer_id is None:
            response = refusal(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        elif isinstance(request.message, EndTxnRequest):
            response = self._end(cast("ShardRequest[EndTxnRequest]", request), decision, now_ms, producer_id)
        else:
            response = self._init_producer_id(
                cast("ShardRequest[InitProducerIdRequest]", request), decision, now_ms, producer_id
            )
        if response is not None:
            decision.replies.append(Reply(request.reply_to, response))
        self._update_timeouts_timer(decision)
        return decision

    def _markers_of(self, transactional_id: str, transaction: TransactionMetadata) -> EndTransaction:
        return EndTransaction(
            transactional_id=transactional_id,
            producer=Producer(transaction.producer_id, transaction.producer_epoch),
            is_commit=transaction.status is TransactionStatus.PREPARE_COMMIT,
            coordinator_epoch=self.coordinator_epoch,
            transaction_version=transaction.version,
            partitions=tuple(
                TopicPartition(topic, partition)
                for topic, partitions in by_topic(transaction.partitions).items()
                for partition in partitions
            ),
        )

    def _markers_written(self, effect: EndTransaction, now_ms: WallMs) -> ShardDecision:
        decision = ShardDecision()
        transaction = self.transactions.get(effect.transactional_id)
        # A report may arrive twice, the second time while the next transaction ends.
        if (
            transaction is not None
            and transaction.status in PREPARED
            and self._markers_of(effect.transactional_id, transaction) == effect
        ):
            self._decide(effect.transactional_id, completed(transaction, now_ms), decision, now_ms)
            for request in self._waiting.take(effect.transactional_id, decision):
                message = self._handlers[request.api_key](request, decision, now_ms)
                if message is not None:
                    self._answer(request, message, decision)
            self._update_timeouts_timer(decision)
        return decision

    def _abort_timed_out(self, decision: ShardDecision, now_ms: WallMs) -> bool:
        """Aborts transactions that have timed out. Returns False if others are due, too."""
        timed_out = []
        for transactional_id in self._ongoing - self._awaiting_ids:
            transaction = self.transactions[transactional_id]
            if transaction.is_timed_out(self._start_of(transactional_id, transaction), now_ms):
                timed_out.append(transactional_id)
        timed_out.sort()
        markers = 0
        for transactional_id in timed_out[:MAX_TIMED_OUT_AT_ONCE]:
            if markers >= MAX_MARKERS_AT_ONCE:
                return False
            transaction = self.transactions[transactional_id]
            markers += len(transaction.partitions)
            # A client that supports KIP-890 learns of the abort by its own EndTxn, and continues with the
            # next epoch.
            last_epoch = transaction.producer_epoch if bumps(transaction) else NO_PRODUCER_EPOCH
            aborted = fenced(transaction, last_epoch=last_epoch, now_ms=now_ms)
            self._decide(transactional_id, aborted, decision, now_ms)
        return len(timed_out) <= MAX_TIMED_OUT_AT_ONCE

    def _start_of(self, transactional_id: str, transaction: TransactionMetadata) -> WallMs:
        """Returns from when the timeout counts. For a loaded transaction, that is when it was loaded: another
        process stated its start, whose clock may have been hours away from this one.
        """
        is_loaded = self._loaded.get(transactional_id) == transaction.start_ms
        return self._loaded_ms if is_loaded else transaction.start_ms

    def _update_timeouts_timer(self, decision: ShardDecision) -> None:
        """Runs the timer that checks timeouts while there are open transactions."""
        if self._ongoing and not self._has_timeouts_timer:
            interval_ms = self.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
            decision.timers.append(SetTimer(TIMEOUTS_TIMER, interval_ms))
            self._has_timeouts_timer = True
        elif not self._ongoing and self._has_timeouts_timer:
            decision.timers.append(CancelTimer(TIMEOUTS_TIMER))
            self._has_timeouts_timer = False

    def _set_expiry_timer(self, decision: ShardDecision) -> None:
        interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
        decision.timers.append(SetTimer(EXPIRY_TIMER, interval_ms))

    def _delete_expired(self, decision: ShardDecision, now_ms: WallMs) -> None:
        limit_ms = now_ms - self.settings.transactional_id_expiration_ms
        expired = [
            transactional_id
            for transactional_id, transaction in self.transactions.items()
            if transaction.status in AT_REST
            and 0 <= transaction.update_ms <= limit_ms  # not if the time is unknown
            and transactional_id not in self._awaiting_ids
        ]
        for transactional_id in expired[:MAX_EXPIRED_AT_ONCE]:
            self._decide(transactional_id, None, decision, now_ms)
        if len(expired) > MAX_EXPIRED_AT_ONCE:
            decision.timers.append(SetTimer(EXPIRY_TIMER, _NEXT_EXPIRY_MS))
        else:
            self._set_expiry_timer(decision)

    def _decide(
        self,
        transactional_id: str,
        transaction: TransactionMetadata | None,
        decision: ShardDecision,
        now_ms: WallMs,
    ) -> None:
        """Writes and applies the next state of a transactional id; None deletes the id.

        A transaction without partitions needs no markers and is complete at once.
        """
        check_transition(self.transactions.get(transactional_id), transaction)
        decision.records.append(transaction_record(transactional_id, transaction))
        self._apply(transactional_id, transaction)
        if transaction is not None and transaction.status in PREPARED:
            if transaction.partitions:
                decision.effects.append(self._markers_of(transactional_id, transaction))
            else:
                self._decide(transactional_id, completed(transaction, now_ms), decision, now_ms)

    def _apply(self, transactional_id: str, transaction: TransactionMetadata | None) -> None:
        """Applies a state, whether decided or replayed. No other method changes `transactions`."""
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            self._ongoing.discard(transactional_id)
            return
        self.transactions[transactional_id] = transaction
        if transaction.status is TransactionStatus.ONGOING:
            self._ongoing.add(transactional_id)
        else:
            self._ongoing.discard(transactional_id)

    def _apply_image(self, image: ClusterImage) -> None:
        topic = image.topics.get(GROUP_METADATA_TOPIC)
        if topic is not None:
            self.offsets_partition_count = topic.partition_count
