"""The offsets of share groups: DescribeShareGroupOffsets v0-1, AlterShareGroupOffsets v0 and
DeleteShareGroupOffsets v0, and the deletion of share groups with DeleteGroups.

The offsets are in the states of share partitions, so every answer waits for the owners of these states.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.groups.modern_groups import find_group
from tidelog.group_coordinator.groups.share.share_group import ShareChanges, ShareGroup
from tidelog.group_coordinator.groups.share.share_groups import (
    EndOffsets,
    Result,
    Results,
    ShareStates,
    error_of,
)
from tidelog.group_coordinator.groups.shared import Groups, answer
from tidelog.group_coordinator.shard_core import NO_ROOM, AnswerRoom, Reply, ShardDecision, ShardRequest
from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import UNKNOWN_OFFSET
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.wire.messages import alter_share_group_offsets as altering
from tidelog.wire.messages import delete_share_group_offsets as deleting
from tidelog.wire.messages import describe_share_group_offsets as describing

_UNKNOWN_TOPIC: Final = "This server does not host this topic-partition."
_NO_OFFSETS: Final = "There is no offset information to delete."
_NOT_EMPTY: Final = "The group is not empty."
_NO_LAG: Final = -1
_FIRST_VERSION_WITH_LAG: Final = 1


PARTITIONS_AT_ONCE: Final = 1_000
"""The partitions about which the owners of their states are asked at once, but at least those of a whole
group. A request may name groups with hundreds of thousands of partitions.
"""
PARTITION_BYTES: Final = 32
"""About the bytes of a partition in the answer. So it is known whether a group has room before the owners of
its states are asked.
"""
_DescribedGroup = describing.DescribeShareGroupOffsetsResponseGroup
_DescribedPartition = describing.DescribeShareGroupOffsetsResponsePartition


class _OffsetsAnswer:
    """The answer to a DescribeShareGroupOffsets, which is made group after group."""

    def __init__(self, request: ShardRequest[describing.DescribeShareGroupOffsetsRequest]) -> None:
        self.request = request
        self.room = AnswerRoom()
        self.described: list[_DescribedGroup | Steps[_DescribedGroup] | None] = []
        """The first groups of the request: refused, described in steps, or None until the owners of their
        states have answered.
        """
        self.open_questions = 0
        self._is_refused = False

    def add_refusal(self, code: ErrorCode, message: str | None = None) -> None:
        """Refuses the next group."""
        group_id = self.request.message.groups[len(self.described)].group_id
        self.described.append(_DescribedGroup(group_id, error_code=code, error_message=message))

    def response(self) -> Steps[describing.DescribeShareGroupOffsetsResponse]:
        response = describing.DescribeShareGroupOffsetsResponse()
        for described in self.described:
            group = (yield from described) if isinstance(described, Generator) else described
            assert group is not None  # all questions are answered
            response.groups.append(group)
            yield
        return response

    def refuse_all(self) -> list[Reply]:
        """Returns the reply for the end of the core. Each open question asks for it."""
        if self._is_refused:
            return []
        self._is_refused = True
        groups = [
            _DescribedGroup(wanted.group_id, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            for wanted in self.request.message.groups
        ]
        response = describing.DescribeShareGroupOffsetsResponse(groups=groups)
        return [Reply(self.request.reply_to, response)]


class ShareAdmin:
    """The requests of administrators about share groups."""

    def __init__(self, groups: Groups, states: ShareStates) -> None:
        self._groups = groups
        self._states = states

    def describe_offsets(
        self, request: ShardRequest[describing.DescribeShareGroupOffsetsRequest], now_ms: WallMs
    ) -> ShardDecision:
        decision = ShardDecision()
        self._describe_on(_OffsetsAnswer(request), decision)
        return decision

    def _describe_on(self, answer: _OffsetsAnswer, decision: ShardDecision) -> None:
        """Describes the next groups, or replies if all of them are described."""
        group_count = len(answer.request.message.groups)
        asked_count = 0
        while asked_count < PARTITIONS_AT_ONCE and len(answer.described) < group_count:
            if answer.room.is_full:
                answer.add_refusal(NO_ROOM)
            else:
                asked_count += self._describe_next(answer, decision)
        if not answer.open_questions:
            decision.replies.append(Reply(answer.request.reply_to, answer.response()))

    def _describe_next(self, answer: _OffsetsAnswer, decision: ShardDecision) -> int:
        """Describes one group, now or when the owners of its states have answered. Returns the number of
        partitions about which they are asked. As in Kafka, a group or topic that does not exist has no start
        offsets, which is not an error.
        """
        number = len(answer.described)
        wanted = answer.request.message.groups[number]
        try:
            group = self._known_or_new(wanted.group_id)
        except KafkaError as error:
            answer.add_refusal(error.code, error.message)
            return 0
        names = self._groups.image.topics
        initialized = group.partitions.initialized
        if wanted.topics is None:
            topics = [(topic.name, sorted(topic.partitions)) for topic in initialized.values()]
        else:
            topics = [(topic.topic_name, topic.partitions) for topic in wanted.topics]
        questions: dict[UUID, set[int]] = {}
        for name, numbers in topics:
            topic = names.get(name)
            known = None if topic is None else initialized.get(topic.topic_id)
            found = set(numbers) & (known.partitions if known is not None else set())
            if topic is not None and found:
                questions[topic.topic_id] = found
        answer.room.take(PARTITION_BYTES * sum(len(numbers) for _, numbers in topics))

        def described(results: Results, ends: EndOffsets) -> None:
            answer.described[number] = self._described_group(group.group_id, topics, questions, results, ends)

        def complete(results: Results, ends: EndOffsets) -> ShardDecision:
            described(results, ends)
            answer.open_questions -= 1
            later = ShardDecision()
            if not answer.open_questions:
                self._describe_on(answer, later)
            return later

        def summarized(results: Results, now_ms: WallMs) -> ShardDecision:
            started = [
                TopicPartition(self._groups.image.topic_names.get(topic_id, ""), number)
                for (topic_id, number), result in results.items()
                if result.start_offset >= 0
            ]
            if answer.request.api_version < _FIRST_VERSION_WITH_LAG or not started:
                return complete(results, {})
            later = ShardDecision()
            self._states.ask_end_offsets(
                later, started, lambda ends, now_ms: complete(results, ends), answer.refuse_all
            )
            return later

        answer.described.append(None)
        if questions:
            answer.open_questions += 1
            self._states.summarize(decision, group, questions, summarized, answer.refuse_all)
        else:
            described({}, {})
        return sum(map(len, questions.values()))

    def _described_group(
        self,
        group_id: str,
        topics: list[tuple[str, list[int]]],
        questions: dict[UUID, set[int]],
        results: Results,
        ends: EndOffsets,
    ) -> Steps[_DescribedGroup]:
        described = _DescribedGroup(group_id)
        for name, numbers in sorted(topics, key=lambda topic: topic[0]):
            topic = self._groups.image.topics.get(name)
            topic_id = ZERO_TOPIC_ID if topic is None else topic.topic_id
            known = () if topic is None else questions.get(topic_id, ())
            partitions: list[_DescribedPartition] = []
            described.topics.append(
                describing.DescribeShareGroupOffsetsResponseTopic(name, topic_id, partitions)
            )
            for number in numbers:
                is_known = number in known
                error = error_of(results, topic_id, number) if is_known else ErrorCode.NONE
                if error or not is_known:
                    partitions.append(
                        _DescribedPartition(number, UNKNOWN_OFFSET, lag=_NO_LAG, error_code=error)
                    )
                else:
                    result = results[topic_id, number]
                    lag = _lag(result, ends.get(TopicPartition(name, number)))
                    partitions.append(
                        _DescribedPartition(number, result.start_offset, result.leader_epoch, lag)
                    )
                yield
        return described

    def alter_offsets(
        self, request: ShardRequest[altering.AlterShareGroupOffsetsRequest], now_ms: WallMs
    ) -> ShardDecision:
        """Sets start offsets. The group must be empty, and the next members begin at these offsets. The group
        is created if it does not exist.
        """
        message = request.message
        try:
            group = self._known_or_new(message.group_id)
            _check_empty(group)
        except KafkaError as error:
            return answer(request, _alter_refusal(error.code, error.message))
        image = self._groups.image
        offsets: dict[UUID, dict[int, int]] = {}
        names: dict[UUID, str] = {}
        for topic in message.topics:
            known = image.topics.get(topic.topic_name)
            if known is None or known.topic_id in group.partitions.deleting:
                continue  # a deletion that is not complete yet would undo the change
            wanted = {
                partition.partition_index: partition.start_offset
                for partition in topic.partitions
                if 0 <= partition.partition_index < known.partition_count and partition.start_offset >= 0
            }
            if wanted:
                offsets[known.topic_id] = wanted
                names[known.topic_id] = topic.topic_name
        decision = ShardDecision()

        def altered(results: Results, now_ms: WallMs) -> ShardDecision:
            responses = [self._altered_topic(topic, results) for topic in message.topics]
            response = altering.AlterShareGroupOffsetsResponse(responses=responses)
            return ShardDecision(replies=[Reply(request.reply_to, response)])

        if not offsets:
            return altered({}, now_ms)
        self._groups.by_id[group.group_id] = group
        changes = ShareChanges(self._groups, group, decision, now_ms)
        refusal = Reply(request.reply_to, _alter_refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None))
        self._states.reset(changes, offsets, names, altered, lambda: [refusal])
        return decision

    def _altered_topic(
        self, topic: altering.AlterShareGroupOffsetsRequestTopic, results: Results
    ) -> altering.AlterShareGroupOffsetsResponseTopic:
        known = self._groups.image.topics.get(topic.topic_name)
        partitions = []
        for partition in topic.partitions:
            number, error = partition.partition_index, ErrorCode.NONE
            if known is None or not 0 <= number < known.partition_count:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif partition.start_offset < 0:
                error = ErrorCode.INVALID_REQUEST
            else:
                error = error_of(results, known.topic_id, number)
            text = _UNKNOWN_TOPIC if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
            partitions.append(altering.AlterShareGroupOffsetsResponsePartition(number, error, text))
        topic_id = ZERO_TOPIC_ID if known is None else known.topic_id
        return altering.AlterShareGroupOffsetsResponseTopic(topic.topic_name, topic_id, partitions)

    def delete_offsets(
        self, request: ShardRequest[deleting.DeleteShareGroupOffsetsRequest], now_ms: WallMs
    ) -> ShardDecision:
        """Deletes the states of topics. The group must be empty."""
        message = request.message
        try:
            group = find_group(self._groups, message.group_id, ShareGroup)
            _check_empty(group)
        except KafkaError as error:
            return answer(request, _delete_refusal(error.code, error.message))
        topics = self._groups.image.topics
        known = {topic.topic_name: topics.get(topic.topic_name) for topic in message.topics}
        in_group = group.partitions.topic_ids()
        found = {
            topic.topic_id: name
            for name, topic in known.items()
            if topic is not None and topic.topic_id in in_group
        }

        def deleted(results: Results, now_ms: WallMs) -> ShardDecision:
            left = group.partitions.deleting
            responses = []
            for topic in message.topics:
                image = known[topic.topic_name]
                if image is None:
                    error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_TOPIC
                elif image.topic_id not in found:
                    error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_OFFSETS
                elif image.topic_id in left:
                    error, text = ErrorCode.COORDINATOR_NOT_AVAILABLE, None
                else:
                    error, text = ErrorCode.NONE, None
                topic_id = ZERO_TOPIC_ID if image is None else image.topic_id
                responses.append(
                    deleting.DeleteShareGroupOffsetsResponseTopic(topic.topic_name, topic_id, error, text)
                )
            response = deleting.DeleteShareGroupOffsetsResponse(responses=responses)
            return ShardDecision(replies=[Reply(request.reply_to, response)])

        if not found:
            return deleted({}, now_ms)
        decision = ShardDecision()
        changes = ShareChanges(self._groups, group, decision, now_ms)
        refusal = Reply(request.reply_to, _delete_refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None))
        self._states.delete_topics(changes, found, deleted, lambda: [refusal])
        return decision

    def _known_or_new(self, group_id: str) -> ShareGroup:
        """Returns a group, which is not in `by_id` if it is new. Raises KafkaError."""
        if group_id and group_id not in self._groups.by_id:
            return ShareGroup(group_id)
        return find_group(self._groups, group_id, ShareGroup)

    def delete_group(
        self,
        group: ShareGroup,
        decision: ShardDecision,
        now_ms: WallMs,
        answered: Callable[[ErrorCode], list[Reply]],
    ) -> None:
        """Deletes the states of an empty group, and then the group. Calls `answered` with the outcome."""

        def finish() -> ShardDecision:
            finished = ShardDecision()
            if self._groups.by_id.get(group.group_id) is not group:
                error = ErrorCode.GROUP_ID_NOT_FOUND  # another request has deleted it meanwhile
            elif group.partitions.deleting:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            else:
                error = group.check_delete()
                if error is ErrorCode.NONE:
                    self._groups.delete(group, finished)
            finished.replies += answered(error)
            return finished

        topic_ids = group.partitions.topic_ids()
        if not topic_ids:
            finished = finish()
            decision.records += finished.records
            decision.replies += finished.replies
            return
        changes = ShareChanges(self._groups, group, decision, now_ms)
        self._states.delete_topics(
            changes,
            topic_ids,
            lambda results, now_ms: finish(),
            lambda: answered(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        )


def _check_empty(group: ShareGroup) -> None:
    """Raises KafkaError (NON_EMPTY_GROUP)."""
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, _NOT_EMPTY)


def _lag(summary: Result, end_offset: int | None) -> int:
    """Returns the number of records whose delivery is not complete, or -1 if it is unknown (KIP-1226)."""
    complete = summary.delivery_complete_count
    if end_offset is None or summary.start_offset < 0 or complete < 0:
        return _NO_LAG
    return max(0, end_offset - int(summary.start_offset) - int(complete))


def _alter_refusal(code: ErrorCode, message: str | None) -> altering.AlterShareGroupOffsetsResponse:
    return altering.AlterShareGroupOffsetsResponse(error_code=code, error_message=message)


def _delete_refusal(code: ErrorCode, message: str | None) -> deleting.DeleteShareGroupOffsetsResponse:
    return deleting.DeleteShareGroupOffsetsResponse(error_code=code, error_message=message)
