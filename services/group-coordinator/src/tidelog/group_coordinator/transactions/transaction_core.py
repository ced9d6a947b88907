"""The core of one shard of transactions: a partition of `__transaction_state`.

Each request is decided on the newest state, whether or not that is replicated yet: the runtime holds the
answer, and the markers, until it is. While a producer id is fetched the transactional id answers
CONCURRENT_TRANSACTIONS, which clients repeat; so it does, after a moment, while markers are written.
Source: KIP-98, KIP-360, KIP-890; Kafka's `TransactionCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    CancelTimer,
    ClusterImage,
    Decision,
    Effect,
    EndTransaction,
    Producer,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardRequest,
)
from tidelog.group_coordinator.transactions import ending, initialization, joining, queries
from tidelog.group_coordinator.transactions.refusals import refusal
from tidelog.group_coordinator.transactions.transaction import (
    AT_REST,
    NO_PRODUCER_EPOCH,
    PREPARED,
    Transaction,
    TransactionStatus,
    completed,
    fenced,
)
from tidelog.group_coordinator.transactions.transaction_log import read_record, record_of
from tidelog.group_coordinator.transactions.waiting import Waiting, WaitTimer, who_could_wait
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import GROUP_METADATA_TOPIC
from tidelog.runtime.coordinator_settings import CoordinatorSettings
from tidelog.wire.api_keys import ApiKey

TIMEOUTS_TIMER: Final = "transaction-timeouts"
EXPIRY_TIMER: Final = "transactional-id-expiry"
MAX_EXPIRED_AT_ONCE: Final = 1_000
_SOON_MS: Final = 100


class _Awaited(NamedTuple):
    """A request that goes on once there is a producer id."""

    request: ShardRequest
    transactional_id: str | None


class TransactionCore:
    """A ShardCore. `coordinator_epoch` is the shard epoch, and goes into markers."""

    def __init__(self, coordinator_epoch: int, settings: CoordinatorSettings) -> None:
        self.coordinator_epoch: Final = coordinator_epoch
        self.settings: Final = settings
        self.transactions: Final[dict[str, Transaction]] = {}
        self.offsets_partition_count = settings.offsets_topic_num_partitions
        """The setting counts only until `__consumer_offsets` exists."""
        self._ongoing: Final[set[str]] = set()
        self._awaited: Final[dict[Hashable, _Awaited]] = {}
        self._awaiting_ids: Final[set[str]] = set()
        self._next_token = 0
        self._waiting: Final = Waiting()
        self._has_timeouts_timer = False
        self._handlers: Final[dict[int, Callable[[ShardRequest, Decision, int], Any]]] = {
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.END_TXN: self._end,
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe,
            ApiKey.LIST_TRANSACTIONS: self._list,
        }

    # -- loading

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        del offset
        self._apply(*read_record(record))

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        """None are ever in this topic."""
        del producer, is_commit

    def activate(self, image: ClusterImage, now_ms: int) -> Decision:
        self._take_image(image)
        decision = Decision()
        for transactional_id, transaction in self.transactions.items():
            if transaction.status in PREPARED:
                decision.effects.append(self._markers_of(transactional_id, transaction))
        self._watch_timeouts(decision, now_ms)
        self._watch_expiry(decision, now_ms)
        return decision

    # -- events

    def handle(self, request: ShardRequest, now_ms: int) -> Decision:
        decision = Decision()
        handler = self._handlers.get(request.api_key)
        if handler is None:
            message = refusal(request, ErrorCode.UNSUPPORTED_VERSION)
        else:
            message = handler(request, decision, now_ms)
        if message is not None:
            self._answer(request, message, decision, now_ms)
        self._watch_timeouts(decision, now_ms)
        return decision

    def _answer(self, request: ShardRequest, message: Any, decision: Decision, now_ms: int) -> None:
        transactional_id = who_could_wait(request, message)
        if transactional_id is not None:
            transaction = self.transactions.get(transactional_id)
            is_ending = transaction is not None and transaction.status in PREPARED
            if is_ending and self._waiting.add(transactional_id, request, message, decision, now_ms):
                return
        decision.replies.append(Reply(request.reply_to, message))

    def timer_fired(self, key: Hashable, now_ms: int) -> Decision:
        decision = Decision()
        if key == TIMEOUTS_TIMER:
            self._has_timeouts_timer = False
            self._abort_timed_out(decision, now_ms)
            self._watch_timeouts(decision, now_ms)
        elif key == EXPIRY_TIMER:
            self._forget_expired(decision, now_ms)
        elif isinstance(key, WaitTimer):
            decision.replies += [
                Reply(request.reply_to, message)
                for request, message in self._waiting.overdue(key.transactional_id)
            ]
        return decision

    def effect_done(self, effect: Effect, outcome: Any, now_ms: int) -> Decision:
        if isinstance(effect, EndTransaction):
            return self._markers_written(effect, now_ms)
        return self._producer_id_told(effect, outcome, now_ms)

    def image_changed(self, image: ClusterImage, now_ms: int) -> Decision:
        del now_ms
        self._take_image(image)
        return Decision()

    def deactivate(self) -> list[Reply]:
        owed = [
            Reply(awaited.request.reply_to, refusal(awaited.request, ErrorCode.NOT_COORDINATOR))
            for awaited in self._awaited.values()
        ]
        self._awaited.clear()
        self._awaiting_ids.clear()
        return owed + [
            Reply(request.reply_to, refusal(request, ErrorCode.NOT_COORDINATOR))
            for request in self._waiting.take_all()
        ]

    # -- requests; each gives the response, None while it waits for a producer id

    def _init_producer_id(
        self, request: ShardRequest, decision: Decision, now_ms: int, producer_id: int | None = None
    ) -> Any:
        message = request.message
        transactional_id = message.transactional_id
        if transactional_id in self._awaiting_ids:
            return refusal(request, ErrorCode.CONCURRENT_TRANSACTIONS)
        verdict = initialization.decide(
            self.transactions.get(transactional_id), message, self.settings, producer_id, now_ms
        )
        if verdict.needs_producer_id:
            self._await_producer_id(request, transactional_id, decision)
            return None
        if verdict.transaction is not None:
            self._decide(transactional_id, verdict.transaction, decision, now_ms)
        if verdict.error is not ErrorCode.NONE:
            return refusal(request, verdict.error)
        return verdict.response

    def _add_partitions(self, request: ShardRequest, decision: Decision, now_ms: int) -> Any:
        if request.api_version < joining.FIRST_BATCHED_VERSION:
            message = request.message
            error = self._join(
                joining.Joiner(
                    message.v3_and_below_transactional_id,
                    message.v3_and_below_producer_id,
                    message.v3_and_below_producer_epoch,
                ),
                joining.partitions_of(message.v3_and_below_topics),
                joining.version_of(request.api_version),
                decision,
                now_ms,
            )
            return refusal(request, error)
        results = []
        for asked in request.message.transactions:
            joiner = joining.Joiner(asked.transactional_id, asked.producer_id, asked.producer_epoch)
            if asked.verify_only:
                errors = joining.verified(
                    self.transactions.get(joiner.transactional_id), joiner, asked.topics, request.api_version
                )
                if joiner.transactional_id in self._awaiting_ids:
                    errors = dict.fromkeys(errors, ErrorCode.CONCURRENT_TRANSACTIONS)
            else:
                partitions = joining.partitions_of(asked.topics)
                version = joining.version_of(request.api_version)
                error = self._join(joiner, partitions, version, decision, now_ms)
                errors = dict.fromkeys(partitions, error)
            results.append(joining.result_of(asked, errors))
        return joining.batched_response(results)

    def _add_offsets(self, request: ShardRequest, decision: Decision, now_ms: int) -> Any:
        message = request.message
        joiner = joining.Joiner(message.transactional_id, message.producer_id, message.producer_epoch)
        if not message.group_id:
            return refusal(request, ErrorCode.INVALID_GROUP_ID)
        partition = joining.offsets_partition(message.group_id, self.offsets_partition_count)
        version = joining.version_of(0)
        return refusal(request, self._join(joiner, frozenset({partition}), version, decision, now_ms))

    def _join(
        self,
        joiner: joining.Joiner,
        partitions: frozenset[Any],
        version: int,
        decision: Decision,
        now_ms: int,
    ) -> ErrorCode:
        if joiner.transactional_id in self._awaiting_ids:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        current = self.transactions.get(joiner.transactional_id)
        error, joined = joining.joined(current, joiner, partitions, version, now_ms)
        if joined is not None:
            self._decide(joiner.transactional_id, joined, decision, now_ms)
        return error

    def _end(
        self, request: ShardRequest, decision: Decision, now_ms: int, producer_id: int | None = None
    ) -> Any:
        transactional_id = request.message.transactional_id
        if transactional_id in self._awaiting_ids:
            return refusal(request, ErrorCode.CONCURRENT_TRANSACTIONS)
        verdict = ending.decide(
            self.transactions.get(transactional_id), request.message, request.api_version, producer_id, now_ms
        )
        if verdict.needs_producer_id:
            self._await_producer_id(request, transactional_id, decision)
            return None
        if verdict.transaction is not None:
            self._decide(transactional_id, verdict.transaction, decision, now_ms)
        if verdict.error is not ErrorCode.NONE:
            return refusal(request, verdict.error)
        return verdict.response

    def _describe(self, request: ShardRequest, decision: Decision, now_ms: int) -> Any:
        del decision, now_ms
        return queries.described(self.transactions, request.message)

    def _list(self, request: ShardRequest, decision: Decision, now_ms: int) -> Any:
        del decision
        return queries.listed(self.transactions, request.message, now_ms)

    # -- producer ids

    def _await_producer_id(
        self, request: ShardRequest, transactional_id: str | None, decision: Decision
    ) -> None:
        token = self._next_token
        self._next_token += 1
        self._awaited[token] = _Awaited(request, transactional_id)
        if transactional_id is not None:
            self._awaiting_ids.add(transactional_id)
        decision.effects.append(AllocateProducerId(token))

    def _producer_id_told(self, effect: AllocateProducerId, producer_id: int | None, now_ms: int) -> Decision:
        decision = Decision()
        awaited = self._awaited.pop(effect.token, None)
        if awaited is None:
            return decision
        if awaited.transactional_id is not None:
            self._awaiting_ids.discard(awaited.transactional_id)
        request = awaited.request
        if producer_id is None:
            message = refusal(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        elif request.api_key == ApiKey.END_TXN:
            message = self._end(request, decision, now_ms, producer_id)
        else:
            message = self._init_producer_id(request, decision, now_ms, producer_id)
        decision.replies.append(Reply(request.reply_to, message))
        self._watch_timeouts(decision, now_ms)
        return decision

    # -- the end of transactions

    def _markers_of(self, transactional_id: str, transaction: Transaction) -> EndTransaction:
        return EndTransaction(
            transactional_id=transactional_id,
            producer=Producer(transaction.producer_id, transaction.producer_epoch),
            is_commit=transaction.status is TransactionStatus.PREPARE_COMMIT,
            coordinator_epoch=self.coordinator_epoch,
            transaction_version=transaction.version,
            partitions=tuple(sorted(transaction.partitions)),
        )

    def _markers_written(self, effect: EndTransaction, now_ms: int) -> Decision:
        decision = Decision()
        transaction = self.transactions.get(effect.transactional_id)
        # A report may come twice, and the second one in the midst of the next transaction's end.
        if (
            transaction is not None
            and transaction.status in PREPARED
            and self._markers_of(effect.transactional_id, transaction) == effect
        ):
            self._decide(effect.transactional_id, completed(transaction, now_ms), decision, now_ms)
            for request in self._waiting.take(effect.transactional_id, decision):
                message = self._handlers[request.api_key](request, decision, now_ms)
                if message is not None:
                    self._answer(request, message, decision, now_ms)
            self._watch_timeouts(decision, now_ms)
        return decision

    def _abort_timed_out(self, decision: Decision, now_ms: int) -> None:
        for transactional_id in sorted(self._ongoing - self._awaiting_ids):
            transaction = self.transactions[transactional_id]
            if transaction.is_timed_out(now_ms):
                # A client that speaks KIP-890 learns of it by its own abort, and goes on with the next epoch.
                last_epoch = transaction.producer_epoch if ending.bumps(transaction) else NO_PRODUCER_EPOCH
                aborted = fenced(transaction, last_epoch=last_epoch, now_ms=now_ms)
                self._decide(transactional_id, aborted, decision, now_ms)

    def _watch_timeouts(self, decision: Decision, now_ms: int) -> None:
        if self._ongoing and not self._has_timeouts_timer:
            interval_ms = self.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
            decision.timers.append(SetTimer(TIMEOUTS_TIMER, now_ms + interval_ms))
            self._has_timeouts_timer = True
        elif not self._ongoing and self._has_timeouts_timer:
            decision.timers.append(CancelTimer(TIMEOUTS_TIMER))
            self._has_timeouts_timer = False

    # -- expiry of transactional ids

    def _watch_expiry(self, decision: Decision, now_ms: int) -> None:
        interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
        decision.timers.append(SetTimer(EXPIRY_TIMER, now_ms + interval_ms))

    def _forget_expired(self, decision: Decision, now_ms: int) -> None:
        limit_ms = now_ms - self.settings.transactional_id_expiration_ms
        expired = [
            transactional_id
            for transactional_id, transaction in self.transactions.items()
            if transaction.status in AT_REST
            and transaction.update_ms <= limit_ms
            and transactional_id not in self._awaiting_ids
        ]
        for transactional_id in expired[:MAX_EXPIRED_AT_ONCE]:
            decision.records.append(record_of(transactional_id, None))
            self._apply(transactional_id, None)
        if len(expired) > MAX_EXPIRED_AT_ONCE:
            decision.timers.append(SetTimer(EXPIRY_TIMER, now_ms + _SOON_MS))
        else:
            self._watch_expiry(decision, now_ms)

    # -- state

    def _decide(
        self, transactional_id: str, transaction: Transaction, decision: Decision, now_ms: int
    ) -> None:
        decision.records.append(record_of(transactional_id, transaction))
        self._apply(transactional_id, transaction)
        if transaction.status in PREPARED:
            if transaction.partitions:
                decision.effects.append(self._markers_of(transactional_id, transaction))
            else:
                self._decide(transactional_id, completed(transaction, now_ms), decision, now_ms)

    def _apply(self, transactional_id: str, transaction: Transaction | None) -> None:
        """The only place where state changes, whether decided or replayed."""
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            self._ongoing.discard(transactional_id)
            return
        self.transactions[transactional_id] = transaction
        if transaction.status is TransactionStatus.ONGOING:
            self._ongoing.add(transactional_id)
        else:
            self._ongoing.discard(transactional_id)

    def _take_image(self, image: ClusterImage) -> None:
        topic = image.topics.get(GROUP_METADATA_TOPIC)
        if topic is not None:
            self.offsets_partition_count = topic.partition_count
