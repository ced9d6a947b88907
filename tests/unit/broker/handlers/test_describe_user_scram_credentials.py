"""DescribeUserScramCredentials answers from the broker's snapshot."""

from __future__ import annotations

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.metadata.entries import ScramCredentialEntry
from tidelog.model.errors import ErrorCode
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.sasl.scram import SCRAM_MECHANISMS, new_credential
from tidelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

SHA_256, SHA_512 = SCRAM_MECHANISMS
SALT = b"salt"


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
