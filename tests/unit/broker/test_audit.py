"""The audit log names who did what, and its rate is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from brokerlab.in_memory_broker import Asked, InMemoryBroker, until
from tidelog.broker.requests.apis import APIS
from tidelog.broker.requests.request import RequestContext
from tidelog.broker.security.audit import MAX_LINES_PER_SECOND, AuditLog
from tidelog.kernel import slices
from tidelog.model.acl import ANONYMOUS, AclOperation, ResourceType, user_principal
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import create_topics, delete_topics, metadata
from tidelog.wire.messages.create_topics import CreatableTopic


def test_the_rate_is_bounded_and_omissions_are_counted() -> None:
    now_s = 5.0
    audit = AuditLog(lambda: now_s)
    with capture_logs() as lines:
        for _ in range(3 * MAX_LINES_PER_SECOND):
            audit.login(ANONYMOUS, "10.0.0.1", "PLAIN", "the password is false")
        now_s = 6.0
        audit.login(user_principal("a"), "10.0.0.1", "PLAIN", "the password is false")
    assert len(lines) == MAX_LINES_PER_SECOND + 1
    assert lines[0]["outcome"] == "SASL_AUTHENTICATION_FAILED"
    assert lines[-1]["lines_omitted_before"] == 2 * MAX_LINES_PER_SECOND
    assert lines[-1]["principal"] == "User:a"


def test_failed_logins_do_not_displace_other_lines() -> None:
    """Anybody who reaches a listener can cause lines of failed logins."""
    audit = AuditLog(lambda: 5.0)
    root = user_principal("root")
    with capture_logs() as lines:
        for _ in range(2 * MAX_LINES_PER_SECOND):
            audit.login(ANONYMOUS, "10.0.0.1", "PLAIN", "the password is false")
        audit.login(root, "10.0.0.2", "PLAIN", None)
        context = SimpleNamespace(
            principal=root, host="10.0.0.2", route=SimpleNamespace(api_key=ApiKey.CREATE_ACLS)
        )
        for _ in range(2 * MAX_LINES_PER_SECOND):
            audit.denied(cast(RequestContext, context), AclOperation.READ, ResourceType.TOPIC, "t")
            audit.called(cast(RequestContext, context), ["t"], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        audit.called(cast(RequestContext, context), ["t"], ErrorCode.NONE)
    told = [(line["event"], line["outcome"]) for line in lines]
    assert told.count(("login", "NONE")) == told.count(("admin call", "NONE")) == 1
    assert told.count(("access denied", "DENIED")) == MAX_LINES_PER_SECOND


@pytest.fixture(autouse=True)
def _unused_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier tests may have used up the lines of the log of this process."""
    log = AuditLog()
    for module in ("security.audit", "parts", "net.authentication"):
        monkeypatch.setattr(f"tidelog.broker.{module}.AUDIT", log)


def test_each_api_that_changes_something_is_audited() -> None:
    changing = (
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.WRITE_TXN_MARKERS,
    )
    assert all(APIS[key].is_audited for key in changing)


def test_denied_accesses_and_calls_are_logged(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("closes", [False, True], ids=["stays", "closes"])
def test_a_call_that_is_judged_in_slices_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closes: bool
) -> None:
    monkeypatch.setattr(slices, "SLICE_MS", 1e-6)  # a slice ends at the first reading of the clock
    lab = InMemoryBroker(tmp_path, {"authorizer.class.name": STANDARD_AUTHORIZER})
    names = [f"t{number}" for number in range(3 * slices.STEPS_BETWEEN_READINGS)]
    creation = create_topics.CreateTopicsRequest([CreatableTopic(name, 1, 1) for name in names])

    async def create(lines: list[MutableMapping[str, Any]]) -> Asked:
        asked = Asked(lab.broker, creation, 7)
        assert asked.answer is None
        if closes:
            asked.close()
        await until(lambda: bool(lines) and lines[-1]["event"] == "admin call")
        return asked

    try:
        with capture_logs() as lines:
            asked = lab.runner.run(create(lines))
            if not closes:
                lab.runner.run(until(lambda: asked.answer is not None))
    finally:
        lab.close()
    calls = [line for line in lines if line["event"] == "admin call"]
    assert [(line["resources"][0], line["outcome"]) for line in calls] == [
        ("t0", "TOPIC_AUTHORIZATION_FAILED")
    ]
    if not closes:
        assert [topic.name for topic in asked.answer.topics] == names


def test_a_call_is_logged_if_its_client_closes_the_connection_before_the_answer(tmp_path: Path) -> None:
    lab = InMemoryBroker(tmp_path)
    lab.controller.answer = lambda _: delete_topics.DeleteTopicsResponse(
        responses=[delete_topics.DeletableTopicResult("t")]
    )
    deletion = delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState("t")])

    async def delete() -> None:
        asked = Asked(lab.broker, deletion, 6)
        assert asked.answer is None
        asked.close()
        await until(lambda: bool(lab.controller.forwarded))
        await asyncio.sleep(0.01)

    try:
        with capture_logs() as lines:
            lab.runner.run(delete())
    finally:
        lab.close()
    calls = [line for line in lines if line["event"] == "admin call"]
    assert [(line["resources"], line["outcome"]) for line in calls] == [(["t"], "NONE")]
