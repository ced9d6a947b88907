"""A ConsumerLab with share groups, and with an owner of their share partitions' states that may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: requests and responses of several APIs

from grouplab.consumer_lab import ConsumerLab
from tidelog.group_coordinator.groups.share.share_group import ShareGroup
from tidelog.group_coordinator.shard_core import AskEndOffsets, AskShareStates, ShardDecision, ShardRequest
from tidelog.group_coordinator.share_state_core import ShareStateCore
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

SHARERS = "sharers"


class ShareLab(ConsumerLab):
    """`answers_states` decides whether a question to the owner of states is answered: True, False (it is lost
    before it arrives) or None (the answer is lost).
    """

    def __init__(self, **how: Any) -> None:
        self.answers_states: Callable[[], bool | None] = lambda: True
        self.questions: list[AskShareStates | AskEndOffsets] = []
        self.ends: dict[TopicPartition, int] = {}
        """The high watermarks that the leaders of partitions report."""
        super().__init__(**how)
        self.states = ShareStateCore(self.settings)

    def take(self, decision: ShardDecision) -> None:
        super().take(decision)
        for effect in decision.effects:
            assert isinstance(effect, AskShareStates | AskEndOffsets)
            self.questions.append(effect)

    def settle(self) -> None:
        """Answers all questions."""
        while self.questions:
            self.answer_first()

    def answer_first(self) -> None:
        """Answers the first question."""
        effect = self.questions.pop(0)
        if isinstance(effect, AskEndOffsets):
            known = {at: self.ends[at] for at in effect.partitions if at in self.ends}
            self.take(self.core.effect_done(effect, known, self.now_ms))
            return
        outcome, core = self.answers_states(), self.core
        response = None
        if outcome is not False:
            self.states.image_changed(self.image, self.now_ms)
            request = ShardRequest("q", effect.api_key, 0, effect.request)
            response = self.states.handle(request, self.now_ms).replies[0].message
        self.take(core.effect_done(effect, response if outcome else None, self.now_ms))

    def fail_over(self) -> None:
        self.questions.clear()
        super().fail_over()

    def share_group(self) -> ShareGroup:
        found = self.core.groups.by_id[SHARERS]
        assert isinstance(found, ShareGroup), found
        return found

    def start_offsets(self) -> dict[tuple[str, int], int]:
        """Returns the start offsets that the owner of the states has."""
        names = self.image.topic_names
        return {
            (names.get(key.topic_id, "gone"), key.partition): state.start_offset
            for key, state in self.states.states.items()
        }


class ModelSharer:
    """A member of the share group."""

    def __init__(self, lab: ShareLab, member_id: str, topics: list[str]) -> None:
        self.lab = lab
        self.member_id = member_id
        self.topics = topics
        self.epoch = 0
        self.partitions: set[tuple[str, int]] = set()

    def beat(self, epoch: int | None = None) -> ShareGroupHeartbeatResponse:
        sent = self.epoch if epoch is None else epoch
        names = self.topics if sent == 0 else None
        request = ShareGroupHeartbeatRequest(SHARERS, self.member_id, sent, None, names)
        answer: ShareGroupHeartbeatResponse = self.lab.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, request)
        if answer.error_code == ErrorCode.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                names_of = self.lab.image.topic_names
                self.partitions = {
                    (names_of.get(topic.topic_id, "gone"), partition)
                    for topic in answer.assignment.topic_partitions
                    for partition in topic.partitions
                }
        elif answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.epoch, self.partitions = 0, set()
        return answer
