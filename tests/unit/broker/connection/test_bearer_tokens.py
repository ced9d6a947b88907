"""Valid and invalid tokens of OAUTHBEARER, with keys from a real identity provider."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.identity_provider import AUDIENCE, IdentityProvider
from tidelog.broker.net.bearer_tokens import BearerTokens
from tidelog.kernel.instants import WallMs
from tidelog.sasl import AuthenticationError
from tidelog.sasl.oauthbearer import BearerMessage
from tidelog.settings.sasl_settings import BearerPlan


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    yield provider
    provider.close()


def _plan(provider: IdentityProvider, **changes: Any) -> BearerPlan:
    plan = BearerPlan(
        jwks_url=f"{provider.issuer}/jwks",
        refresh_ms=3_600_000,
        retry_backoff_ms=100,
        retry_backoff_max_ms=100,
        audiences=(AUDIENCE, "other"),
        issuer=provider.issuer,
        clock_skew_s=30,
        user_claim="sub",
    )
    return plan._replace(**changes)


def _now_ms() -> WallMs:
    return WallMs(int(time.time() * 1000))


@pytest.fixture(scope="module")
def tokens(provider: IdentityProvider) -> BearerTokens:
    tokens = BearerTokens(_plan(provider))
    assert not tokens.has_key_for(provider.token("alice"))
    asyncio.run(tokens.read_keys())
    return tokens


def test_a_token_of_the_provider_is_valid(provider: IdentityProvider, tokens: BearerTokens) -> None:
    token = provider.token("alice")
    assert tokens.has_key_for(token)
    login = tokens.check(token, _now_ms())
    assert login.user == "alice"
    assert 3_500_000 < login.expires_ms - _now_ms() <= 3_600_000


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": None}, "not valid"),
        ({"exp": 1}, "has expired"),
        ({"exp": int(time.time()) - 40}, "has expired"),
        ({"exp": "never"}, "not a number"),
        ({"nbf": int(time.time()) + 1_000_000}, "not valid yet"),
        ({"iat": int(time.time()) + 1_000_000}, "not valid yet"),
        ({"aud": "someone"}, "not valid"),
        ({"aud": None}, "not valid"),
        ({"iss": "https://elsewhere"}, "not valid"),
        ({"sub": None}, "has no claim sub"),
        ({"sub": ""}, "has no claim sub"),
    ],
)
def test_tokens_with_wrong_claims_are_refused(
    provider: IdentityProvider, tokens: BearerTokens, claims: dict[str, Any], reason: str
) -> None:
    with pytest.raises(AuthenticationError, match=reason):
        tokens.check(provider.token("alice", **claims), _now_ms())


def test_clocks_may_differ_a_little(provider: IdentityProvider, tokens: BearerTokens) -> None:
    now_s = int(time.time())
    for claims in ({"exp": now_s - 20}, {"iat": now_s + 20}, {"nbf": now_s + 20}):
        assert tokens.check(provider.token("alice", **claims), _now_ms()).user == "alice"


def test_other_signatures_are_refused(provider: IdentityProvider, tokens: BearerTokens) -> None:
    good = provider.token("alice")
    claims = jwt.decode(good, options={"verify_signature": False})
    public_key = str(provider.key_set()["keys"][0]["n"])
    stranger = IdentityProvider()
    try:
        attacks = [
            stranger.token("alice", iss=provider.issuer),  # another key with the same id
            jwt.encode(claims, None, algorithm="none", headers={"kid": "first"}),
            jwt.encode(claims, public_key, algorithm="HS256", headers={"kid": "first"}),
            good[:-6] + "AAAAAA",
            good.rpartition(".")[0] + ".",
            "a.b.c",
            "",
        ]
    finally:
        stranger.close()
    for token in attacks:
        with pytest.raises(AuthenticationError):
            tokens.check(token, _now_ms())


def test_a_new_key_is_read_when_a_token_names_it() -> None:
    provider = IdentityProvider()
    try:
        tokens = BearerTokens(_plan(provider, retry_backoff_max_ms=200))

        async def scenario() -> None:
            await asyncio.gather(tokens.read_keys(), tokens.read_keys())
            assert provider.key_reads == 1, "callers share one attempt"
            old = provider.token("alice")
            provider.rotate("second", kind="EC")
            token = provider.token("alice")
            assert tokens.has_key_for(token), "too early for another attempt"
            await asyncio.sleep(0.25)
            assert not tokens.has_key_for(token)
            await tokens.read_keys()
            assert tokens.check(token, _now_ms()).user == "alice"
            with pytest.raises(AuthenticationError):
                tokens.check(old, _now_ms())

        asyncio.run(scenario())
    finally:
        provider.close()


def test_the_old_keys_stay_while_the_provider_is_away() -> None:
    provider = IdentityProvider()
    tokens = BearerTokens(_plan(provider))
    asyncio.run(tokens.read_keys())
    token = provider.token("alice")
    provider.close()
    asyncio.run(tokens.read_keys())
    assert tokens.check(token, _now_ms()).user == "alice"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n,,\x01\x01",
        "n,,\x01auth=Basic x\x01\x01",
        "n,,\x01auth=Bearer \x01\x01",
        "n,,\x01auth=Bearer a b\x01\x01",
        "n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        "y,,\x01auth=Bearer a\x01\x01",
        "n,,\x01auth=Bearer a\x01",
        "n,," + "x" * 70_000,
    ],
)
def test_malformed_messages_are_refused(text: str) -> None:
    with pytest.raises(AuthenticationError):
        BearerMessage.parse(text.encode())


@given(
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=9),
    st.from_regex(r"[A-Za-z0-9._-]+", fullmatch=True),
)
def test_a_message_survives_its_encoding(authorization_id: str, token: str) -> None:
    message = BearerMessage(authorization_id, token)
    assert BearerMessage.parse(message.encode()) == message
    assert "hidden" in repr(message)


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, 1e17], ids=str)
def test_a_token_with_an_impossible_time_is_refused(
    provider: IdentityProvider, tokens: BearerTokens, claim: str, value: float
) -> None:
    with pytest.raises(AuthenticationError):
        tokens.check(provider.token("alice", **{claim: value}), _now_ms())
