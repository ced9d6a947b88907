"""The limit of the names and ids that clients choose: of groups, members, transactions, principals and other
entities that a service keeps.
"""

from __future__ import annotations

from typing import Final

MAX_NAME_BYTES: Final = 1024
"""The most bytes of a name in UTF-8. Services keep names in memory, and repeat them in keys of the metadata
store and in the records of a log.
"""


def is_too_long(name: str) -> bool:
    """Returns whether the name exceeds MAX_NAME_BYTES."""
    if len(name) * 4 <= MAX_NAME_BYTES:  # no character has more than four bytes
        return False
    return len(name) > MAX_NAME_BYTES or len(name.encode()) > MAX_NAME_BYTES
