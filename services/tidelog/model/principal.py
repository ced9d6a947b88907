"""The authenticated identity of a client (Kafka's KafkaPrincipal)."""

from __future__ import annotations

from typing import Final, NewType

Principal = NewType("Principal", str)
"""An identity as ACLs name it: the type `User`, a colon, and the name, such as `User:alice`. It is
case-sensitive.
"""

ANONYMOUS: Final = Principal("User:ANONYMOUS")
"""The principal of a client that did not authenticate, as in Kafka."""


def user_principal(name: str) -> Principal:
    """Returns the principal of the user `name`."""
    return Principal(f"User:{name}")


def parse_principals(text: str) -> frozenset[Principal]:
    """Returns the principals of a list that semicolons separate, as `super.users` is. Raises ValueError."""
    found = [Principal(item.strip()) for item in text.split(";") if item.strip()]
    for principal in found:
        kind, _, name = principal.partition(":")
        if not kind or not name:
            raise ValueError(f"{principal} is not a principal such as User:alice")
    return frozenset(found)
