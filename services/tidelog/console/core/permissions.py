"""The errors of pages that the user may not see or that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from tidelog.model.errors import ErrorCode, KafkaError

_NEEDED: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "Describe for the topic, DescribeConfigs for its settings, and Read for its records"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Describe for the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Describe and DescribeConfigs for the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Describe for the transactional id",
}
"""The operations that the pages need, by the error that a cluster returns without them."""

_NOT_FOUND: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
    }
)

T = TypeVar("T")


def is_denial(error: Exception | None) -> bool:
    """Says whether the cluster refused something because the user has no ACL for it."""
    return isinstance(error, KafkaError) and error.code in _NEEDED


def is_not_found(error: Exception | None) -> bool:
    """Says whether the cluster has nothing with a name, or cannot have it."""
    return isinstance(error, KafkaError) and error.code in _NOT_FOUND


def denial_text(error: KafkaError, user: str) -> str:
    """Returns one sentence, without its period, that says what was refused and which ACLs allow it.

    `user` is empty if the console itself does not know the name.
    """
    who = f"user {user}" if user else "this user"
    subject = str(error).partition(": ")[0].partition(" is not accessible")[0]
    return f"The cluster does not show {subject} to {who}. ACLs with {_NEEDED[error.code]} allow it"


def unless_denied(read: Callable[[], T], denied: list[KafkaError]) -> T | None:
    """Returns what `read` returns, or None if the user has no ACL for it. The error then joins `denied`."""
    try:
        return read()
    except KafkaError as error:
        if not is_denial(error):
            raise
        denied.append(error)
        return None
