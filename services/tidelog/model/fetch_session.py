"""The numbers of an incremental fetch session (KIP-227), which every party to it shares: clients, followers
and leaders. Source: Kafka's `FetchMetadata`.
"""

from __future__ import annotations

from typing import Final

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
