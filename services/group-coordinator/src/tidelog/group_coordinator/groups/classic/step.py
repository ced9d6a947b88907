"""What one event makes of classic groups, while it is worked out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tidelog.group_coordinator.groups.classic.member import SessionDeadline
from tidelog.group_coordinator.groups.shared import TimerKey
from tidelog.group_coordinator.shard_core import CancelTimer, CoordinatorRecord, Decision, Reply, SetTimer

OWNER = "classic"
SESSION = "session"
JOIN = "join"
SYNC = "sync"


class Step:
    """A decision in the making, and the time of it."""

    __slots__ = ("decision", "now_ms")

    def __init__(self, decision: Decision, now_ms: int) -> None:
        self.decision = decision
        self.now_ms = now_ms

    def reply(self, reply_to: Hashable, message: Any) -> None:
        self.decision.replies.append(Reply(reply_to, message))

    def record(self, record: CoordinatorRecord) -> None:
        self.decision.records.append(record)

    def set_timer(self, what: str, group_id: str, delay_ms: int) -> None:
        self.decision.timers.append(SetTimer(TimerKey(OWNER, what, group_id), self.now_ms + delay_ms))

    def cancel_timer(self, what: str, group_id: str) -> None:
        self.decision.timers.append(CancelTimer(TimerKey(OWNER, what, group_id)))

    def prolong(self, session: SessionDeadline, group_id: str, member_id: str, timeout_ms: int) -> None:
        """The member has until `timeout_ms` from now to be heard again."""
        session.deadline_ms = self.now_ms + timeout_ms
        if session.timer_ms is None or session.timer_ms > session.deadline_ms:
            self.set_session_timer(session, group_id, member_id)

    def set_session_timer(self, session: SessionDeadline, group_id: str, member_id: str) -> None:
        session.timer_ms = session.deadline_ms
        key = TimerKey(OWNER, SESSION, group_id, member_id)
        self.decision.timers.append(SetTimer(key, session.deadline_ms))

    def end_session(self, session: SessionDeadline, group_id: str, member_id: str) -> None:
        if session.timer_ms is not None:
            session.timer_ms = None
            self.decision.timers.append(CancelTimer(TimerKey(OWNER, SESSION, group_id, member_id)))
