"""Requests that come while a transaction's markers are written: they wait for a moment instead of being sent
back, as nearly all ends take less time than a client waits before it asks again. (Kafka answers
CONCURRENT_TRANSACTIONS at once.)
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tidelog.group_coordinator.shard_core import CancelTimer, Decision, SetTimer, ShardRequest
from tidelog.group_coordinator.transactions import joining
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey

WAIT_MS: Final = 1_000
MAX_WAITING: Final = 4
"""For one transactional id; more are sent back at once."""
_WITH_ERROR: Final = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})


class WaitTimer(NamedTuple):
    """The timer's key."""

    transactional_id: str


def who_could_wait(request: ShardRequest, answer: Any) -> str | None:
    """The transactional id, if `answer` sends its client back."""
    message = request.message
    if request.api_key in _WITH_ERROR:
        error, transactional_id = answer.error_code, message.transactional_id
    elif request.api_key != ApiKey.ADD_PARTITIONS_TO_TXN:
        return None
    elif request.api_version < joining.FIRST_BATCHED_VERSION:
        transactional_id = message.v3_and_below_transactional_id
        error = _first_error(answer.results_by_topic_v3_and_below)
    elif len(message.transactions) == 1 and not message.transactions[0].verify_only:
        transactional_id = message.transactions[0].transactional_id
        error = _first_error(answer.results_by_transaction[0].topic_results)
    else:
        return None
    return transactional_id if error == ErrorCode.CONCURRENT_TRANSACTIONS else None


def _first_error(topics: Any) -> int:
    """An error of a transaction is one of all its partitions."""
    for topic in topics:
        for partition in topic.results_by_partition:
            return int(partition.partition_error_code)
    return ErrorCode.NONE


class Waiting:
    """Requests by transactional id, with the answers they get if it takes too long."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[ShardRequest, Any]]] = {}

    def add(
        self, transactional_id: str, request: ShardRequest, answer: Any, decision: Decision, now_ms: int
    ) -> bool:
        """Whether there was room."""
        waiting = self._waiting.setdefault(transactional_id, [])
        if len(waiting) >= MAX_WAITING:
            return False
        if not waiting:
            decision.timers.append(SetTimer(WaitTimer(transactional_id), now_ms + WAIT_MS))
        waiting.append((request, answer))
        return True

    def take(self, transactional_id: str, decision: Decision) -> list[ShardRequest]:
        """The markers are written: who waited is to be decided on anew."""
        waiting = self._waiting.pop(transactional_id, [])
        if waiting:
            decision.timers.append(CancelTimer(WaitTimer(transactional_id)))
        return [request for request, _ in waiting]

    def overdue(self, transactional_id: str) -> list[tuple[ShardRequest, Any]]:
        return self._waiting.pop(transactional_id, [])

    def take_all(self) -> list[ShardRequest]:
        requests = [request for waiting in self._waiting.values() for request, _ in waiting]
        self._waiting.clear()
        return requests
