"""Each served API can state an error in each of its versions, for any request."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.mutation import RequestSource
from tidelog.broker.requests.apis import APIS
from tidelog.broker.requests.error_responses import error_response, item_error, items_of
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.sync_group import SyncGroupRequest

CODE = ErrorCode.NOT_CONTROLLER
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def error_codes(message: object) -> set[int]:
    """Returns all error codes in a response."""
    found: set[int] = set()
    for field in message.FIELDS:  # type: ignore[attr-defined]
        value = getattr(message, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.add(int(value))
        elif isinstance(value, list) and isinstance(field.kind, tuple):
            for item in value:
                if hasattr(item, "FIELDS"):
                    found |= error_codes(item)
    return found


@settings(deadline=None)
@given(seed=st.integers(0, 1 << 32), key=st.sampled_from(sorted(APIS)))
def test_each_api_states_the_error_and_can_be_encoded(seed: int, key: int) -> None:
    served = APIS[key]
    version = served.min_version + seed % (served.max_version - served.min_version + 1)
    request = RequestSource(random.Random(seed), ["open", "closed", ""], [b""]).message(ApiKey(key), version)
    response = error_response(key, version, request, CODE, "no")
    body = b"".join(map(bytes, codec.response_encoder(key, version)(response)))
    decoded = codec.response_decoder(key, version)(body, 0)[0]
    assert error_codes(decoded) <= {0, CODE}
    items = items_of(key, version)
    if items is not None and items.inner is None:
        asked = getattr(request, items.asked) or ()
        assert len(getattr(response, items.answered)) in (0, len(asked))
        results = [item_error(key, version, item, CODE, "no") for item in asked]
        assert all(result.error_code == CODE for result in results)


@pytest.mark.parametrize(
    ("key", "request_class", "told"),
    [
        (ApiKey.SYNC_GROUP, SyncGroupRequest, ErrorCode.REBALANCE_IN_PROGRESS),
        (ApiKey.HEARTBEAT, HeartbeatRequest, ErrorCode.NONE),
        (ApiKey.JOIN_GROUP, JoinGroupRequest, LOADING),
    ],
)
def test_members_of_a_group_that_is_being_loaded_wait(
    key: ApiKey, request_class: type, told: ErrorCode
) -> None:
    version = APIS[key].max_version
    assert error_response(key, version, request_class(), LOADING).error_code == told  # type: ignore[attr-defined]
    assert error_response(key, version, request_class(), CODE).error_code == CODE  # type: ignore[attr-defined]


def test_a_user_who_is_named_twice_has_one_result() -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion("ann", 1)],
        upsertions=[ScramCredentialUpsertion("ann", 2), ScramCredentialUpsertion("bob", 2)],
    )
    response = error_response(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request, CODE, "no")
    assert [(row.user, row.error_code) for row in response.results] == [("ann", CODE), ("bob", CODE)]
