"""DefaultPrincipalData.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DefaultPrincipalData:
    type: str = ""
    name: str = ""
    token_authenticated: bool = False

    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("type", "string", "0+"),
        F("name", "string", "0+"),
        F("token_authenticated", "bool", "0+"),
    )
