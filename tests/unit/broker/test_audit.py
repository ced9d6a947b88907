"""The audit log names who did what, and its rate is bounded."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from brokerlab.asking import Asked, until
from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.broker.audit import AUDIT, MAX_LINES_PER_SECOND, AuditLog
from tidelog.model.principal import ANONYMOUS, user_principal
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire.messages import create_topics, metadata
from tidelog.wire.messages.create_topics import CreatableTopic


def test_the_rate_is_bounded_and_omissions_are_counted() -> None:
    now_s = 5.0
    audit = AuditLog(lambda: now_s)
    with capture_logs() as lines:
        for _ in range(3 * MAX_LINES_PER_SECOND):
            audit.login(ANONYMOUS, "10.0.0.1", "PLAIN", "the password is false")
        now_s = 6.0
        audit.login(user_principal("a"), "10.0.0.1", "PLAIN", None)
    assert len(lines) == MAX_LINES_PER_SECOND + 1
    assert lines[0]["outcome"] == "SASL_AUTHENTICATION_FAILED"
    assert lines[-1]["lines_omitted_before"] == 2 * MAX_LINES_PER_SECOND
    assert (lines[-1]["principal"], lines[-1]["outcome"]) == ("User:a", "NONE")


def test_denied_accesses_and_calls_are_logged(tmp_path: Path) -> None:
    AUDIT._log._second = -1  # earlier tests may have used up its lines
    lab = InMemoryBroker(tmp_path, {"authorizer.class.name": STANDARD_AUTHORIZER})
    creation = create_topics.CreateTopicsRequest([CreatableTopic("t", 1, 1)])

    async def create() -> None:
        asked = Asked(lab.broker, creation, 7)
        await until(lambda: asked.answer is not None)

    try:
        lab.add_topic("secret")
        asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name="secret")])
        with capture_logs() as lines:
            lab.call(asked, 12, principal=user_principal("alice"))
            lab.call(metadata.MetadataRequest(None), 12, principal=user_principal("alice"))
            lab.runner.run(create())
    finally:
        lab.close()
    seen = [(line["event"], line["principal"], line["api"], line["outcome"]) for line in lines]
    assert seen == [
        ("access denied", "User:alice", "Metadata", "DENIED"),
        ("access denied", "User:ANONYMOUS", "CreateTopics", "DENIED"),
        ("admin call", "User:ANONYMOUS", "CreateTopics", "TOPIC_AUTHORIZATION_FAILED"),
    ]
    assert lines[0]["resource"] == "secret"
    assert lines[-1]["resources"] == ["t"]
