"""The special values of fields in Kafka's protocol, the numbers of incremental fetch sessions (KIP-227), and
the kinds of resources with settings. Clients, followers and leaders share them.

Sources: `ListOffsetsRequest`, `FetchRequest`, `FetchMetadata`, `ConfigResource`, `AlterConfigOp`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

UNKNOWN_OFFSET: Final = -1
"""The offset of a field that names none."""
UNKNOWN_EPOCH: Final = -1
"""The epoch of a field that names none: of leaders, brokers and states."""
NO_LEADER: Final = -1
"""The leader's id of a partition without a leader."""
NO_REPLICA: Final = -1
"""The preferred read replica of a partition that the asked broker serves itself."""
CONSUMER_REPLICA_ID: Final = -1
"""The replica id in requests of clients, which are not followers."""

ACKS_ALL: Final = -1
"""The acks of a produce request that is answered when all replicas in sync have its batches."""
READ_UNCOMMITTED: Final = 0
"""The isolation level of readers that see the records of open and aborted transactions."""
READ_COMMITTED: Final = 1
"""The isolation level of readers that see only the records of committed transactions."""
UP_TO_HIGH_WATERMARK: Final = -1
"""The offset with which DeleteRecords deletes all records."""

LATEST_TIMESTAMP: Final = -1
"""The timestamp with which ListOffsets returns the log end offset to followers and the high watermark to
clients. The following ones stand for other offsets.
"""
EARLIEST_TIMESTAMP: Final = -2
"""Stands for the log start offset."""
MAX_TIMESTAMP: Final = -3
"""Stands for the offset of the record with the largest timestamp."""
EARLIEST_LOCAL_TIMESTAMP: Final = -4
"""Stands for the first offset on the broker's disk."""
LATEST_TIERED_TIMESTAMP: Final = -5
"""Stands for the last offset in the object store."""
EARLIEST_PENDING_UPLOAD_TIMESTAMP: Final = -6
"""Stands for the first offset that is not in the object store yet."""

NO_SESSION: Final = 0
"""The session id of a request or a response without a session."""
INITIAL_EPOCH: Final = 0
"""The session epoch of a full request that asks for a new session."""
FINAL_EPOCH: Final = -1
"""The session epoch of a full request that asks for no session and closes the one it names."""
FIRST_INCREMENTAL_EPOCH: Final = 1
"""The session epoch of the first request that names only what changed."""
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
"""The first version of Fetch that names topics by id instead of by name (KIP-516)."""
MAX_EPOCH: Final = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """Returns the session epoch of the incremental request that follows the one with `epoch`."""
    return FIRST_INCREMENTAL_EPOCH if epoch == MAX_EPOCH else epoch + 1


class ConfigResourceType(IntEnum):
    """Kafka's `ConfigResource.Type`."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """Kafka's `AlterConfigOp.OpType` (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
