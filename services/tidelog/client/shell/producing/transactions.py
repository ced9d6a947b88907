"""The transaction of a producer: its states, and its requests to its coordinator (transaction.version 2)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from tidelog.client.calls import GROUP, TRANSACTION
from tidelog.client.core.cluster_view import in_parts, partitions_by_topic
from tidelog.client.core.producing.producer_batch import ProducerIdReceived
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import (
    InvalidTransactionStateError,
    ProducerFencedError,
    TransactionAbortableError,
    UnsupportedApiError,
)
from tidelog.client.shell.connection import AsyncConnection
from tidelog.client.shell.consuming.group_calls import Coordinator, until_answered
from tidelog.client.shell.network import Network
from tidelog.client.shell.producing.sender import Sender
from tidelog.kernel.machine import StateTable
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

TRANSACTION_FEATURE: Final = "transaction.version"
TRANSACTION_VERSION: Final = 2
_END_SINCE: Final = 5
_TXN_OFFSET_COMMIT_OF_V2: Final = 5
_LAST_INIT_OF_V2: Final = 5
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class TransactionState(Enum):
    UNINITIALISED = "uninitialised"
    """Without a producer id."""
    READY = "ready"
    """Between two transactions."""
    OPEN = "open"
    ENDING = "ending"
    """Records are still sent, or the coordinator has not answered the commit or abort."""
    FENCED = "fenced"
    """A newer producer has the transactional id, or the outcome is unknown. The producer must be closed: the
    coordinator may still end the transaction, and would take the records of another one into it."""


STATES: Final = StateTable(
    "the transaction",
    {
        TransactionState.UNINITIALISED: {TransactionState.READY, TransactionState.FENCED},
        TransactionState.READY: {TransactionState.OPEN, TransactionState.FENCED},
        TransactionState.OPEN: {TransactionState.ENDING, TransactionState.FENCED},
        TransactionState.ENDING: {TransactionState.READY, TransactionState.OPEN, TransactionState.FENCED},
        TransactionState.FENCED: set(),
    },
)


class GroupMetadata(NamedTuple):
    """A consumer's membership, with which a transaction commits its offsets."""

    group_id: str
    member_id: str = ""
    member_epoch: int = -1
    instance_id: str | None = None


class TransactionCalls:
    """Each call is repeated while the coordinator moves, up to `max.block.ms`."""

    def __init__(self, network: Network, settings: ProducerSettings) -> None:
        assert settings.transactional_id is not None
        self._network = network
        self._settings = settings
        self._id = settings.transactional_id
        self._subject = f"transactional id '{self._id}'"
        self._coordinator = Coordinator(network, TRANSACTION, self._id)

    async def initialise(self) -> ProducerIdReceived:
        """Claims the transactional id: fences its previous producer and aborts that one's transaction.

        Raises KafkaError, ClientError (UnsupportedApiError for a cluster without transaction.version 2).
        """

        async def ask() -> ProducerIdReceived:
            connection = await self._coordinator.connection()
            self._check_version(connection)
            request = InitProducerIdRequest(self._id, self._settings.transaction_timeout_ms)
            answer: InitProducerIdResponse = await connection.call(
                request, self._network.timeout_s, at_most=_LAST_INIT_OF_V2
            )
            self._check(answer.error_code)
            return ProducerIdReceived(answer.producer_id, answer.producer_epoch)

        return await until_answered(self._settings, self._settings.max_block_ms, self._subject, ask)

    async def end(self, identity: ProducerIdReceived, *, commits: bool) -> ProducerIdReceived:
        """Ends the transaction, and returns the identity for the next one. Raises KafkaError, ClientError."""

        async def ask() -> ProducerIdReceived:
            connection = await self._coordinator.connection()
            request = EndTxnRequest(self._id, identity.producer_id, identity.producer_epoch, commits)
            answer: EndTxnResponse = await connection.call(
                request, self._network.timeout_s, at_least=_END_SINCE
            )
            self._check(answer.error_code)
            return ProducerIdReceived(answer.producer_id, answer.producer_epoch)

        return await until_answered(self._settings, self._settings.max_block_ms, self._subject, ask)

    async def commit_offsets(
        self, identity: ProducerIdReceived, offsets: Mapping[TopicPartition, int], group: GroupMetadata
    ) -> None:
        """Commits offsets of a group in the transaction. Raises KafkaError, ClientError."""
        for part in in_parts(offsets.items()):
            await self._commit_offsets(identity, dict(part), group)

    async def _commit_offsets(
        self, identity: ProducerIdReceived, offsets: Mapping[TopicPartition, int], group: GroupMetadata
    ) -> None:
        coordinator = Coordinator(self._network, GROUP, group.group_id)
        topics = [
            TxnOffsetCommitRequestTopic(
                name,
                partitions=[
                    TxnOffsetCommitRequestPartition(index, offsets[TopicPartition(name, index)], -1, "")
                    for index in indexes
                ],
            )
            for name, indexes in partitions_by_topic(offsets).items()
        ]

        async def ask() -> None:
            connection = await coordinator.connection()
            request = TxnOffsetCommitRequest(
                self._id,
                group.group_id,
                identity.producer_id,
                identity.producer_epoch,
                group.member_epoch,
                group.member_id,
                group.instance_id,
                topics,
            )
            answer: TxnOffsetCommitResponse = await connection.call(
                request,
                self._network.timeout_s,
                at_least=_TXN_OFFSET_COMMIT_OF_V2,
                at_most=_TXN_OFFSET_COMMIT_OF_V2,
            )
            for topic in answer.topics:
                for row in topic.partitions:
                    coordinator.check(
                        row.error_code, f"offset of {topic.name}-{row.partition_index} in {self._subject}"
                    )

        await until_answered(self._settings, self._settings.max_block_ms, self._subject, ask)

    def _check_version(self, connection: AsyncConnection) -> None:
        level = connection.served.features.get(TRANSACTION_FEATURE, 0)
        if level < TRANSACTION_VERSION:
            raise UnsupportedApiError(
                f"the cluster's {TRANSACTION_FEATURE} is {level}; this client needs {TRANSACTION_VERSION}"
            )

    def _check(self, code: int) -> None:
        if code in _FENCED:
            raise ProducerFencedError(f"{self._subject}: a newer producer uses it")
        self._coordinator.check(code, self._subject)


class Transaction:
    """The present transaction of a producer. Without a transactional id it never begins."""

    def __init__(self, sender: Sender, calls: TransactionCalls | None) -> None:
        self.state: TransactionState = TransactionState.UNINITIALISED
        self.has_content: bool = False
        """Whether a record or an offset was sent, so that the coordinator knows the transaction."""
        self.calls: TransactionCalls | None = calls
        self._sender = sender

    async def start(self) -> None:
        """Claims the transactional id, if there is one. Raises KafkaError, ClientError."""
        if self.calls is not None:
            self._sender.step(await self.calls.initialise())
            self.move_to(TransactionState.READY)

    def move_to(self, state: TransactionState) -> None:
        """Raises InvalidTransactionStateError."""
        if not STATES.allows(self.state, state):
            raise InvalidTransactionStateError(
                f"the transaction is {self.state.value}, so it cannot become {state.value}"
            )
        self.state = state

    @property
    def is_open(self) -> bool:
        return self.state is TransactionState.OPEN

    def begin(self) -> None:
        """Raises InvalidTransactionStateError, also while the previous transaction ends."""
        if self.state is not TransactionState.READY:
            raise InvalidTransactionStateError(
                f"no transaction can begin, because the transaction is {self.state.value}"
            )
        self.move_to(TransactionState.OPEN)
        self.has_content = False

    def check_open(self) -> None:
        """Raises InvalidTransactionStateError unless a transaction is open."""
        if not self.is_open:
            raise InvalidTransactionStateError(
                f"this needs an open transaction, and the transaction is {self.state.value}"
            )

    async def commit(self) -> None:
        """Waits for all records and commits them. Raises KafkaError.

        After TransactionAbortableError the transaction is still open. After another error the outcome is
        unknown, and no transaction follows.
        """
        self.check_open()
        with self._sender.lock:  # a send from now on belongs to no transaction, and raises an error
            self.move_to(TransactionState.ENDING)
        try:
            await self._sender.flush()
            if self._sender.core.abort_error is not None:
                raise self._sender.core.abort_error
        except BaseException:
            self.move_to(TransactionState.OPEN)
            raise
        await self._end(commits=True)

    async def abort(self) -> None:
        """Drops the records of the transaction. Raises KafkaError."""
        self.check_open()
        aborted = TransactionAbortableError("the transaction was aborted")
        with self._sender.lock:
            self.move_to(TransactionState.ENDING)
            effects = self._sender.core.fail_all(aborted)
        self._sender.perform(effects)
        await self._end(commits=False)

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        """Commits offsets of a group in the transaction, which must be aborted after an error."""
        self.check_open()
        if self.calls is None or not offsets:
            return
        self.has_content = True
        core = self._sender.core
        try:
            await self.calls.commit_offsets(core.identity, offsets, group)
        except BaseException as error:  # a cancellation, too, leaves open whether the offsets are stored
            core.abort_error = TransactionAbortableError(
                f"the transaction must be aborted: {str(error) or type(error).__name__}"
            )
            raise

    async def _end(self, *, commits: bool) -> None:
        if self.calls is None:
            return
        core = self._sender.core
        try:
            if self.has_content:
                identity = await self.calls.end(core.identity, commits=commits)
                core.abort_error = None
                self._sender.step(identity)
            core.abort_error = None
            self.move_to(TransactionState.READY)
        except TransactionAbortableError as error:
            core.abort_error = error
            self.move_to(TransactionState.OPEN)
            raise
        except BaseException as error:  # after a cancellation, too, the coordinator may end the transaction
            core.abort_error = (
                error
                if isinstance(error, KafkaError)
                else ProducerFencedError(
                    f"the outcome of the transaction is unknown: {str(error) or type(error).__name__}"
                )
            )
            self.move_to(TransactionState.FENCED)
            raise
