"""Exchanges of SASL that a client leaves unfinished while credentials, tokens and settings change."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.cluster.view import CurrentSettings, MetadataView
from tidelog.broker.net import authentication
from tidelog.broker.net.authentication import Authenticator, ConnectionAuthentication, Phase, Step
from tidelog.broker.net.connection import CLOSED_GATE
from tidelog.broker.security.security_snapshot import SecuritySnapshot
from tidelog.kernel.clock import ManualClock
from tidelog.metadata.entries import DelegationTokenEntry, ScramCredentialEntry
from tidelog.model.acl import ANONYMOUS, user_principal
from tidelog.model.errors import ErrorCode
from tidelog.sasl import AuthenticationError
from tidelog.sasl.delegation_tokens import token_hmac
from tidelog.sasl.scram import (
    MECHANISM_BY_NAME,
    MIN_ITERATIONS,
    ClientExchange,
    ScramMechanism,
    new_credential,
)
from tidelog.settings.broker_settings import BrokerSettings

MECHANISM = MECHANISM_BY_NAME["SCRAM-SHA-512"]
ALICE = user_principal("alice")
SETTINGS = {
    "listeners": "CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "CLIENTS",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "sasl.jaas.config": 'LoginModule required username="b" password="b" user_alice="secret";',
    "connections.max.reauth.ms": "60000",
    "delegation.token.secret.key": "key",
}
SECRET = base64.b64encode(token_hmac(b"key", "token")).decode()


class Lab:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.settings = CurrentSettings(BrokerSettings.parse(SETTINGS))
        self.metadata = SimpleNamespace(security=SecuritySnapshot())
        self.authenticator = Authenticator(
            "CLIENTS", self.settings, cast(MetadataView, self.metadata), self.clock
        )

    def set_user(self, password: str | None, iterations: int = MIN_ITERATIONS) -> None:
        entries = {}
        if password is not None:
            credential = new_credential(MECHANISM, password, b"salt", iterations)
            entry = ScramCredentialEntry("alice", MECHANISM.name, credential)
            entries[entry.key] = entry
        self.metadata.security = SecuritySnapshot(scram_credentials=entries)

    def set_token(self, lifetime_ms: int) -> None:
        now_ms = self.clock.wall_ms()
        end_ms = now_ms + lifetime_ms
        token = DelegationTokenEntry("token", ALICE, ALICE, (), now_ms, end_ms, end_ms)
        self.metadata.security = SecuritySnapshot(delegation_tokens={token.key: token})


@pytest.fixture
def lab() -> Lab:
    return Lab()


class Exchange:
    """A SCRAM exchange of which the client has sent the first message."""

    def __init__(
        self, lab: Lab, user: str, password: str, *, is_token: bool, mechanism: ScramMechanism = MECHANISM
    ) -> None:
        self._client = ClientExchange(mechanism, user, password, "nonce", is_token=is_token)
        self._server = lab.authenticator.exchange(mechanism.name)
        self._challenge = self._server.take(self._client.first).token

    @property
    def salt(self) -> bytes:
        """The part of the server's first message that has the salt."""
        return self._challenge.split(b",")[1]

    @property
    def iterations(self) -> bytes:
        return self._challenge.split(b",")[2]

    def finish(self) -> Step:
        return self._server.take(self._client.reply(self._challenge))


def test_a_token_counts_until_its_end(lab: Lab) -> None:
    lab.set_token(lifetime_ms=10_000)
    begun = Exchange(lab, "token", SECRET, is_token=True)
    lab.clock.advance(4_000)
    login = begun.finish().login
    assert login is not None
    assert (login.principal, login.lifetime_ms, login.is_token) == (ALICE, 6_000, True)


def test_an_exchange_does_not_outlive_its_token(lab: Lab) -> None:
    """A client that authenticates again may take any time, and had another session of the old length."""
    lab.set_token(lifetime_ms=10_000)
    begun = Exchange(lab, "token", SECRET, is_token=True)
    lab.clock.advance(10_000)
    with pytest.raises(AuthenticationError, match="changed during the exchange"):
        begun.finish()


def test_an_exchange_does_not_outlive_a_token_that_is_removed(lab: Lab) -> None:
    lab.set_token(lifetime_ms=10_000)
    begun = Exchange(lab, "token", SECRET, is_token=True)
    lab.metadata.security = SecuritySnapshot()
    with pytest.raises(AuthenticationError, match="changed during the exchange"):
        begun.finish()


@pytest.mark.parametrize("password", [None, "new"])
def test_an_exchange_does_not_outlive_the_password(lab: Lab, password: str | None) -> None:
    lab.set_user("old")
    begun = Exchange(lab, "alice", "old", is_token=False)
    lab.set_user(password)
    with pytest.raises(AuthenticationError, match="changed during the exchange"):
        begun.finish()


def test_a_change_of_other_users_does_not_disturb_an_exchange(lab: Lab) -> None:
    lab.set_user("old")
    begun = Exchange(lab, "alice", "old", is_token=False)
    lab.set_user("old")
    login = begun.finish().login
    assert login is not None
    assert login.principal == ALICE


class CountedMapping(dict[str, ScramCredentialEntry]):
    """Counts how often all users were looked at."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()


def test_logins_of_unknown_users_do_not_look_at_all_users(lab: Lab) -> None:
    """Anybody may begin them."""
    lab.set_user("secret")
    salts = set()
    for _ in range(2):  # an equal mapping that is another object counts as a change
        users = CountedMapping(lab.metadata.security.scram_credentials)
        lab.metadata.security = SecuritySnapshot(scram_credentials=users)
        for _ in range(10):
            salts.add(Exchange(lab, "nobody", "secret", is_token=False).salt)
        assert users.walks <= 1
    assert len(salts) == 1
    lab.set_user("other")
    assert Exchange(lab, "nobody", "secret", is_token=False).salt not in salts
    lab.set_user(None)
    assert Exchange(lab, "nobody", "secret", is_token=False).salt not in salts


def test_the_number_of_iterations_does_not_tell_whether_a_user_or_token_exists(lab: Lab) -> None:
    lab.set_user("secret", iterations=10_000)
    for name in ("alice", "nobody", "bob"):
        assert Exchange(lab, name, "secret", is_token=False).iterations == b"i=10000"
    unknown = Exchange(lab, "token", SECRET, is_token=True).iterations
    lab.set_token(lifetime_ms=10_000)
    assert Exchange(lab, "token", SECRET, is_token=True).iterations == unknown


def connection_of_client() -> Any:
    ended: list[bool] = []
    connection = SimpleNamespace(
        principal=ANONYMOUS,
        peer_host="127.0.0.1",
        peer="127.0.0.1:1",
        gate=None,
        is_closed=False,
        listener=SimpleNamespace(max_request_bytes=1000, login_ended=ended.append),
        ended=ended,
        limit_frames=lambda size: None,
        loop=asyncio.new_event_loop(),
    )
    connection.loop.close()
    return connection


@pytest.mark.parametrize("password", [b"secret", b"false"])
def test_the_end_of_a_login_does_not_open_a_closed_connection(lab: Lab, password: bytes) -> None:
    """A password may be checked in a thread while the client closes its connection."""
    connection = connection_of_client()
    session = ConnectionAuthentication(lab.authenticator, connection)
    session.choose("PLAIN", is_raw=False)
    connection.is_closed, connection.gate = True, CLOSED_GATE
    with contextlib.suppress(AuthenticationError):
        session.take(b"\0alice\0" + password)
    assert connection.gate is CLOSED_GATE


@pytest.mark.parametrize("password", [b"secret", b"false"])
def test_each_login_is_counted_once(lab: Lab, password: bytes) -> None:
    connection = connection_of_client()
    session = ConnectionAuthentication(lab.authenticator, connection)
    session.choose("PLAIN", is_raw=False)
    with contextlib.suppress(AuthenticationError):
        session.take(b"\0alice\0" + password)
    assert connection.ended == [password == b"secret"]


def test_a_client_does_not_authenticate_again_with_a_mechanism_that_was_disabled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "MIN_REAUTHENTICATION_INTERVAL_S", -1.0)
    session = ConnectionAuthentication(lab.authenticator, connection_of_client())
    for _ in range(2):
        assert session.choose("PLAIN", is_raw=False) == ErrorCode.NONE
        assert session.take(b"\0alice\0secret") == (b"", 60_000)
    lab.settings.replace(BrokerSettings.parse(SETTINGS | {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}))
    assert session.choose("PLAIN", is_raw=False) == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert session.phase is Phase.FAILED
