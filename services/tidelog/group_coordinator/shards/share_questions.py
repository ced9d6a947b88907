"""Questions about the states of share partitions, which a broker passes on to the owners of these states."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from tidelog.group_coordinator.shard_core import AskShareStates
from tidelog.group_coordinator.shards.producer_ids import AnyLine
from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer
from tidelog.rpc import coordinator_session as session
from tidelog.wire import codec
from tidelog.wire.api_keys import api_spec
from tidelog.wire.malformed import MalformedMessageError

TIMEOUT_MS: Final = 35_000
"""The time after which a question counts as not answered. The broker gives up a little earlier."""

MAX_OPEN: Final = 500
"""The questions that are asked at a time. A broker closes a session with more than 1,000 questions, of which
those about offsets are some.
"""

Answered = Callable[[object | None], None]
"""Receives the response, or None if there is no answer."""


class _Question(NamedTuple):
    broker_id: int
    api_key: int
    api_version: int
    answered: Answered
    overdue: Cancellable


class ShareQuestions:
    """The questions of all shards of this coordinator that are not answered yet."""

    def __init__(self, any_line: AnyLine, timer: DelayTimer) -> None:
        self._any_line = any_line
        self._timer = timer
        self._next_call_id = 0
        self._questions: dict[int, _Question] = {}
        self._waiting: deque[Callable[[], None]] = deque()

    def ask(self, effect: AskShareStates, answered: Answered) -> None:
        """Calls `answered` once, with the response or with None. It may be called at once."""
        self._waiting.append(partial(self._begin, effect, answered))
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._questions) < MAX_OPEN:
            self._waiting.popleft()()

    def _begin(self, effect: AskShareStates, answered: Answered) -> None:
        found = self._any_line()
        if found is None:
            answered(None)
            return
        broker_id, line = found
        version = api_spec(effect.api_key).max_version
        body = b"".join(map(bytes, codec.request_encoder(effect.api_key, version)(effect.request)))
        self._next_call_id = call_id = self._next_call_id + 1
        overdue = self._timer.add_after(lambda: self._finish(call_id, None), TIMEOUT_MS)
        self._questions[call_id] = _Question(broker_id, effect.api_key, version, answered, overdue)
        line.send(session.AskShareStates(call_id, effect.api_key, version, body))

    def received(self, item: session.ShareStatesTold) -> None:
        """Takes a broker's answer. An answer that can't be decoded counts as none."""
        question = self._questions.get(item.call_id)
        if question is None:
            return
        try:
            response = codec.response_decoder(question.api_key, question.api_version)(item.body, 0)[0]
        except MalformedMessageError:
            response = None
        self._finish(item.call_id, response)

    def session_ended(self, broker_id: int) -> None:
        for call_id in [
            call_id for call_id, asked in self._questions.items() if asked.broker_id == broker_id
        ]:
            self._finish(call_id, None)

    def _finish(self, call_id: int, response: object | None) -> None:
        question = self._questions.pop(call_id, None)
        if question is not None:
            question.overdue.cancel()
            question.answered(response)
            self._begin_waiting()
