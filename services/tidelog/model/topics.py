"""Topic names and ids, the rules for valid names, and the limit of the length of all other names.

Rules and messages follow Kafka's `org.apache.kafka.common.internals.Topic`.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

MAX_TOPIC_NAME_LENGTH = 249
MAX_NAME_BYTES: Final = 1024
"""The most bytes of a name in UTF-8. Services keep names in memory, and repeat them in keys of the metadata
store and in the records of a log.
"""
MAX_REMEMBERED_NAME_CHARS: Final = MAX_TOPIC_NAME_LENGTH
"""The longest name of a client's choice that a table for speed keeps. Ids of clients, groups and transactions
may have 32,767 bytes, so a table with a bounded number of them would not have a bounded size.
"""
GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})
SETTINGS_CONFIRMED: Final = "tidelog.settings.confirmed"
"""The setting that marks topics whose settings were lost (ADR 0067)."""
NOT_CONFIRMED: Final[Mapping[str, str]] = {SETTINGS_CONFIRMED: "false"}
"""The overrides of a topic about which nothing is known."""
ZERO_TOPIC_ID = uuid.UUID(int=0)

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class DescribableTopics(NamedTuple):
    """The topics that a client may describe. `names` is None in a request that need not have them.
    `known_count` is the number of all topics that the broker knows.
    """

    names: frozenset[str] | None = None
    known_count: int = 0


UNTOLD_TOPICS = DescribableTopics()


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class SharePartitionKey(NamedTuple):
    """A partition as one share group consumes it (Kafka's `SharePartitionKey`)."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


def topic_id_text(topic_id: uuid.UUID) -> str:
    """Returns Kafka's text form of an id: base64url without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_topic_id(text: str) -> uuid.UUID:
    """Returns the id of Kafka's text form. Raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a base64 UUID") from error


def effective_min_in_sync_replicas(min_in_sync_replicas: int, replica_count: int) -> int:
    """Returns the number of replicas in sync that acks=all needs.

    It is `min.insync.replicas`, but never more than the partition has replicas (KIP-966).
    """
    return min(min_in_sync_replicas, replica_count)


def topic_name_problem(name: str) -> str | None:
    """Returns one sentence that states why `name` is not a valid topic name, or None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in {".", ".."}:
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than "
            f"the max allowed length {MAX_TOPIC_NAME_LENGTH}"
        )
    if not _LEGAL_NAME.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def collision_key(name: str) -> str:
    """Returns a key that is equal for topics with the same metric names ('.' and '_' count as equal). Kafka
    refuses the second of such topics.
    """
    return name.replace(".", "_")


def is_too_long(name: str) -> bool:
    """Returns whether the name exceeds MAX_NAME_BYTES."""
    if len(name) * 4 <= MAX_NAME_BYTES:  # no character has more than four bytes
        return False
    return len(name) > MAX_NAME_BYTES or len(name.encode()) > MAX_NAME_BYTES
