"""Reads and changes the SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.core.delivery_errors import request_error
from tidelog.model.errors import ErrorCode
from tidelog.sasl.scram import MECHANISM_BY_NUMBER, ScramMechanism, salt_from, salted_password
from tidelog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

SALT_RANDOM_BYTES: Final = 32


class UserCredential(NamedTuple):
    """A credential of a user, without its secret."""

    user: str
    mechanism: str
    iterations: int


def describe_users(cluster: Cluster, names: Iterable[str] = ()) -> list[UserCredential]:
    """Returns the credentials of the named users, or of all users, in the order of their names. Raises
    KafkaError RESOURCE_NOT_FOUND if a named user has none, ClientError.
    """
    users = [UserName(name) for name in names]
    request = DescribeUserScramCredentialsRequest(users or None)
    answer = cluster.any_broker().call(request, DescribeUserScramCredentialsResponse)
    _raise_on_error(answer.error_code, answer.error_message)
    found = []
    for result in answer.results:
        _raise_on_error(result.error_code, result.error_message)
        for info in result.credential_infos:
            mechanism = MECHANISM_BY_NUMBER.get(info.mechanism)
            name = str(info.mechanism) if mechanism is None else mechanism.name
            found.append(UserCredential(result.user, name, info.iterations))
    return sorted(found)


def set_password(
    cluster: Cluster, user: str, password: str, mechanisms: Iterable[ScramMechanism], iterations: int
) -> None:
    """Creates or replaces a user's credentials. The password does not leave this process. Raises KafkaError,
    ClientError.
    """
    upsertions = []
    for mechanism in mechanisms:
        salt = salt_from(secrets.token_bytes(SALT_RANDOM_BYTES))
        salted = salted_password(mechanism, password, salt, iterations)
        upsertions.append(ScramCredentialUpsertion(user, mechanism.number, iterations, salt, salted))
    _alter(cluster, AlterUserScramCredentialsRequest(upsertions=upsertions))


def delete_credentials(cluster: Cluster, user: str, mechanisms: Iterable[ScramMechanism]) -> None:
    """Deletes a user's credentials. Raises KafkaError RESOURCE_NOT_FOUND if one does not exist,
    ClientError.
    """
    deletions = [ScramCredentialDeletion(user, mechanism.number) for mechanism in mechanisms]
    _alter(cluster, AlterUserScramCredentialsRequest(deletions=deletions))


def _alter(cluster: Cluster, request: AlterUserScramCredentialsRequest) -> None:
    answer = cluster.controller().call(request, AlterUserScramCredentialsResponse)
    for result in answer.results:
        _raise_on_error(result.error_code, result.error_message)


def _raise_on_error(code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise request_error(code, "users", message)
