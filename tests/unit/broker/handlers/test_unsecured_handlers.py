"""Responses of an unsecured broker to requests for ACLs, SCRAM credentials, delegation tokens and SASL, and
the SCRAM credentials of the broker's snapshot.
"""

from __future__ import annotations

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.metadata.entries import ScramCredentialEntry
from tidelog.model.errors import ErrorCode
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.sasl.scram import SCRAM_MECHANISMS, new_credential
from tidelog.wire.messages import (
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
)
from tidelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

SHA_256, SHA_512 = SCRAM_MECHANISMS
SALT = b"salt"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_without_an_authorizer(lab: InMemoryBroker, version: int) -> None:
    described = lab.call(describe_acls.DescribeAclsRequest(), version)
    assert (described.error_code, described.resources) == (ErrorCode.SECURITY_DISABLED, [])
    created = lab.call(create_acls.CreateAclsRequest([create_acls.AclCreation()] * 2), version)
    assert [result.error_code for result in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
    deleted = lab.call(delete_acls.DeleteAclsRequest([delete_acls.DeleteAclsFilter()] * 2), version)
    assert [result.error_code for result in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED] * 2


def test_no_user_has_scram_credentials(lab: InMemoryBroker) -> None:
    def described(*names: str) -> dict[str, int]:
        users = [describe_user_scram_credentials.UserName(name) for name in names]
        response = lab.call(
            describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users or None), 0
        )
        assert response.error_code == 0
        return {result.user: result.error_code for result in response.results}

    assert described() == {}
    assert described("u", "v", "u") == {"u": ErrorCode.DUPLICATE_RESOURCE, "v": ErrorCode.RESOURCE_NOT_FOUND}


def test_delegation_tokens_need_authenticated_connections(lab: InMemoryBroker) -> None:
    refusal = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    for version in (1, 2, 3):
        created = lab.call(create_delegation_token.CreateDelegationTokenRequest(), version)
        assert (created.error_code, created.principal_name, created.expiry_timestamp_ms) == (
            refusal,
            "ANONYMOUS",
            -1,
        )
        assert (
            lab.call(describe_delegation_token.DescribeDelegationTokenRequest(), version).error_code
            == refusal
        )
    assert lab.call(renew_delegation_token.RenewDelegationTokenRequest(b"x"), 2).error_code == refusal
    assert lab.call(expire_delegation_token.ExpireDelegationTokenRequest(b"x"), 2).error_code == refusal


def test_sasl_on_a_plaintext_listener(lab: InMemoryBroker) -> None:
    assert (
        lab.call(sasl_handshake.SaslHandshakeRequest("PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    )
    answer = lab.call(sasl_authenticate.SaslAuthenticateRequest(b"x"), 2)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_broker_describes_its_snapshot(lab: InMemoryBroker) -> None:
    entries = tuple(
        ScramCredentialEntry(user, mechanism.name, new_credential(mechanism, "x", SALT, 4096 + number))
        for number, (user, mechanism) in enumerate([("a", SHA_512), ("a", SHA_256), ("b", SHA_256)])
    )
    lab.update_metadata(security=SecurityUpdate(1, entries, ()))

    def described(*names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        users = [UserName(name) for name in names]
        response = lab.call(DescribeUserScramCredentialsRequest(users or None), 0)
        return {
            result.user: (
                result.error_code,
                [(info.mechanism, info.iterations) for info in result.credential_infos],
            )
            for result in response.results
        }

    everyone = {"a": (0, [(1, 4097), (2, 4096)]), "b": (0, [(1, 4098)])}
    assert described() == everyone
    assert described("a", "c", "b", "b") == {
        "a": everyone["a"],
        "c": (ErrorCode.RESOURCE_NOT_FOUND, []),
        "b": (ErrorCode.DUPLICATE_RESOURCE, []),
    }
    assert "x" not in repr(lab.broker.metadata.security)
