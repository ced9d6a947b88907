"""Questions of a coordinator to brokers: bounded, answered once, and given up when a session ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog.group_coordinator.shard_core import AskShareStates
from tidelog.group_coordinator.shards import broker_calls
from tidelog.group_coordinator.shards.broker_calls import OffsetQuestions, ShareQuestions
from tidelog.kernel.timer import LoopTimer
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import (
    AskOffsets,
    Item,
    OffsetsTold,
    PartitionOffsets,
    ShareStatesTold,
)
from tidelog.rpc.coordinator_session import (
    AskShareStates as AskItem,
)
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)

EFFECT = AskShareStates(1, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, ReadShareGroupStateSummaryRequest("g", []))
BROKER = 7


class Line:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, item: Item) -> None:
        self.sent.append(item)

    def close(self) -> None: ...


def response() -> bytes:
    encode = codec.response_encoder(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1)
    return b"".join(map(bytes, encode(ReadShareGroupStateSummaryResponse())))


def test_questions_about_states_are_bounded_and_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_calls, "MAX_OPEN_SHARE_QUESTIONS", 2)

    async def run() -> None:
        timer, line = LoopTimer(asyncio.get_running_loop()), Line()
        asked = ShareQuestions(lambda: (BROKER, line), timer)
        answers: list[object] = []
        for _ in range(4):
            asked.ask(EFFECT, answers.append)
        assert [type(item) for item in line.sent] == [AskItem, AskItem]
        asked.received(ShareStatesTold(line.sent[0].call_id, response()))
        asked.received(ShareStatesTold(line.sent[0].call_id, response()))
        assert answers == [ReadShareGroupStateSummaryResponse()]
        assert len(line.sent) == 3
        asked.received(ShareStatesTold(line.sent[1].call_id, b"not a response"))
        assert answers[1:] == [None]
        asked.session_ended(BROKER + 1)
        assert len(answers) == 2
        asked.session_ended(BROKER)
        assert len(answers) == 4
        timer.close()

    asyncio.run(run())


def test_a_question_without_a_session_is_answered_with_none() -> None:
    async def run() -> None:
        timer = LoopTimer(asyncio.get_running_loop())
        answers: list[object] = []
        ShareQuestions(lambda: None, timer).ask(EFFECT, answers.append)
        assert answers == [None]
        timer.close()

    asyncio.run(run())


def test_questions_about_offsets_overlap_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_calls, "MAX_OPEN_CALLS", 2)
    told = PartitionOffsets(0, 9, 9, -1)
    first, second = (TopicPartition("t", 0), -1), (TopicPartition("t", 1), -1)

    async def run() -> None:
        timer, line = LoopTimer(asyncio.get_running_loop()), Line()
        asked = OffsetQuestions(lambda partition: (BROKER, line), timer)
        answers: list[object] = []
        asked.ask([], answers.append)
        assert answers == [{}]
        for position in (first, second, first):
            asked.ask([position], answers.append)
        assert [type(item) for item in line.sent] == [AskOffsets, AskOffsets]
        asked.received(OffsetsTold(line.sent[1].call_id, (told,)))
        assert answers[1:] == [{second: told}]
        assert len(line.sent) == 3
        asked.session_ended(BROKER)
        assert answers[2:] == [{}, {}]
        timer.close()

    asyncio.run(run())
