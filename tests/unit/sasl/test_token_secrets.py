"""Tokens are found by their secrets, each of which is computed once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.sasl import delegation_tokens
from tidelog.sasl.delegation_tokens import TokenSecrets, token_hmac

KEYS = (b"key", b"another key")
IDS = ("a", "b", "c", "d")
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "remove", "find")), st.sampled_from(IDS), st.sampled_from(KEYS))
)


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
