"""The states of the share partitions of the groups of one shard, which their owners keep: creating, deleting,
resetting and describing them.

What the coordinator is about to do is in its log before it asks, and `SharePartitions` says how far it has
got. A question without an answer is asked again after a while. A state is created only once: a repeated
question names the same state epoch, and the owner ignores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.share.share_group import (
    STATES_TIMER,
    ShareChanges,
    ShareGroup,
    Shares,
    TopicShare,
)
from tidelog.group_coordinator.groups.shared import Groups, merge
from tidelog.group_coordinator.shard_core import AskEndOffsets, AskShareStates, Reply, ShardDecision
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import delete_share_group_state as deleting
from tidelog.wire.messages import initialize_share_group_state as initializing
from tidelog.wire.messages import read_share_group_state_summary as summarizing

FIRST_RETRY_MS: Final = 500
NO_OFFSET: Final = -1

Result = Any
"""A `PartitionResult` of one of the APIs, which have the same fields for errors."""
Results = Mapping[tuple[UUID, int], Result]
"""The results by topic id and partition."""
Answered = Callable[[Results, WallMs], ShardDecision]


EndOffsets = Mapping[TopicPartition, int]
EndsAnswered = Callable[[EndOffsets, WallMs], ShardDecision]


class _Question(NamedTuple):
    answered: Callable[[Any, WallMs], ShardDecision]  # Any: Results or EndOffsets, by the effect
    refuse: Callable[[], list[Reply]]


def _no_replies() -> list[Reply]:
    return []


class ShareStates:
    """The open questions of one shard."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._next_token = 0
        self._open: dict[int, _Question] = {}

    def effect_done(
        self, effect: AskShareStates | AskEndOffsets, response: Any, now_ms: WallMs
    ) -> ShardDecision:
        """Passes the results of a question to the function that asked it: none if there is no response."""
        assert isinstance(effect.token, int)  # `_ask` made it
        question = self._open.pop(effect.token, None)
        if question is None:
            return ShardDecision()
        if isinstance(effect, AskEndOffsets):
            return question.answered(response, now_ms)
        topics = () if response is None else response.results
        results = {
            (topic.topic_id, result.partition): result for topic in topics for result in topic.partitions
        }
        return question.answered(results, now_ms)

    def deactivate(self) -> list[Reply]:
        """Returns the refusals of all requests that wait for an answer."""
        questions = list(self._open.values())
        self._open.clear()
        return [reply for question in questions for reply in question.refuse()]

    def _ask(
        self,
        decision: ShardDecision,
        api_key: int,
        request: object,
        answered: Answered,
        refuse: Callable[[], list[Reply]] = _no_replies,
    ) -> None:
        self._next_token += 1
        self._open[self._next_token] = _Question(answered, refuse)
        decision.effects.append(AskShareStates(self._next_token, api_key, request))

    def initialize_subscribed(self, changes: ShareChanges) -> None:
        """Begins to create the states of subscribed share partitions that have none."""
        group = changes.group
        if not group.states_are_due:
            return
        group.states_are_due = False
        missing = group.partitions.missing(group.subscribed(self._groups.image))
        if missing:
            changes.put_partitions(group.partitions.with_initializing(missing))
            self._initialize(changes, missing)

    def _initialize(self, changes: ShareChanges, shares: Shares) -> None:
        """Asks for the states of `shares`, except of topics about which a question is open."""
        group = changes.group
        wanted = {topic_id: topic for topic_id, topic in shares.items() if topic_id not in group.asked_about}
        if not wanted:
            return
        group.asked_about |= wanted.keys()
        offsets = {topic_id: dict.fromkeys(topic.partitions, NO_OFFSET) for topic_id, topic in wanted.items()}
        self._ask(
            changes.decision,
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            _initialization(group, offsets),
            lambda results, now_ms: self._initialized(group, wanted, results, now_ms),
        )

    def _initialized(
        self, group: ShareGroup, wanted: Shares, results: Results, now_ms: WallMs
    ) -> ShardDecision:
        decision = ShardDecision()
        if self._groups.by_id.get(group.group_id) is not group:
            return decision
        group.asked_about -= wanted.keys()
        changes = ShareChanges(self._groups, group, decision, now_ms)
        done = _initialized_of(group.partitions.initializing, wanted, results)
        if done:
            changes.put_partitions(group.partitions.with_initialized(done))
            changes.update_epoch(must_grow=True)  # so that the next heartbeat assigns them
        is_complete = wanted.keys().isdisjoint(group.partitions.initializing)
        self._retry_later(changes, is_complete=is_complete)
        return decision

    def delete_topics(
        self,
        changes: ShareChanges,
        topic_ids: Iterable[UUID],
        answered: Answered,
        refuse: Callable[[], list[Reply]],
    ) -> None:
        """Deletes the states of known topics, and then calls `answered`. The group forgets the topics whose
        states are deleted.
        """
        group, image = changes.group, self._groups.image
        partitions: dict[UUID, frozenset[int]] = {}
        for topic_id in topic_ids:
            known = group.partitions.partitions_of(topic_id)
            name = image.topic_names.get(topic_id)
            count = 0 if name is None else image.topics[name].partition_count
            partitions[topic_id] = known | frozenset(range(count))
        changes.put_partitions(group.partitions.with_deleting(partitions))
        group.asked_about |= partitions.keys()
        request = deleting.DeleteShareGroupStateRequest(
            group.group_id,
            [
                deleting.DeleteStateData(
                    topic_id,
                    [deleting.PartitionData(partition) for partition in sorted(numbers)],
                )
                for topic_id, numbers in sorted(partitions.items())
            ],
        )

        def deleted(results: Results, now_ms: WallMs) -> ShardDecision:
            group.asked_about -= partitions.keys()
            decision = ShardDecision()
            if self._groups.by_id.get(group.group_id) is group:
                later = ShareChanges(self._groups, group, decision, now_ms)
                gone = {
                    topic_id
                    for topic_id, numbers in partitions.items()
                    if all(error_of(results, topic_id, number) is ErrorCode.NONE for number in numbers)
                }
                later.put_partitions(group.partitions.without(gone))
                group.states_are_due = True
                self._retry_later(later, is_complete=gone == partitions.keys())
            merge(decision, answered(results, now_ms))
            return decision

        self._ask(changes.decision, ApiKey.DELETE_SHARE_GROUP_STATE, request, deleted, refuse)

    def _retry_later(self, changes: ShareChanges, *, is_complete: bool) -> None:
        group = changes.group
        if is_complete:
            group.failures = 0
            return
        longest_ms = self._groups.settings.group_share_initialize_retry_interval_ms
        delay_ms = min(FIRST_RETRY_MS << min(group.failures, 10), longest_ms)
        group.failures += 1
        changes.set_timer(STATES_TIMER, "", delay_ms)

    def resume(self, changes: ShareChanges) -> None:
        """Creates and deletes the states of share partitions that the group's record lists as unfinished."""
        group = changes.group
        self._initialize(changes, group.partitions.initializing)
        deleting = group.partitions.deleting.keys() - group.asked_about
        if deleting:
            self.delete_topics(changes, deleting, lambda results, now_ms: ShardDecision(), _no_replies)

    def reset(
        self,
        changes: ShareChanges,
        offsets: Mapping[UUID, Mapping[int, int]],
        names: Mapping[UUID, str],
        answered: Answered,
        refuse: Callable[[], list[Reply]],
    ) -> None:
        """Sets the start offsets of share partitions, whether or not they have a state, and calls `answered`.

        `offsets` are the offsets by topic id and partition. The group must be empty.
        """
        group = changes.group
        changes.update_epoch(must_grow=True)  # its epoch becomes the state epoch, which fences earlier writes
        wanted = {
            topic_id: TopicShare(names[topic_id], frozenset(numbers)) for topic_id, numbers in offsets.items()
        }
        changes.put_partitions(group.partitions.with_initializing(group.partitions.missing(wanted)))
        group.asked_about |= wanted.keys()

        def done(results: Results, now_ms: WallMs) -> ShardDecision:
            decision = self._initialized(group, wanted, results, now_ms)
            decision.replies += answered(results, now_ms).replies
            return decision

        request = _initialization(group, offsets)
        self._ask(changes.decision, ApiKey.INITIALIZE_SHARE_GROUP_STATE, request, done, refuse)

    def summarize(
        self,
        decision: ShardDecision,
        group: ShareGroup,
        partitions: Mapping[UUID, Iterable[int]],
        answered: Answered,
        refuse: Callable[[], list[Reply]],
    ) -> None:
        """Reads the start offsets of share partitions and calls `answered`."""
        request = summarizing.ReadShareGroupStateSummaryRequest(
            group.group_id,
            [
                summarizing.ReadStateSummaryData(
                    topic_id,
                    [
                        summarizing.PartitionData(partition, _ANY_LEADER_EPOCH)
                        for partition in sorted(numbers)
                    ],
                )
                for topic_id, numbers in sorted(partitions.items())
            ],
        )
        self._ask(decision, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, request, answered, refuse)

    def ask_end_offsets(
        self,
        decision: ShardDecision,
        partitions: Iterable[TopicPartition],
        answered: EndsAnswered,
        refuse: Callable[[], list[Reply]],
    ) -> None:
        """Asks for the high watermarks of partitions and calls `answered` with those that are known."""
        self._next_token += 1
        self._open[self._next_token] = _Question(answered, refuse)
        decision.effects.append(AskEndOffsets(self._next_token, tuple(partitions)))


_ANY_LEADER_EPOCH: Final = -1
_INITIALIZED: Final = (ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH)
"""The results after which a state exists. A newer state epoch is that of a later reset."""


def _initialization(
    group: ShareGroup, offsets: Mapping[UUID, Mapping[int, int]]
) -> initializing.InitializeShareGroupStateRequest:
    """Returns the request to create states that begin at these offsets, in the group epoch."""
    return initializing.InitializeShareGroupStateRequest(
        group.group_id,
        [
            initializing.InitializeStateData(
                topic_id,
                [
                    initializing.PartitionData(number, group.epoch, offset)
                    for number, offset in sorted(numbers.items())
                ],
            )
            for topic_id, numbers in sorted(offsets.items())
        ],
    )


def error_of(results: Results, topic_id: UUID, partition: int) -> ErrorCode:
    """Returns the error code of a share partition. Without an answer, the client may try again."""
    result = results.get((topic_id, partition))
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if result is None else ErrorCode(result.error_code)


def _initialized_of(initializing: Shares, wanted: Shares, results: Results) -> Shares:
    """Returns the wanted share partitions that are initializing and whose state exists now."""
    found: dict[UUID, TopicShare] = {}
    for topic_id, topic in wanted.items():
        known = initializing.get(topic_id)
        if known is not None:
            exist = frozenset(
                partition
                for partition in topic.partitions & known.partitions
                if error_of(results, topic_id, partition) in _INITIALIZED
            )
            if exist:
                found[topic_id] = TopicShare(topic.name, exist)
    return found
