"""AlterUserScramCredentials: which changes are accepted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.controller.core import security_changes
from tidelog.controller.core.decision import Chance, Context, ControllerRules, Erase, Write, rules_from
from tidelog.controller.core.security_changes import alter_user_scram_credentials
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.metadata.entries import InvalidEntryError, ScramCredentialEntry, decode_entry
from tidelog.model.errors import ErrorCode
from tidelog.sasl.scram import SCRAM_MECHANISMS, new_credential, salted_password
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

SHA_256, SHA_512 = SCRAM_MECHANISMS
SALT = b"salt"


@pytest.fixture(scope="module")
def context() -> Context:
    rules: ControllerRules = rules_from(BrokerSettings.parse({}), {})
    return Context(1, Chance(random.Random(1).getrandbits), rules)


def _upsertion(user: str, *, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    salted = salted_password(SHA_256, "pencil", SALT, 4096)
    return ScramCredentialUpsertion(user, mechanism, iterations, SALT, salted)


def _alter(
    state: ClusterState,
    context: Context,
    *changes: ScramCredentialUpsertion | ScramCredentialDeletion,
) -> dict[str, int]:
    """Decides and applies a request. Returns the error code of each user."""
    request = AlterUserScramCredentialsRequest(
        [change for change in changes if isinstance(change, ScramCredentialDeletion)],
        [change for change in changes if isinstance(change, ScramCredentialUpsertion)],
    )
    decision = alter_user_scram_credentials(state, context, request, 0)
    for record in decision.records:
        if isinstance(record, Write):
            key, value = record.entry.key, record.entry.encode()
            entry = decode_entry(key, value)
            assert entry == record.entry
            state.apply(entry, 1, 1, ChangeSet())
        elif isinstance(record, Erase):
            state.apply_removal(record.key, 2, ChangeSet())
    return {result.user: result.error_code for result in decision.reply.results}


def test_a_credential_is_stored_and_deleted(context: Context) -> None:
    state = ClusterState()
    assert _alter(state, context, _upsertion("a/b ü,=")) == {"a/b ü,=": ErrorCode.NONE}
    (entry,) = state.scram_credentials.values()
    assert entry == ScramCredentialEntry(
        "a/b ü,=", SHA_256.name, new_credential(SHA_256, "pencil", SALT, 4096)
    )
    assert list(state.security_entries()) == [entry]
    assert _alter(state, context, ScramCredentialDeletion("a/b ü,=", 1)) == {"a/b ü,=": ErrorCode.NONE}
    assert not state.scram_credentials


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (_upsertion("u" * 2000), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (_upsertion("u", mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (_upsertion("u", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (_upsertion("u", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramCredentialUpsertion("u", 1, 4096, b"", b"x" * 32), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramCredentialUpsertion("u", 1, 4096, SALT, b"x" * 2000), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramCredentialDeletion("u", 1), ErrorCode.RESOURCE_NOT_FOUND),
        (ScramCredentialDeletion("u", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_a_refused_change_does_not_hurt_another_user(
    context: Context, change: ScramCredentialUpsertion | ScramCredentialDeletion, code: ErrorCode
) -> None:
    state = ClusterState()
    assert _alter(state, context, change, _upsertion("other")) == {change.name: code, "other": 0}
    assert [entry.user for entry in state.scram_credentials.values()] == ["other"]


def test_a_credential_cannot_be_changed_twice_in_a_request(context: Context) -> None:
    state = ClusterState()
    assert _alter(state, context, _upsertion("u"), _upsertion("u")) == {"u": ErrorCode.DUPLICATE_RESOURCE}
    assert not state.scram_credentials
    assert _alter(state, context, _upsertion("u"), _upsertion("u", mechanism=2)) == {"u": 0}
    assert len(state.scram_credentials) == 2


def test_the_number_of_credentials_is_limited(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_changes, "MAX_CREDENTIALS", 2)
    state = ClusterState()
    codes = _alter(state, context, *map(_upsertion, "abc"))
    assert codes == {"a": 0, "b": 0, "c": ErrorCode.POLICY_VIOLATION}
    assert _alter(state, context, _upsertion("a")) == {"a": 0}


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20))
def test_an_entry_survives_its_encoding(user: str) -> None:
    entry = ScramCredentialEntry(user, SHA_512.name, new_credential(SHA_512, "x", SALT, 1))
    assert decode_entry(entry.key, entry.encode()) == entry


def test_an_unreadable_entry_is_not_shown() -> None:
    entry = ScramCredentialEntry("u", SHA_256.name, new_credential(SHA_256, "x", SALT, 1))
    with pytest.raises(InvalidEntryError) as caught:
        decode_entry(entry.key, entry.encode()[:-1])
    assert "stored_key" not in str(caught.value)
