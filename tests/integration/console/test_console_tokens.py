"""Users log in to the console with bearer tokens of an OpenID Connect provider and with delegation tokens."""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from brokerlab.secured_broker import ALICE, MALLORY, PASSWORD, TOPIC, SecuredBroker
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.client.security import parse_security
from tidelog.console.login import MAX_TOKEN_CHARACTERS
from tidelog.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

pytestmark = pytest.mark.integration
Serve = Callable[..., Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"))
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def console(broker: SecuredBroker, serve_console: Serve) -> Any:
    return serve_console(broker.bootstrap("SASL_PLAINTEXT"), login="OAUTHBEARER")


def sent(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def unsigned(**claims: object) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)
    ]
    return f"{parts[0]}.{parts[1]}.x"


def test_a_token_that_is_pasted_logs_in(console: Any, broker: SecuredBroker) -> None:
    page = console.get("/login").text
    assert 'name="token" type="password"' in page
    assert 'name="password"' not in page
    token = broker.provider.token(ALICE)
    for pasted in (token, f" Bearer {token}\n"):
        answer = console.post("/login", token=pasted, next="/topics")
        assert (answer.status, answer.headers["location"]) == (303, "/topics"), answer.text
        cookie, *attributes = answer.headers["set-cookie"].split("; ")
        assert re.fullmatch(rf"tidelog-session-{console.port}=[\w-]{{43}}", cookie)
        assert {each.lower() for each in attributes} == {"httponly", "path=/", "samesite=strict"}
        topics = console.get("/topics", headers={"Cookie": cookie})
        assert re.findall(r'href="/topics/([^"?]+)"', topics.text) == [TOPIC]
        assert f"User <b>{ALICE}</b>" in topics.text
        assert token not in topics.text
        assert console.post("/logout", cookie=cookie).status == 303
        assert console.get("/topics", headers={"Cookie": cookie}).status == 303


def test_the_token_of_a_proxy_logs_in(console: Any, broker: SecuredBroker) -> None:
    headers = sent(broker.provider.token(ALICE))
    answer = console.get("/topics", headers=headers)
    assert answer.status == 200, answer.text
    assert re.findall(r'href="/topics/([^"?]+)"', answer.text) == [TOPIC]
    assert f"User <b>{ALICE}</b>" in answer.text
    assert "/logout" not in answer.text  # the next request would log in again
    assert "set-cookie" not in answer.headers
    assert console.get(f"/topics/{TOPIC}/records", headers=headers).status == 200
    assert console.get("/topics").status == 303
    events = console.events("/events/topics", headers=headers)
    assert next(events)[0] == "fragment"


def test_requests_at_the_same_time_with_one_token_share_a_session(
    broker: SecuredBroker, serve_console: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.console.core.sessions.MAX_SESSIONS", 1)
    monkeypatch.setattr("tidelog.console.login.MAX_LOGINS", 1)
    console = serve_console(broker.bootstrap("SASL_PLAINTEXT"), login="OAUTHBEARER")
    headers = sent(broker.provider.token(ALICE))
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: console.get("/topics", headers=headers), range(8)))
    assert [answer.status for answer in answers] == [200] * 8, answers[0].text


def test_tokens_that_the_cluster_refuses(console: Any, broker: SecuredBroker) -> None:
    provider = broker.provider
    for token, text in (
        (provider.token(ALICE, aud="other"), "The cluster does not accept this token."),
        (unsigned(sub=ALICE, exp=time.time() + 60), "The cluster does not accept this token."),
        (provider.token(ALICE, exp=int(time.time()) - 1), "The token has expired."),
        (provider.token(ALICE, exp=None), "it has no claim exp with a time"),
        (provider.token(ALICE, sub=None), "it has no claim sub with a name"),
        (provider.token("a\nb"), "its user has no printable name"),
        ("opaque", "it is not a JSON Web Token"),
        ("a.b.c\x01auth=x", "it is not a JSON Web Token"),
        ("x.!.x", "it is not a JSON Web Token"),
        ("x" * (MAX_TOKEN_CHARACTERS + 1), "characters"),
        ("", "There is no bearer token."),
    ):
        answer = console.post("/login", token=token)
        assert answer.status in (400, 403), text
        assert text in answer.text
        assert "set-cookie" not in answer.headers
        assert not token or token not in answer.text
        if token.isprintable():
            answer = console.get("/topics", headers=sent(token))
            assert answer.status == 401, text
            assert text in answer.text
            assert not token or token not in answer.text
            assert next(console.events("/events/topics", headers=sent(token)))[0] == "ended"


def test_a_refused_token_does_not_stop_its_user(console: Any, broker: SecuredBroker) -> None:
    false = broker.provider.token(ALICE, aud="other")
    statuses = [console.get("/topics", headers=sent(false)).status for _ in range(7)]
    assert statuses == [401] * 5 + [429] * 2
    answer = console.get("/topics", headers=sent(false))
    assert "Too many logins have failed." in answer.text
    assert console.get("/topics", headers=sent(broker.provider.token(ALICE))).status == 200


def test_two_tokens_of_one_request_are_refused(console: Any, broker: SecuredBroker) -> None:
    one, other = broker.provider.token(ALICE), broker.provider.token(ALICE, jti="2")
    answer = console.get("/topics", headers={"Authorization": f"Bearer {one},Bearer {other}"})
    assert answer.status == 401


def test_other_authorization_headers_mean_nothing(console: Any, broker: SecuredBroker) -> None:
    login = base64.b64encode(f"{ALICE}:{PASSWORD}".encode()).decode()
    assert console.get("/topics", headers={"Authorization": f"Basic {login}"}).status == 303


def test_bearer_tokens_mean_nothing_where_users_have_passwords(
    broker: SecuredBroker, serve_console: Serve
) -> None:
    console = serve_console(broker.bootstrap("SASL_PLAINTEXT"), login="SCRAM-SHA-512")
    assert console.get("/topics", headers=sent(broker.provider.token(ALICE))).status == 303
    assert 'name="token"' not in console.get("/login").text


def test_a_session_ends_with_its_token(console: Any, broker: SecuredBroker) -> None:
    token = broker.provider.token(ALICE, exp=int(time.time()) + 3)
    cookie = console.log_in_with(token=token)
    assert console.get("/topics", headers={"Cookie": cookie}).status == 200
    began_s = time.monotonic()
    # The page is not asked for again: the stream itself ends, at the token's time and not at the next sweep.
    assert "ended" in [name for name, _ in console.events("/events/topics", cookie)]
    assert time.monotonic() - began_s < 20
    assert console.get("/topics", headers={"Cookie": cookie}).status == 303
    answer = console.get("/topics", headers=sent(token))
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert "The token has expired." in answer.text


def test_tokens_are_not_logged(
    console: Any, broker: SecuredBroker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = [broker.provider.token(ALICE), broker.provider.token(MALLORY, aud="other")]
    for token in tokens:
        console.post("/login", token=token)
        console.get("/topics", headers=sent(token))
    output = capfd.readouterr()
    for token in tokens:
        for text in (caplog.text, output.out, output.err):
            assert token not in text and token.split(".")[2] not in text


def new_token(broker: SecuredBroker) -> CreateDelegationTokenResponse:
    (address,) = parse_bootstrap(broker.bootstrap("SSL"))
    with BrokerConnection.open(
        address, security=parse_security(broker.certificate_properties())
    ) as connection:
        made = connection.call(
            CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), CreateDelegationTokenResponse
        )
    assert (made.error_code, made.principal_name) == (0, ALICE)
    return made


def login_with(made: CreateDelegationTokenResponse) -> dict[str, str]:
    return {"user": made.token_id, "password": base64.b64encode(bytes(made.hmac)).decode()}


def test_the_delegation_tokens_of_one_user_do_not_lock_the_others_out(
    broker: SecuredBroker, serve_console: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token has a name of its own, so its sessions counted as those of another user."""
    monkeypatch.setattr("tidelog.console.core.sessions.MAX_SESSIONS", 4)
    console = serve_console(broker.bootstrap("SASL_PLAINTEXT"), login="SCRAM-SHA-512")
    for _ in range(3):
        console.log_in_with(**login_with(new_token(broker)), delegation="1")
    answer = console.post("/login", **login_with(new_token(broker)), delegation="1")
    assert answer.status == 503
    console.log_in(ALICE, PASSWORD)  # another key of the budget than that of tokens


def test_a_delegation_token_logs_in_where_users_have_certificates(
    broker: SecuredBroker, serve_console: Serve
) -> None:
    made = new_token(broker)
    login = login_with(made)
    console = serve_console(broker.bootstrap("SASL_PLAINTEXT"), login="SCRAM-SHA-512")
    assert 'name="delegation"' in console.get("/login").text
    assert console.post("/login", **login).status == 403  # there is no user with this name
    cookie = console.log_in_with(**login, delegation="1")
    page = console.get("/topics", headers={"Cookie": cookie}).text
    assert re.findall(r'href="/topics/([^"?]+)"', page) == [TOPIC]
    assert f"User <b>{made.token_id} (delegation token)</b>" in page
    answer = console.post("/login", user=made.token_id, password="wrong", delegation="1")
    assert answer.status == 403
    assert 'name="delegation" value="1" checked' in answer.text
