"""Single decisions of a share consumer's core."""

from __future__ import annotations

import pytest

from tidelog.client.core.consumer import SendGroupRequest
from tidelog.client.core.membership import Heartbeat, HeartbeatAnswered
from tidelog.client.core.share_consumer import ShareConsumerCore
from tidelog.client.core.share_settings import ShareConsumerSettings
from tidelog.model.errors import ErrorCode, KafkaError


def refused() -> ShareConsumerCore:
    """Returns a member that the coordinator refuses for ever."""
    core = ShareConsumerCore(ShareConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.subscribe(("t",), 0)
    (request,) = [effect.request for effect in core.begin_poll(0) if isinstance(effect, SendGroupRequest)]
    assert isinstance(request, Heartbeat)
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    core.step(HeartbeatAnswered(request, code, None, 0, 0, None), 1)
    return core


def test_each_poll_of_a_refused_member_fails() -> None:
    """An application that catches the first error would wait for records that never come."""
    core = refused()
    for now_ms in (2, 3):
        core.begin_poll(now_ms)
        with pytest.raises(KafkaError, match="group 'g'"):
            core.take(10, now_ms)
        assert not core.is_polling


def test_an_error_of_an_earlier_subscription_is_not_raised() -> None:
    core = refused()
    core.error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0")
    core.unsubscribe()
    core.subscribe(("u",), 2)
    core.begin_poll(2)
    assert core.take(10, 2) == []
