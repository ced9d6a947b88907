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
