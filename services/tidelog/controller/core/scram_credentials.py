"""AlterUserScramCredentials (KIP-554), with the rules of Kafka's `ScramControlManager`."""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.decision import Context, ControllerDecision, Erase, Record, Write
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import ScramCredentialEntry, scram_credential_key
from tidelog.model.errors import ErrorCode
from tidelog.model.name_limits import MAX_NAME_BYTES, is_too_long
from tidelog.sasl.scram import (
    MAX_ITERATIONS,
    MECHANISM_BY_NUMBER,
    MIN_ITERATIONS,
    credential_of_salted,
)
from tidelog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

MAX_SALT_BYTES: Final = 1024
MAX_SALTED_PASSWORD_BYTES: Final = 1024
"""Longer fields are refused, because every broker keeps each credential in memory."""
MAX_CREDENTIALS: Final = 100_000
"""The limit of the credentials of a cluster, which every broker keeps."""


class _RefusedError(Exception):
    """The reason why the changes of one user are refused."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def alter_user_scram_credentials(
    state: ClusterState, context: Context, request: AlterUserScramCredentialsRequest, api_version: int
) -> ControllerDecision[AlterUserScramCredentialsResponse]:
    """Decides each user on its own: one refused change refuses all changes of the user, and no others."""
    refusals: dict[str, _RefusedError] = {}
    records: dict[str, dict[str, Record]] = {}  # by user and key
    count = len(state.scram_credentials)
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [
        *request.deletions,
        *request.upsertions,
    ]
    for change in changes:
        of_user = records.setdefault(change.name, {})
        try:
            key = _checked_key(change)
            if key in of_user:
                raise _RefusedError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "The request changes the same credential of a user more than once.",
                )
            if isinstance(change, ScramCredentialDeletion):
                if key not in state.scram_credentials:
                    raise _RefusedError(ErrorCode.RESOURCE_NOT_FOUND, "The user has no such credential.")
                of_user[key] = Erase(key)
            else:
                of_user[key] = Write(_entry(change))
                count += key not in state.scram_credentials
                if count > MAX_CREDENTIALS:
                    raise _RefusedError(
                        ErrorCode.POLICY_VIOLATION,
                        f"The cluster has {MAX_CREDENTIALS} credentials, which is the limit.",
                    )
        except _RefusedError as refusal:
            refusals.setdefault(change.name, refusal)
    results = []
    accepted: list[Record] = []
    for user, of_user in records.items():
        found = refusals.get(user)
        if found is None:
            accepted += of_user.values()
            results.append(AlterUserScramCredentialsResult(user, ErrorCode.NONE, None))
        else:
            results.append(AlterUserScramCredentialsResult(user, found.code, found.message))
    return ControllerDecision(tuple(accepted), AlterUserScramCredentialsResponse(results=results))


def _checked_key(change: ScramCredentialDeletion | ScramCredentialUpsertion) -> str:
    if not change.name:
        raise _RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The user name is empty.")
    if is_too_long(change.name):
        raise _RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"The user name is longer than {MAX_NAME_BYTES} bytes."
        )
    mechanism = MECHANISM_BY_NUMBER.get(change.mechanism)
    if mechanism is None:
        raise _RefusedError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"There is no SCRAM mechanism {change.mechanism}."
        )
    return scram_credential_key(mechanism.name, change.name)


def _entry(change: ScramCredentialUpsertion) -> ScramCredentialEntry:
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        raise _RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The number of iterations is not between {MIN_ITERATIONS} and {MAX_ITERATIONS}.",
        )
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    if not 0 < len(salt) <= MAX_SALT_BYTES or not 0 < len(salted) <= MAX_SALTED_PASSWORD_BYTES:
        raise _RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the salted password is empty or too long."
        )
    mechanism = MECHANISM_BY_NUMBER[change.mechanism]
    credential = credential_of_salted(mechanism, salted, salt, change.iterations)
    return ScramCredentialEntry(change.name, mechanism.name, credential)
