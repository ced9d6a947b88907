"""The claims that the holder of a bearer token reads without a key."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.sasl import AuthenticationError
from tidelog.sasl.oauthbearer import MAX_TOKEN_BYTES, TokenClaims


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
