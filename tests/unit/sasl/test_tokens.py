"""Tokens: the claims that the holder of a bearer token reads without a key, and the secrets by which
delegation tokens are found.
"""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.sasl import AuthenticationError, delegation_tokens
from tidelog.sasl.delegation_tokens import TokenSecrets, token_hmac
from tidelog.sasl.oauthbearer import MAX_TOKEN_BYTES, TokenClaims

KEYS = (b"key", b"another key")
IDS = ("a", "b", "c", "d")
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "remove", "find")), st.sampled_from(IDS), st.sampled_from(KEYS))
)


def jwt_of(claims: bytes) -> str:
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"


@given(st.text(min_size=1), st.integers(0, 2**40))
def test_the_claims_of_a_token(user: str, expires_s: int) -> None:
    token = jwt_of(json.dumps({"name": user, "sub": "id", "exp": expires_s}).encode())
    assert TokenClaims.read(token, "name") == (user, expires_s * 1000)
    assert TokenClaims.read(token).user == "id"


@pytest.mark.parametrize(
    "claims",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 10_000,
        b'{"sub": "a"}',
        b'{"sub": "", "exp": 1}',
        b'{"sub": ["a"], "exp": 1}',
        b'{"sub": "a", "exp": "1"}',
        b'{"sub": "a", "exp": true}',
        b'{"sub": "a", "exp": NaN}',
        b'{"sub": "a", "exp": -1}',
        b'{"sub": "a", "exp": 1e300}',
    ],
)
def test_claims_that_are_not_usable(claims: bytes) -> None:
    with pytest.raises(AuthenticationError):
        TokenClaims.read(jwt_of(claims))


@pytest.mark.parametrize(
    "token", ["", "a", "a.b", "a.b.c.d", "a.b.c d", "ü.ü.ü", "a.b.c\n", "a" * MAX_TOKEN_BYTES + ".b.c"]
)
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(AuthenticationError, match="it is not a JSON Web Token"):
        TokenClaims.read(token)


@given(STEPS)
def test_a_token_is_found_by_its_secret_until_it_is_removed(steps: list[tuple[str, str, bytes]]) -> None:
    secrets, known = TokenSecrets(), set[str]()
    for step, token_id, key in steps:
        if step == "add":
            secrets.add(token_id)
            known.add(token_id)
        elif step == "remove":
            secrets.remove(token_id)
            known.discard(token_id)
        else:
            found = secrets.find(key, token_hmac(key, token_id))
            assert found == (token_id if token_id in known else None)
            assert secrets.find(key, token_hmac(b"wrong", token_id)) is None


def test_requests_do_not_compute_the_secrets_of_all_tokens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counted(secret_key: bytes, token_id: str) -> bytes:
        computed.append(token_id)
        return token_hmac(secret_key, token_id)

    monkeypatch.setattr(delegation_tokens, "token_hmac", counted)
    secrets = TokenSecrets()
    for number in range(1_000):
        secrets.add(str(number))
        assert secrets.find(b"key", b"no secret") is None
    assert len(computed) == 1_000
